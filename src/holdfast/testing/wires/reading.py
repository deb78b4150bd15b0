"""`Reader`: reads recorded answers through a wire in the same way as `LLM`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NoReturn, cast

from holdfast.content import Message, TextContent, ToolCall, ToolResult
from holdfast.errors import LLMError
from holdfast.llm.completion import Completion, Delta
from holdfast.llm.transcript import Transcript
from holdfast.llm.wires.protocol import Wire
from holdfast.llm.wires.streams import feed_piece
from holdfast.testing.wires.exchanges import RecordedResponse

HANG_SECONDS = 20.0  # one answer of a recording is read in milliseconds

# Every wire takes this parameter: marks for a provider's cache move from request to request.
_PARAMETERS = {"prompt_caching": False}

Outcome = Completion | LLMError


class CheckFailed(AssertionError):
    """A wire violates its protocol."""


class Reader:
    """A reader of answers through one wire.

    `doing` describes the current reading, `count` the number of readings so far. A reading that
    raises anything but an `LLMError` raises `CheckFailed`.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.doing = ""
        self.count = 0

    def begin(self, doing: str) -> None:
        """Start a reading: set `doing` and increment `count`."""
        self.doing = doing
        self.count += 1

    def read(self, response: RecordedResponse, doing: str = "the recorded answer") -> Outcome:
        """Read a recorded response. Return the answer, or the error that the wire raises."""
        if response.status != 200:
            self.begin(doing)
            headers = {name.lower(): value for name, value in response.headers.items()}
            return self._error(lambda: self.wire.error(response.status, headers, response.data))
        if response.is_stream:
            return self.stream([response.data], doing)
        return self.plain(response.data, doing)

    def plain(self, data: bytes, doing: str) -> Outcome:
        """Read the body of a plain response."""
        self.begin(doing)
        return self._guarded(lambda: self.wire.parse(data))

    def stream(
        self,
        chunks: Iterable[bytes],
        doing: str,
        on_delta: Callable[[Delta], object] = lambda _: None,
    ) -> Outcome:
        """Read a stream that consists of `chunks`."""
        self.begin(doing)

        def read() -> Completion:
            parser = self.wire.stream()
            for chunk in chunks:
                if not feed_piece(parser, chunk, on_delta):
                    break
            return parser.finish()

        return self._guarded(read)

    def _guarded(self, read: Callable[[], Completion]) -> Outcome:
        try:
            answer = read()
        except LLMError as error:
            return error
        except Exception as error:
            self.fail(f"the wire raised {error!r}, which is not an LLMError", error)
        if not isinstance(cast(object, answer), Completion):
            self.fail(f"the wire returned {answer!r}, which is not a Completion")
        return answer

    def _error(self, read: Callable[[], LLMError]) -> LLMError:
        try:
            error = read()
        except Exception as raised:
            self.fail(f"`error` raised {raised!r}; it returns an LLMError", raised)
        if not isinstance(cast(object, error), LLMError):
            self.fail(f"`error` returned {error!r}, which is not an LLMError")
        return error

    def fail(self, problem: str, cause: BaseException | None = None) -> NoReturn:
        """Raise `CheckFailed` with the current reading and the problem."""
        raise CheckFailed(f"{self.doing}: {problem}") from cause

    def request(self, items: Sequence[Any], model: str = "", stream: bool = False) -> bytes:
        """Return the request for these items of a transcript, as `LLM` makes it."""
        wire = self.wire
        head = wire.head(model or "m", "Be brief.", (), _PARAMETERS, {})
        return wire.body(head, self.fragments(items, model), stream)

    def fragments(self, items: Sequence[Any], model: str = "") -> Sequence[bytes]:
        """Return the encoded items of a transcript."""
        return Transcript(items).fragments(self.wire, {}, model or "m")


def text_message(text: str, role: Literal["system", "user"] = "user") -> Message:
    """Return a message with one text."""
    return Message((TextContent(text),), role=role)


def turn(answer: Completion) -> list[Any]:
    """Return items that may follow an answer: the results of its calls and a user message."""
    results = [(call, ToolResult((TextContent(f"done {call.name}"),))) for call in answer.calls]
    return [*results, text_message("Tell me more.")]


def cut(data: bytes, size: int) -> list[bytes]:
    """Return data in pieces of `size` bytes."""
    return [data[start : start + size] for start in range(0, len(data), size)]


def as_call(name: str, arguments: dict[str, Any], id: str) -> ToolCall:
    """Return a tool call with the provider's id `id`."""
    return ToolCall("", name, arguments, id)


def watched(reader: Reader, work: Callable[[], object]) -> None:
    """Run `work` on another thread, and raise its exception here. Raises `CheckFailed` if one
    reading takes longer than `HANG_SECONDS`; the thread is then abandoned."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="wire-check", daemon=True)
    thread.start()
    count = -1
    while thread.is_alive():
        thread.join(HANG_SECONDS)
        if thread.is_alive() and reader.count == count:
            raise CheckFailed(f"{reader.doing}: no end after {HANG_SECONDS:g} seconds")
        count = reader.count
    if raised:
        raise raised[0]


def decode(data: bytes) -> Any:
    """Return the value of JSON bytes. Raises `ValueError`."""
    return json.loads(data)
