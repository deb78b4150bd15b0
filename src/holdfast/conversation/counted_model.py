"""The agent's model for tools and hooks: each call is journaled as a `NoteRecorded`, so that its
usage counts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast import events as ev
from holdfast.content import Usage
from holdfast.conversation.budget import fair
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.conversation.journal import Journal
    from holdfast.llm.completion import Completion

LLM_NOTE = "llm"
"""The `about` of a note that records a model call of a tool or a hook."""


class CountedModel:
    """A wrapper of a model that notes each answer's usage in `journal`. Other attributes are the
    wrapped model's."""

    def __init__(self, wrapped: Any, journal: Journal) -> None:
        self.wrapped = wrapped
        self._journal = journal

    def completion(self, messages: Any, tools: Sequence[Any] = (), **more: Any) -> Completion:
        """Return the wrapped model's completion. An answer that arrives after the conversation
        is closed is not counted."""
        answer = self.wrapped.completion(messages, tools, **more)
        usage, cost = fair(answer.usage, answer.cost)
        if usage != Usage() or cost:
            model = answer.model or self.wrapped.model or "unknown"
            with suppress(HoldfastError), self._journal as journal:
                journal.add(
                    ev.NoteRecorded,
                    about=LLM_NOTE,
                    text="A tool or a hook asked the model.",
                    usage=usage,
                    cost=cost,
                    model=model,
                )
        return answer

    def replace(self, **more: Any) -> CountedModel:
        """Return a copy with other settings, counted in the same way."""
        return CountedModel(self.wrapped.replace(**more), self._journal)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def __repr__(self) -> str:
        return repr(self.wrapped)
