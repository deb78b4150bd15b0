"""`LentModel`: the agent's model as its tools, hooks and condensers get it, within the budgets of
the conversation's tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast import events as ev
from holdfast.agent import tokens
from holdfast.content import Usage
from holdfast.conversation.budget import ESTIMATE_FACTOR, fair
from holdfast.conversation.journal import Journal
from holdfast.errors import HoldfastError
from holdfast.llm.completion import Completion
from holdfast.tools import Cancellation

LLM_NOTE = "llm"
"""The `about` of a note that records a model call of a tool or a hook."""


class LentModel(msgspec.Struct, frozen=True, eq=False):
    """A model whose calls are reserved and settled in the budgets of the tree, and counted.

    With `in_condensation` the `HistoryCondensed` event of the caller carries the usage; otherwise
    each call writes a `NoteRecorded`.
    """

    wrapped: Any
    _journal: Journal
    _in_condensation: bool = False

    def completion(
        self,
        messages: Any,
        tools: Sequence[Any] = (),
        *,
        cancelled: Cancellation | None = None,
        **more: Any,
    ) -> Completion:
        """Return the wrapped model's completion. Raises `LimitExceeded` too. An answer that
        arrives after the conversation is closed is not counted."""
        secrets = self._journal.secrets
        if secrets is not None:  # a transcript has what was journaled, and so masked
            messages, more = secrets.mask_value(messages), secrets.mask_value(more)
        ask = partial(self.wrapped.completion, messages, tools, cancelled=cancelled, **more)
        return self._counted(ask, (messages, tools, more.get("system")), cancelled)

    @property
    def compact(self) -> Callable[..., Completion] | None:
        """`LLM.compact` of the wrapped model, counted like a completion; None if it has none."""
        return self._compact if callable(getattr(self.wrapped, "compact", None)) else None

    def _compact(
        self, messages: Any, *, cancelled: Cancellation | None = None, **more: Any
    ) -> Completion:
        secrets = self._journal.secrets
        if secrets is not None:
            messages, more = secrets.mask_value(messages), secrets.mask_value(more)
        ask = partial(self.wrapped.compact, messages, cancelled=cancelled, **more)
        answer = self._counted(ask, (messages, (), more.get("system")), cancelled)
        return answer if secrets is None else secrets.mask_value(answer)

    def _counted(
        self,
        ask: Callable[[], Completion],
        request: tuple[Any, Sequence[Any], str | None],
        cancelled: Cancellation | None,
    ) -> Completion:
        """Make a call within the budgets, and note its usage unless the caller does."""
        spending = self._journal.spending
        if spending is None or not spending.counts_amounts:
            answer = ask()
        else:
            token = cancelled or Cancellation()
            size = _size(*request)
            answer = spending.ask_beside(size, self.wrapped, token, ask, self._in_condensation)
        if not self._in_condensation:
            self._note(answer)
        return answer

    def _note(self, answer: Completion) -> None:
        usage, cost = fair(answer.usage, answer.cost)
        if usage != Usage() or cost:
            with suppress(HoldfastError), self._journal as journal:
                journal.add(
                    ev.NoteRecorded,
                    about=LLM_NOTE,
                    text="A tool or a hook asked the model.",
                    usage=usage,
                    cost=cost,
                    model=answer.model or self.wrapped.model or "unknown",
                )

    def replace(self, **more: Any) -> LentModel:
        return replace(self, wrapped=self.wrapped.replace(**more))

    # --- members of the wrapped model; the last three are only those of Holdfast's own models ---

    @property
    def model(self) -> str:
        return self.wrapped.model

    def parameters(self) -> dict[str, Any]:
        return self.wrapped.parameters()

    def cost(self, usage: Usage) -> float | None:
        return self.wrapped.cost(usage)

    def close(self) -> None:
        self.wrapped.close()

    @property
    def info(self) -> Any:
        return getattr(self.wrapped, "info", None)

    @property
    def models(self) -> Any:
        return getattr(self.wrapped, "models", None)

    @property
    def sees(self) -> bool | None:
        return getattr(self.wrapped, "sees", None)

    def __repr__(self) -> str:
        return repr(self.wrapped)


def _size(messages: Any, tools: Sequence[Any], system: str | None) -> int:
    """Return a high estimate of a request's tokens."""
    found = tokens.text(system or "") + sum(
        [len(msgspec.json.encode(tool.input_schema)) // 3 + 50 for tool in tools]
    )
    if isinstance(messages, str):
        return int((found + tokens.text(messages)) * ESTIMATE_FACTOR)
    items = getattr(messages, "items", messages)
    return found + sum([len(msgspec.json.encode(item, enc_hook=str)) // 3 + 10 for item in items])
