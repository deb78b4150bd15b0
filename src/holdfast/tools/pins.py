"""Pinned definitions of remote tools: a changed definition is held back until it is approved."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError, StoreError
from holdfast.nesting import decode_json
from holdfast.tools.arguments import wrong
from holdfast.tools.results import cut
from holdfast.tools.tool import Tool

_MAX_VALUE_CHARS = 120  # shown of a value
_sorted = msgspec.json.Encoder(order="sorted")


class _Pin(msgspec.Struct, frozen=True):
    hash: str
    definition: dict[str, Any]


class Pins:
    """The approved definitions by canonical tool name, in memory or in the JSON file at `path`. Its
    folder is created if needed.

    A tool that is new is approved at once; with `first="hold"` it is held back like a changed one.
    Thread-safe. Several processes may share a file: each adds its approvals under a lock on the
    file `{path}.lock` and honours those of the others.

    Raises `ConfigurationError` for a file that cannot be read.
    """

    def __init__(self, path: str | Path | None = None, *, first: str = "approve") -> None:
        if first not in ("approve", "hold"):
            raise wrong("Pins: first", "'approve' or 'hold'", first)
        self.path = None if path is None else Path(path)
        self._first = first
        self._lock = threading.Lock()
        self._approved: dict[str, _Pin] = {}
        # By tool name: the hash of the first definition that `check` described since the last
        # approval.
        self._described: dict[str, str] = {}
        self._read()

    def check(self, tool: Tool) -> str:
        """Return "" if the tool's definition is approved, else a description of the change. Two
        definitions never get the same description. Raises `StoreError` if the file cannot be
        written, `ConfigurationError` if it is no longer a file of pins."""
        return self.check_all([tool]).get(tool.name, "")

    def check_all(self, tools: Iterable[Tool]) -> dict[str, str]:
        """Return the change of each tool that is not approved. New tools are written at once."""
        pins = {tool.name: _pin(tool) for tool in tools}

        def unapproved() -> dict[str, _Pin]:
            approved = self._approved
            return {
                name: pin
                for name, pin in pins.items()
                if name not in approved or approved[name].hash != pin.hash
            }

        with self._lock:
            if unapproved():
                self._read()  # another process may have approved it
            if self._first == "approve":
                self._write(pins, only_new=True)
            return {name: self._change(name, pin) for name, pin in unapproved().items()}

    def approve(self, tool: Tool) -> None:
        """Approve this definition from now on. Raises as `check` does."""
        with self._lock:  # also guards the file
            self._write({tool.name: _pin(tool)})
            self._described.pop(tool.name, None)

    def __repr__(self) -> str:
        path = "" if self.path is None else f", {str(self.path)!r}"
        return f"Pins({len(self._approved)} tools{path})"

    def _change(self, name: str, pin: _Pin) -> str:
        approved = self._approved.get(name)
        text, whole = "it is new", True
        if approved is not None:
            text, whole = _difference(approved.definition, pin.definition)
        # A person approves this text, so no later definition may have the same one.
        unique = self._described.setdefault(name, pin.hash) == pin.hash and whole
        return text if unique else f"{text} (definition {pin.hash})"

    # --- the file ---

    def _read(self) -> None:
        if self.path is None:
            return
        try:
            self._approved = decode_json(self.path.read_bytes(), dict[str, _Pin])
        except FileNotFoundError:
            # nothing was approved yet, or the file was removed: keep the pins in memory
            return
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"Pins: {str(self.path)!r} is not a file of pins: {error}."
            ) from None

    def _write(self, pins: dict[str, _Pin], only_new: bool = False) -> None:
        """Add pins. With `only_new` those of tools with an approved definition are left out."""

        def merged() -> dict[str, _Pin]:
            return pins | self._approved if only_new else self._approved | pins

        if self.path is None or (only_new and pins.keys() <= self._approved.keys()):
            self._approved = merged()
            return
        try:
            with _locked(self.path):
                self._read()
                all_pins = merged()
                beside = self.path.with_name(f"{self.path.name}.new")
                with beside.open("wb") as file:
                    file.write(msgspec.json.format(_sorted.encode(all_pins), indent=1) + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                beside.replace(self.path)
        except OSError as error:
            raise StoreError(
                f"Pins: {str(self.path)!r} cannot be written: {describe_error(error)}."
            ) from error
        self._approved = all_pins


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    # The lock file is never removed: removing it would let two processes hold the lock.
    with path.with_name(f"{path.name}.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- definitions ---


def definition(tool: Tool) -> dict[str, Any]:
    """Return everything that a remote service declares about a tool, as JSON values."""
    declared = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": msgspec.to_builtins(tool.annotations),
    }
    remote = getattr(tool, "remote_name", None)
    if remote is not None and remote != tool.name.partition(".")[2]:
        declared["remoteName"] = remote  # two remote names may map to one local name
    return msgspec.json.decode(_sorted.encode(declared))


def _pin(tool: Tool) -> _Pin:
    from hashlib import sha256

    pinned = definition(tool)
    del pinned["name"]
    return _Pin(sha256(_sorted.encode(pinned)).hexdigest(), pinned)


def _difference(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, bool]:
    """Return a short description of the changes by place, and whether it is complete."""
    parts = _places("", before, now)
    if not parts:
        return "its notation has changed", False
    more = f"; and {len(parts) - 5} more" if len(parts) > 5 else ""
    text = "; ".join(part for part, _ in parts[:5]) + more
    return text, not more and all(whole for _, whole in parts)


def _places(place: str, before: Any, now: Any) -> list[tuple[str, bool]]:
    if isinstance(before, dict) and isinstance(now, dict):
        old, new = cast("dict[str, Any]", before), cast("dict[str, Any]", now)
        return [
            change
            for key in sorted({*old, *new})
            for change in _places(f"{place}.{key}", old.get(key), new.get(key))
        ]
    was, is_ = _sorted.encode(before).decode(), _sorted.encode(now).decode()
    if was == is_:  # compared as JSON, because True == 1 in Python
        return []
    whole = max(len(was), len(is_)) <= _MAX_VALUE_CHARS
    texts = [cut(text, _MAX_VALUE_CHARS) for text in (was, is_)]
    return [(f"{place[1:]} was {texts[0]}, is {texts[1]}", whole)]
