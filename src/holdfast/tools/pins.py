"""Pinning: a remote tool's definition is remembered when it is approved; another one under its name is held back until it is, too."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.tools.tool import Tool

_sorted = msgspec.json.Encoder(order="sorted")


class Pins:
    """Which definitions were approved, by the tools' canonical names. In memory, or in the JSON file at `path`, written at each approval.

    A tool that is seen for the first time is approved by that, or with `first="hold"` held back like one that has changed. Thread-safe. Raises
    `ConfigurationError` for a file that cannot be read.
    """

    def __init__(self, path: str | Path | None = None, *, first: str = "approve") -> None:
        if first not in ("approve", "hold"):
            raise ConfigurationError(f"Pins: first takes 'approve' or 'hold', not {first!r}.")
        self.path = None if path is None else Path(path)
        self._first = first
        self._lock = threading.Lock()
        self._held: dict[str, dict[str, Any]] = {}
        if self.path is not None and self.path.exists():
            try:
                self._held = msgspec.json.decode(self.path.read_bytes(), type=dict[str, dict[str, Any]])
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"Pins: {str(self.path)!r} is no file of pins: {error}.") from None

    def check(self, tool: Tool) -> str:
        """ "" if this definition is approved, else what is other than in the one that was."""
        now = _definition(tool)
        with self._lock:
            known = self._held.get(tool.name)
        if known is None:
            if self._first == "approve":
                self.approve(tool)
                return ""
            return "it is new"
        return "" if known["hash"] == _hash(now) else _difference(known["definition"], now)

    def approve(self, tool: Tool) -> None:
        """Let this definition through from here on. Raises `OSError` if the file cannot be written."""
        now = _definition(tool)
        with self._lock:  # it guards the file
            held = {**self._held, tool.name: {"hash": _hash(now), "definition": now}}
            if self.path is not None:
                beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
                beside.write_bytes(msgspec.json.format(_sorted.encode(held), indent=1) + b"\n")
                beside.replace(self.path)
            self._held = held

    def __repr__(self) -> str:
        return f"Pins({len(self._held)} tools{'' if self.path is None else f', {str(self.path)!r}'})"


def _definition(tool: Tool) -> dict[str, Any]:
    found = {
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": msgspec.to_builtins(tool.annotations),
    }
    return msgspec.json.decode(_sorted.encode(found))


def _hash(definition: dict[str, Any]) -> str:
    from hashlib import sha256

    return sha256(_sorted.encode(definition)).hexdigest()


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What changed, by its places, in a few words."""
    parts: list[str] = []
    for key in now:
        if before.get(key) != now[key]:
            parts.extend(_places(key, before.get(key), now[key]))
    return "; ".join(parts[:5]) + (f"; and {len(parts) - 5} more" if len(parts) > 5 else "")


def _places(place: str, before: Any, now: Any) -> list[str]:
    if not isinstance(before, dict) or not isinstance(now, dict):
        return [f"{place} was {_short(before)}, is {_short(now)}"]
    old, new = cast("dict[str, Any]", before), cast("dict[str, Any]", now)
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    return [found for key in changed for found in _places(f"{place}.{key}", old.get(key), new.get(key))]


def _short(value: Any) -> str:
    text = _sorted.encode(value).decode()
    return text if len(text) <= 120 else f"{text[:120]}..."
