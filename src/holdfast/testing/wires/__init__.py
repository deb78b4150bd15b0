"""A conformance kit for wires: the protocols of model providers.

A wire (`holdfast.llm.wires.protocol.Wire`) is held to recordings of its provider's answers, and to
thousands of changed ones. With pytest:

    EXCHANGES = wires.load("recordings/")

    @pytest.mark.parametrize("case", wires.cases(MyWire(), EXCHANGES), ids=str)
    def test_my_wire(case):
        case.run()

Or without: `assert not wires.check(MyWire(), EXCHANGES).failures`.

- `reading`: each answer and error is read as the recording's `expected` says. The answer can be
  journaled.
- `streamed`: an answer that was recorded in both forms is the same `Completion` in both.
- `cuts`: a stream gives the same answer however its bytes are cut, with any line ends.
- `truncation`: a stream that breaks off is an error or the whole answer, never a shorter one.
- `mutations`: an answer with missing, wrong, broken or deeply nested values, or with its events
  missing or in another order, is a legal answer or an `LLMError`. Nothing hangs.
- `additions`: unknown fields and events, comments and other spellings of the JSON change nothing.
- `return`: the next request has what the provider needs of its answer: ids, signatures, native
  parts.
- `requests`: requests are JSON, always the same bytes, and begin with the bytes of the shorter
  history, so the provider's prompt cache finds it.
- `calls`: ids of calls are legal, unique, and the same in a call and its result.
- `content`: every kind of content is sent, or refused with `ConfigurationError`.
- `head`: every parameter is taken, or refused with `ConfigurationError`.
- `errors`: each status gives the right class of error, with its `status` and `retry_after`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from holdfast.llm.wires.protocol import Wire
from holdfast.testing.wires.checks import CHECKS, WIRE_CHECKS
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

LIMIT = 1000  # changed answers of one exchange that one check reads


class WireCase:
    """One check of a wire, with one exchange or with none. Its text is its name."""

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
    """A check that failed. `case` is its name."""

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
    wire: Wire, exchanges: Iterable[RecordedExchange] = (), limit: int = LIMIT
) -> list[WireCase]:
    """Return all checks of a wire.

    Args:
        wire: The wire: an object or a module.
        exchanges: Recordings of its provider. Without any, only requests and errors are checked.
        limit: The largest number of changed answers that one check of one exchange reads. They
            are spread evenly over all changes.
    """
    return list(_cases(wire, exchanges, limit))


def _cases(wire: Wire, exchanges: Iterable[RecordedExchange], limit: int) -> Iterator[WireCase]:
    for name, alone in WIRE_CHECKS.items():
        reader = Reader(wire)
        yield WireCase(name, reader, lambda reader=reader, alone=alone: alone(reader))
    for exchange in exchanges:
        for check in CHECKS:
            if check.applies(exchange):
                reader = Reader(wire)
                yield WireCase(
                    f"{exchange.name}-{check.name}",
                    reader,
                    lambda reader=reader, check=check, exchange=exchange: check.run(
                        reader, exchange, limit
                    ),
                )


def check(wire: Wire, exchanges: Iterable[RecordedExchange] = (), limit: int = LIMIT) -> WireReport:
    """Run all checks of `cases` and return their result."""
    failures: list[CheckFailure] = []
    found = cases(wire, exchanges, limit)
    for case in found:
        try:
            case.run()
        except CheckFailed as error:
            failures.append(CheckFailure(case.name, str(error)))
    return WireReport(len(found) - len(failures), tuple(failures))
