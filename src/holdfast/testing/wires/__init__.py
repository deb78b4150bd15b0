"""A conformance kit for wires: the protocols of model providers.

The kit checks a wire (`holdfast.llm.wires.protocol.Wire`) against recordings of its provider's
answers, and against thousands of mutations of them. With pytest:

    EXCHANGES = wires.load("recordings/")

    @pytest.mark.parametrize("case", wires.cases(MyWire(), EXCHANGES), ids=str)
    def test_my_wire(case):
        case.run()

Or without: `assert not wires.check(MyWire(), EXCHANGES).failures`.

- `reading`: the wire reads each answer and error as the recording's `expected` says. The journal
  can store the answer.
- `streamed`: the plain and the streamed form of an answer give the same `Completion`.
- `cuts`: a stream gives the same answer and the same deltas at any size of its pieces, with any
  line ends.
- `truncation`: a stream that breaks off gives an error or the whole answer, never a shorter one.
- `mutations`: an answer with missing, wrong, broken or deeply nested values, or with missing or
  reordered events, gives a legal answer or an `LLMError`. Nothing hangs.
- `additions`: unknown fields and events, comments and other spellings of the JSON change nothing.
- `return`: the next request contains the ids, signatures and native parts that the provider needs.
- `requests`: requests are JSON. The same history always gives the same bytes. A longer history
  begins with the bytes of a shorter one, so that the provider's prompt cache finds it.
- `calls`: ids of calls are legal and unique. A call and its result have the same id.
- `content`: the wire sends every kind of content, or raises `ConfigurationError`.
- `head`: the wire accepts every parameter, or raises `ConfigurationError`.
- `errors`: each status gives an error of the right class, with its `status` and `retry_after`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.llm.wires import check_members
from holdfast.llm.wires import wire as wire_named
from holdfast.llm.wires.protocol import Wire
from holdfast.testing.wires import answer_checks as answers
from holdfast.testing.wires import request_checks as requests
from holdfast.testing.wires.exchanges import RecordedExchange, RecordedResponse, load, shipped
from holdfast.testing.wires.reading import CheckFailed, Reader, watched

__all__ = [
    "CheckFailed",
    "CheckFailure",
    "RecordedExchange",
    "RecordedResponse",
    "WireCase",
    "WireReport",
    "cases",
    "check",
    "load",
    "shipped",
]

LIMIT = 1000  # mutations of one exchange that one check reads


class _ExchangeCheck(NamedTuple):
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


_CHECKS = (
    _ExchangeCheck("reading", answers.check_reading),
    _ExchangeCheck("streamed", answers.check_streamed, _has_both_forms),
    _ExchangeCheck("cuts", answers.check_cuts, _has_stream),
    _ExchangeCheck("truncation", answers.check_truncation, _has_stream),
    _ExchangeCheck("mutations", answers.check_mutations),
    _ExchangeCheck("additions", answers.check_additions, _has_answer),
    _ExchangeCheck("return", requests.check_return, _has_answer),
    _ExchangeCheck("requests", requests.check_requests, _has_answer),
)
_WIRE_CHECKS: Mapping[str, Callable[[Reader], None]] = {
    "calls": requests.check_calls,
    "content": requests.check_content,
    "head": requests.check_head,
    "errors": requests.check_errors,
}


class WireCase:
    """One check of a wire, with one exchange or with none. `str(case)` is its name."""

    def __init__(self, name: str, reader: Reader, work: Callable[[], None]) -> None:
        self.name = name
        self._reader = reader
        self._work = work

    def run(self) -> None:
        """Run the check. Raises `CheckFailed` (an `AssertionError`)."""
        watched(self._reader, self._work)

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


class CheckFailure(msgspec.Struct, frozen=True):
    """A failed check. `case` is the name of the check."""

    case: str
    reason: str

    def __str__(self) -> str:
        return f"{self.case}: {self.reason}"


class WireReport(msgspec.Struct, frozen=True):
    """The result of all checks of a wire."""

    passed: int
    failures: tuple[CheckFailure, ...]

    def __str__(self) -> str:
        lines = [f"{self.passed} checks passed, {len(self.failures)} failed"]
        return "\n".join([*lines, *map(str, self.failures)])


def cases(
    wire: Wire | str, exchanges: Iterable[RecordedExchange] = (), limit: int = LIMIT
) -> list[WireCase]:
    """Return all checks of a wire. Raises `ConfigurationError` if `wire` is not a wire, or
    `exchanges` are not recordings.

    Args:
        wire: An object or a module with the members of `Wire`, or the name of a wire of Holdfast,
            such as "openai_chat".
        exchanges: Recordings of the provider, as `load` returns them. Without any, the kit checks
            requests and errors only.
        limit: The largest number of mutations that one check of one exchange reads. The kit takes
            them evenly from all mutations.
    """
    return list(_cases(_wire_of(wire), _recorded(exchanges), limit))


def _wire_of(wire: Any) -> Wire:
    if isinstance(wire, str):
        return wire_named(wire)
    if isinstance(wire, type):
        name = wire.__name__
        raise ConfigurationError(f"cases: wire takes an object, not the class {name}: {name}().")
    check_members("cases", wire)
    return wire


def _recorded(exchanges: Any) -> list[RecordedExchange]:
    if isinstance(exchanges, str | os.PathLike):
        raise ConfigurationError(
            f"cases: exchanges takes recordings, not a path: load({exchanges!r})."
        )
    recorded = list(exchanges)
    for one in recorded:
        if not isinstance(one, RecordedExchange):
            raise ConfigurationError(
                f"cases: exchanges takes what load(path) returns, not a list with {one!r}."
            )
    return recorded


def _cases(wire: Wire, exchanges: Iterable[RecordedExchange], limit: int) -> Iterator[WireCase]:
    for name, alone in _WIRE_CHECKS.items():
        reader = Reader(wire)
        yield WireCase(name, reader, lambda reader=reader, alone=alone: alone(reader))
    for exchange in exchanges:
        for check in _CHECKS:
            if check.applies(exchange):
                reader = Reader(wire)
                yield WireCase(
                    f"{exchange.name}-{check.name}",
                    reader,
                    lambda reader=reader, check=check, exchange=exchange: check.run(
                        reader, exchange, limit
                    ),
                )


def check(
    wire: Wire | str, exchanges: Iterable[RecordedExchange] = (), limit: int = LIMIT
) -> WireReport:
    """Run all checks of `cases`, which has the same arguments, and return the result."""
    failures: list[CheckFailure] = []
    all_cases = cases(wire, exchanges, limit)
    for case in all_cases:
        try:
            case.run()
        except CheckFailed as error:
            failures.append(CheckFailure(case.name, str(error)))
    return WireReport(len(all_cases) - len(failures), tuple(failures))
