"""The outcome of a rewind (`Conversation.rewind`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

_MAX_SHOWN = 10  # names in a sentence


class PutBack(msgspec.Struct, frozen=True, rename="camel"):
    """The outcome of putting files back. Paths are relative to the work folder."""

    changed: tuple[str, ...] = ()
    """Files that are as they were."""
    kept: tuple[str, ...] = ()
    """Files with changes from elsewhere since the last call, which were left alone."""
    failed: tuple[str, ...] = ()
    """Files that could not be written."""
    left_out: tuple[str, ...] = ()
    """Files that are too large for a snapshot, and nested repositories: not undone."""
    without_snapshot: tuple[str, ...] = ()
    """Ids of calls whose effects on files are not known, and not undone."""
    outside: Mapping[str, int] = {}
    """The calls that may have acted outside of the work folder, which is not undone: their number
    by tool."""

    def __str__(self) -> str:
        """Return the outcome in sentences."""
        parts = [f"{_names(self.changed)} put back." if self.changed else "No file was put back."]
        for names, text in (
            (self.kept, "changed elsewhere since, and left alone"),
            (self.failed, "could not be written"),
            (self.left_out, "not in the snapshots, and not undone (too large, or a repository)"),
            (self.without_snapshot, "calls without a snapshot, which are not undone"),
        ):
            if names:
                parts.append(f"{_names(names)}: {text}.")
        if self.outside:
            tools = ", ".join(f"{name} ({count})" for name, count in self.outside.items())
            parts.append(
                f"Not undone: what these calls did outside of the work folder, or to files that git"
                f" ignores: {tools}."
            )
        return " ".join(parts)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(names[:_MAX_SHOWN]) + more


class Rewound(NamedTuple, Generic[T]):
    """The outcome of a rewind: the conversation that continues, and the changes of the files."""

    conversation: T
    files: PutBack
