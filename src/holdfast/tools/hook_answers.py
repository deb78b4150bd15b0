"""The answers of hooks, and the places at which an agent asks its hooks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class HookPlace(NamedTuple):
    """The permitted answers at one side of a place: the keys of changes in a command's JSON, and
    whether the hook may deny and add."""

    keys: tuple[str, ...] = ()
    denies: bool = True
    adds: bool = True


PLACES: Mapping[tuple[str, str], HookPlace] = MappingProxyType(
    {
        ("tool", "before"): HookPlace(("arguments", "result")),
        ("tool", "after"): HookPlace(("result",)),
        ("model", "before"): HookPlace(),
        ("model", "after"): HookPlace(("text", "calls"), adds=False),
        ("message", "before"): HookPlace(("text", "content")),
        ("stop", "before"): HookPlace(adds=False),
        ("condensation", "before"): HookPlace(),
        ("start", "before"): HookPlace(denies=False),
        ("end", "before"): HookPlace(denies=False, adds=False),
    }
)
FORMATS = ("holdfast", "claude-code", "openhands")
"""The forms of JSON that a hook's command can read and print."""
HOOK_POINTS = tuple(dict.fromkeys(on for on, _ in PLACES))


class HookAnswer(NamedTuple):
    """The answer of a hook: the reason of a denial, the text to add, and the change, if any."""

    deny: str | None = None
    add: str = ""
    change: Any = None


NOTHING = HookAnswer()


class HookFailed(Exception):
    """The failure of a hook. The message says how it failed, such as `failed: TypeError: ...`."""
