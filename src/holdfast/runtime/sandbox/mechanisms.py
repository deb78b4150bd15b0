"""The table of sandbox mechanisms, and the choice of one that works on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from holdfast.errors import ConfigurationError
from holdfast.runtime.sandbox.bridge import BoxLauncher
from holdfast.runtime.sandbox.bubblewrap import Bubblewrap
from holdfast.runtime.sandbox.landlock import Landlock
from holdfast.runtime.sandbox.settings import BoxSettings, SandboxUnavailable


class Mechanism(Protocol):
    """One way to confine processes. An object without state."""

    @property
    def name(self) -> str:
        """The mechanism's name in `SandboxedRuntime(mechanism=...)`."""
        ...

    def missing(self) -> str:
        """Return the reason why the mechanism cannot be used on this machine, and how to get it;
        "" if it works. The answer comes from a box that was really started, once per process."""
        ...

    def refuses(self, box: BoxSettings) -> str:
        """Return the reason why the mechanism cannot make this box; "" if it can."""
        ...

    def home(self, private: Path) -> str:
        """Return the home folder in a box with this private folder."""
        ...

    def launcher(self, box: BoxSettings) -> BoxLauncher:
        """Return a launcher, each of whose processes is the first one of a new box. All that a box
        has started ends with its first process, or with the thread that started it."""
        ...


MECHANISMS: tuple[Mechanism, ...] = (Bubblewrap(), Landlock())
"""The mechanisms in the order in which `auto` tries them."""


def choose(name: str, box: BoxSettings) -> Mechanism:
    """Return the mechanism with this name, or the first that works here for `auto`. Raises
    `ConfigurationError` for an unknown name, `SandboxUnavailable` if none works."""
    names = [mechanism.name for mechanism in MECHANISMS]
    if name != "auto" and name not in names:
        raise ConfigurationError(
            f"Unknown sandbox mechanism {name!r}. Choose one of: auto, {', '.join(names)}."
        )
    problems: list[str] = []
    for mechanism in MECHANISMS:
        if name in ("auto", mechanism.name):
            problem = mechanism.missing() or mechanism.refuses(box)
            if not problem:
                return mechanism
            problems.append(f"{mechanism.name}: {problem}")
    raise SandboxUnavailable("No sandbox can be made on this machine. " + " ".join(problems))
