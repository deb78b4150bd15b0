"""`Case`: one task of a suite, with the expectations on its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast.tools.arguments import wrong
from holdfast.tools.results import clean

_MAX_ID = 200


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One case of a suite.

    Args:
        id: Its name, unique in the suite.
        input: The message to the agent, or several. The next one is sent when the agent rests.
        expected: The expected answer, for scorers; any JSON value.
        files: Files of the agent's folder by their path in it: the text, or `{"file": path}` with
            a path beside the suite.
        score: Scorers by name, each with its setting: `{"contains": "42", "command": "pytest"}`.
        metadata: Any further values; scorers see them.
    """

    id: str
    input: str | tuple[str, ...]
    expected: Any = None
    files: Mapping[str, str | Mapping[str, str]] = {}
    score: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        if isinstance(self.input, list):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            msgspec.structs.force_setattr(self, "input", tuple(cast("list[Any]", self.input)))
        id: Any = self.id
        is_text = isinstance(id, str) and id.strip() == id and id.isprintable() and clean(id) == id
        if not is_text or not 0 < len(id) <= _MAX_ID:
            raise wrong("Case: id", f"a printable text of up to {_MAX_ID} characters", id)
        if not self.messages or not all(
            isinstance(one, str) and one.strip()  # pyright: ignore[reportUnnecessaryIsInstance]
            for one in self.messages
        ):
            raise wrong(f"case {id!r}: input", "a text, or a list of texts", self.input)

    @property
    def messages(self) -> tuple[str, ...]:
        """The messages to the agent."""
        return (self.input,) if isinstance(self.input, str) else self.input
