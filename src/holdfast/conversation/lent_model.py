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
from holdfast.conversation.budget import ESTIMATE_FACTOR, LLM_NOTE, OTHER_LLM_NOTE, fair
from holdfast.conversation.journal import Journal
from holdfast.errors import HoldfastError
from holdfast.llm.completion import Completion
from holdfast.tools import Cancellation


class ModelSpending(msgspec.Struct, frozen=True):
    """The tokens and the cost (US dollars, None if unknown) of calls of a model."""

    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""

    def __add__(self, other: ModelSpending) -> ModelSpending:
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        return ModelSpending(self.usage + other.usage, cost, other.model or self.model)

    def note(self, journal: Journal, about: str, text: str) -> None:
        """Append a note on the calls, unless they took nothing. A journal that can take none, such
        as a closed one, gets none."""
        if self.usage == Usage() and not self.cost:
            return
        with suppress(HoldfastError), journal:
            journal.add(
                ev.NoteRecorded,
                about=about,
                text=text,
                usage=self.usage,
                cost=self.cost,
                model=self.model or "unknown",
            )


class LentModel(msgspec.Struct, frozen=True, eq=False):
    """A model whose calls are reserved and settled in the budgets of the tree, and counted. Each
    call writes a `NoteRecorded`, or is added to the calls of a condensation, which its caller
    writes. A model other than the agent's is not reserved, because its longest answer may be
    unknown; its usage is settled when it is journaled.
    """

    wrapped: Any
    _journal: Journal
    _condensation: list[ModelSpending] | None = None
    _is_reserved: bool = True
    _purpose: str = "A tool or a hook asked the model."

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
        if secrets is not None:  # a transcript has journaled, so masked, events
            messages, more = secrets.mask_value(messages), secrets.mask_value(more)
        ask = partial(self.wrapped.completion, messages, tools, cancelled=cancelled, **more)
        return self._count_call(ask, (messages, tools, more.get("system")), cancelled)

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
        answer = self._count_call(ask, (messages, (), more.get("system")), cancelled)
        return answer if secrets is None else secrets.mask_value(answer)

    def _count_call(
        self,
        ask: Callable[[], Completion],
        request: tuple[Any, Sequence[Any], str | None],
        cancelled: Cancellation | None,
    ) -> Completion:
        """Make a call within the budgets, and note its usage unless the caller does."""
        spending = self._journal.spending
        if spending is None or not spending.counts_amounts or not self._is_reserved:
            answer = ask()
        else:
            token = cancelled or Cancellation()
            size = _size(*request)
            in_condensation = self._condensation is not None
            answer = spending.ask_beside(size, self.wrapped, token, ask, in_condensation)
        cost = answer.cost
        with suppress(Exception):  # of a custom model class
            cost = self.cost(answer.usage) if cost is None else cost
        model = answer.model or self.wrapped.model
        record = ModelSpending(*fair(answer.usage, cost), model)
        if self._condensation is None:
            about = LLM_NOTE if self._is_reserved else OTHER_LLM_NOTE
            record.note(self._journal, about, self._purpose)
        else:
            self._condensation.append(record)
        return answer

    def lend(self, llm: Any) -> LentModel:
        """See `LendsModels.lend`."""
        return self if llm is self.wrapped else LentModel(llm, self._journal, None, False)

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
    count = tokens.text(system or "") + sum(
        [len(msgspec.json.encode(tool.input_schema)) // 3 + 50 for tool in tools]
    )
    if isinstance(messages, str):
        return int((count + tokens.text(messages)) * ESTIMATE_FACTOR)
    items = getattr(messages, "items", messages)
    return count + sum([len(msgspec.json.encode(item, enc_hook=str)) // 3 + 10 for item in items])
