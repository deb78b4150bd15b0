"""The list of all checks of a wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.testing.wires import answer_checks as answers
from holdfast.testing.wires import request_checks as requests
from holdfast.testing.wires.exchanges import RecordedExchange
from holdfast.testing.wires.reading import Reader


class ExchangeCheck(NamedTuple):
    """One check of a wire with one exchange. The third argument of `run` is the largest number of
    mutations to read."""

    name: str
    run: Callable[[Reader, RecordedExchange, int], None]
    applies: Callable[[RecordedExchange], bool] = lambda exchange: True


def _has_answer(exchange: RecordedExchange) -> bool:
    return any(response.status == 200 for response in exchange.responses)


def _has_stream(exchange: RecordedExchange) -> bool:
    return any(response.is_stream for response in exchange.responses)


def _has_both_forms(exchange: RecordedExchange) -> bool:
    return exchange.streamed is not None


CHECKS = (
    ExchangeCheck("reading", answers.check_reading),
    ExchangeCheck("streamed", answers.check_streamed, _has_both_forms),
    ExchangeCheck("cuts", answers.check_cuts, _has_stream),
    ExchangeCheck("truncation", answers.check_truncation, _has_stream),
    ExchangeCheck("mutations", answers.check_mutations),
    ExchangeCheck("additions", answers.check_additions, _has_answer),
    ExchangeCheck("return", requests.check_return, _has_answer),
    ExchangeCheck("requests", requests.check_requests, _has_answer),
)
WIRE_CHECKS: Mapping[str, Callable[[Reader], None]] = {
    "calls": requests.check_calls,
    "content": requests.check_content,
    "head": requests.check_head,
    "errors": requests.check_errors,
}
