"""The agent's model as tools and hooks are handed it: each call is journaled as a `Note`, and so counted."""

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
"""The `about` of a note that tells of a model call of a tool or a hook."""


class Counted:
    """`wrapped`, whose answers are noted in `journal`. All else is the model's own."""

    def __init__(self, wrapped: Any, journal: Journal) -> None:
        self.wrapped = wrapped
        self._journal = journal

    def completion(self, messages: Any, tools: Sequence[Any] = (), **more: Any) -> Completion:
        """As the model's own. An answer that comes when the conversation is closed is counted nowhere."""
        answer = self.wrapped.completion(messages, tools, **more)
        usage, cost = fair(answer.usage, answer.cost)
        if usage != Usage() or cost:
            model = answer.model or self.wrapped.model or "unknown"
            with suppress(HoldfastError), self._journal as journal:
                journal.add(ev.Note, about=LLM_NOTE, text="A tool or a hook asked the model.", usage=usage, cost=cost, model=model)
        return answer

    def replace(self, **more: Any) -> Counted:
        """As the model's own, counted like it."""
        return Counted(self.wrapped.replace(**more), self._journal)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def __repr__(self) -> str:
        return repr(self.wrapped)
