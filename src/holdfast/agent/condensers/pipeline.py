"""`Pipeline`: condensers in order, each used only if the ones before it did not make enough
room."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.agent.condenser import Condensed, ask, check_begin, is_condenser
from holdfast.agent.condensers.condenser_input import CondenserInput
from holdfast.content import answer_seq
from holdfast.errors import LLMError
from holdfast.tools import Tool
from holdfast.tools.arguments import wrong

_log = logging.getLogger("holdfast")


class Pipeline(msgspec.Struct, frozen=True):
    """A sequence of condensers, cheapest first.

    `Pipeline([ToolOutputCondenser(), LLMCondenser()])` trims outputs, and asks a model for a
    summary only if trimming is not enough. A condenser whose model fails is skipped. A condenser of
    your own sees the journal, without the effect of the condensers before it.

    Args:
        condensers: The condensers in order.
        at: The request size from which the pipeline runs, instead of those of its condensers.
        to: The share of `at` that the request shrinks to.
    """

    condensers: Sequence[Any]
    at: int | float | None = 0.8
    to: float = 0.5

    def __post_init__(self) -> None:
        check_begin("Pipeline", self.at, self.to)
        condensers: Any = self.condensers
        several = isinstance(condensers, list | tuple) and bool(self.condensers)
        if not several or not all(map(is_condenser, self.condensers)):
            raise wrong("Pipeline: condensers", "a list of condensers", self.condensers)
        msgspec.structs.force_setattr(self, "condensers", tuple(self.condensers))

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools that the agent gets with these condensers."""
        tools: list[Tool] = []
        for condenser in self.condensers:
            tools += getattr(condenser, "tools", ())
        return tuple({tool.name: tool for tool in tools}.values())

    def shorten(self, work: CondenserInput) -> Condensed | None:
        """Return the combined answers of the condensers, or None. See `Condenser`."""
        result: Condensed | None = None
        failure: LLMError | None = None
        for condenser in self.condensers:
            if result is not None and work.tokens <= work.target:
                break
            try:
                condensed = ask(condenser, work)
            except LLMError as error:
                if work.cancelled:
                    raise
                _log.warning("the pipeline skips %s: %s", type(condenser).__name__, error)
                failure = error
                continue
            if condensed is not None:
                work = work.after(condensed)
                result = condensed if result is None else _merge(result, condensed)
        if result is None and failure is not None:
            raise failure
        return result


def _merge(first: Condensed, second: Condensed) -> Condensed:
    hidden = tuple(sorted({*first.hidden, *second.hidden}))
    trimmed = {
        call_id: characters
        for call_id, characters in (first.trimmed | second.trimmed).items()
        if answer_seq(call_id) not in hidden
    }
    cost = None if first.cost is None or second.cost is None else first.cost + second.cost
    summary = second.summary if second.hidden else first.summary
    usage, model = first.usage + second.usage, second.model or first.model
    replaced = tuple(sorted({*first.replaced, *second.replaced}))
    compaction = second.compaction or first.compaction
    return Condensed(hidden, summary, trimmed, usage, cost, model, replaced, compaction)
