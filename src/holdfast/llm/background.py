"""Answers that a provider makes in the background. Such an answer is requested once, then polled or
streamed until it is complete, also after a broken connection or a killed process.

| background mode of the Responses API | effect |
|---|---|
| `POST /responses` | starts the answer and returns at once |
| `GET /responses/{id}` | returns the state of the answer |
| `POST /responses/{id}/cancel` | ends it |

The provider keeps an answer for minutes.
See https://developers.openai.com/api/docs/guides/background.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from urllib.parse import quote

import msgspec

from holdfast.errors import (
    BadRequest,
    BadResponse,
    Cancelled,
    LLMConnectionError,
    LLMError,
    LLMTimeout,
    ServerError,
)
from holdfast.llm.completion import Completion, Delta, OnDelta
from holdfast.llm.http import HttpExchange
from holdfast.llm.wires.failures import is_unreadable
from holdfast.llm.wires.protocol import Wire

if TYPE_CHECKING:
    from holdfast.llm.endpoint import ModelEndpoint
    from holdfast.llm.wires.responses_stream import ResponseStream
    from holdfast.tools.context import Cancellation

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.5
PAUSE_GROWTH = 1.5
MAX_PAUSE_SECONDS = 10.0
CANCEL_SECONDS = 5.0  # the limit for telling the provider that an answer is no longer wanted
MAX_RESUMPTIONS = 5  # of a stream without one new event

_PENDING = ("queued", "in_progress")


class BackgroundRecord(Protocol):
    """The memory of the answers that are being made: a conversation's journal. A request is known
    by its hash, its model and its host, and by the route to a composite's member."""

    def pending(self, request: str) -> str:
        """Return the id of the started answer to this request that was not received; "" for
        none."""
        ...

    def record_start(self, request: str, response_id: str) -> None:
        """Record an answer before it is waited for."""
        ...

    def closing(self) -> bool:
        """Return True if the wait ends because the conversation is closed: the answer is fetched
        when it is opened again."""
        ...


background_record: ContextVar[BackgroundRecord | None] = ContextVar(
    "holdfast_background_record", default=None
)


# The answers that the members of the innermost composite have started.
_begun_answers: ContextVar[list[BackgroundAnswer] | None] = ContextVar(
    "holdfast_begun_answers", default=None
)


class _RoutedRecord(msgspec.Struct, frozen=True):
    """The record of one member of a composite: two members may send the same request."""

    record: BackgroundRecord
    name: str

    def pending(self, request: str) -> str:
        return self.record.pending(f"{self.name} > {request}")

    def record_start(self, request: str, response_id: str) -> None:
        self.record.record_start(f"{self.name} > {request}", response_id)

    def closing(self) -> bool:
        return self.record.closing()


@contextmanager
def member_record(name: str) -> Generator[None]:
    """Give the member of a composite a record of its own."""
    record = background_record.get()
    if record is None:
        yield
        return
    token = background_record.set(_RoutedRecord(record, name))
    try:
        yield
    finally:
        background_record.reset(token)


@contextmanager
def begun_answers() -> Generator[list[BackgroundAnswer]]:
    """Collect the answers that are begun here, for a caller that may do without them. At the end
    they belong to the outer collection."""
    outer, answers = _begun_answers.get(), list[BackgroundAnswer]()
    token = _begun_answers.set(answers)
    try:
        yield answers
    finally:
        _begun_answers.reset(token)
        if outer is not None:
            outer += answers


class _State(msgspec.Struct):
    id: Any = ""
    status: Any = None


_states = msgspec.json.Decoder(_State)


class BackgroundAnswer:
    """One answer in the background. `ask` may be repeated after an error: it asks the provider
    again only if the last answer failed.

    Args:
        fail: Returns the error for a response with a status other than 200.
        request: Identifies the request in the record; "" for a request that has none.
        deadline: A `clock()` value for the whole exchange, or None.
        wait: Waits for seconds; None waits until `cancelled`.
    """

    def __init__(
        self,
        endpoint: ModelEndpoint,
        fail: Callable[[HttpExchange], LLMError],
        request: str,
        cancelled: Cancellation | None,
        deadline: float | None,
        wait: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._fail = fail
        self._request = request
        self._cancelled = cancelled
        self._deadline = deadline
        self._wait = wait or self._sleep
        self._clock = clock
        self._record = background_record.get() if request else None
        self._id = self._record.pending(request) if self._record is not None else ""
        self._stream = False
        self._recovered = bool(self._id)  # True for an answer that an earlier process asked for
        if (answers := _begun_answers.get()) is not None:
            answers.append(self)

    def ask(self, wire: Wire, body: bytes, deltas: OnDelta, stream: bool) -> Completion:
        """Return the answer. A cancellation is passed on to the provider. Raises `LLMError`;
        `LLMTimeout` at the deadline, after which the answer can still be fetched."""
        self._stream = stream
        try:
            answer = self._answer(wire, body, deltas)
        except Cancelled:
            if self._record is None or not self._record.closing():
                self.cancel()
            raise
        except LLMTimeout as error:
            if self._id and self._deadline is not None and self._clock() >= self._deadline:
                raise self._late() from error  # names the answer also if a poll was cut short
            raise
        self._id = ""  # nothing is left to cancel
        return answer

    def _answer(self, wire: Wire, body: bytes, deltas: OnDelta) -> Completion:
        if self._id:
            try:
                return self._fetch(wire, deltas)
            except LLMError as error:
                if not self._is_gone(error) or not self._recovered:
                    raise
                self._recovered = False  # the answer failed meanwhile, or is gone: ask anew
        response = self._endpoint.pool.post(
            self._endpoint.path, body, self._endpoint.headers, **self._limits()
        )
        return self._read(wire, response, deltas)

    def _late(self) -> LLMTimeout:
        return LLMTimeout(
            f"The answer {self._id} was not complete within the deadline. The provider"
            " continues it: ask again to fetch it."
        )

    def _is_gone(self, error: LLMError) -> bool:
        """Return True, and forget the answer, if it cannot be fetched again."""
        if not isinstance(error, Cancelled) and not error.retryable:
            self._id = ""
        return not self._id

    def _final(self, make: Callable[[], Completion], is_final: bool) -> Completion:
        """Return the complete answer. A failed answer is forgotten, so that a retry asks anew. A
        response that is not final, such as a gateway's page in place of the answer, is fetched
        again."""
        try:
            return make()
        except LLMError:
            if is_final:
                self._id = ""
            raise

    def _fetch(self, wire: Wire, deltas: OnDelta) -> Completion:
        if self._stream:
            try:
                return self._read(wire, self._get("stream=true"), deltas)
            except BadRequest:  # it was not asked for as a stream
                if not self._id:
                    raise
        return self._read(wire, self._get(), deltas)

    def _limits(self) -> dict[str, Any]:
        return {"cancelled": self._cancelled, "stream": True, "deadline": self._deadline}

    def _get(self, query: str = "") -> HttpExchange:
        endpoint = self._endpoint
        return endpoint.pool.get(self._path("", query), endpoint.headers, **self._limits())

    def _path(self, suffix: str = "", query: str = "") -> str:
        path, _, own = self._endpoint.path.partition("?")
        both = "&".join(filter(None, (query, own)))
        return f"{path}/{quote(self._id, safe='')}{suffix}" + (f"?{both}" if both else "")

    def _read_and_close(self, response: HttpExchange, read: Callable[[HttpExchange], T]) -> T:
        """Return `read(response)`, and close the response."""
        try:
            if response.status == 404 and self._id:
                self._id = ""
                raise ServerError("The provider no longer has the answer that it was making.")
            if response.status != 200:
                raise self._fail(response)
            value = read(response)
            response.record_outcome(None)
            return value
        except LLMError as error:
            response.record_outcome(error)
            raise
        finally:
            response.close()

    def _read(self, wire: Wire, response: HttpExchange, deltas: OnDelta) -> Completion:
        """Read a response to its end, and the further ones that the answer needs."""
        parser = cast("ResponseStream", wire.stream())

        def read(exchange: HttpExchange) -> bytes | None:
            if not self._stream or "json" in exchange.headers.get("content-type", ""):
                return exchange.read()
            self._follow(parser, exchange, deltas)
            return None

        data = self._read_and_close(response, read)
        if data is None:
            return self._stream_to_end(parser, deltas)
        return self._poll_to_end(wire, data, deltas)

    # --- polling ---

    def _poll_to_end(self, wire: Wire, data: bytes, deltas: OnDelta) -> Completion:
        pause = FIRST_PAUSE_SECONDS
        while (state := _state(data)) is not None and state.status in _PENDING:
            self._record_start(state.id)
            self._pause(pause)
            pause = min(pause * PAUSE_GROWTH, MAX_PAUSE_SECONDS)
            data = self._read_and_close(self._get(), HttpExchange.read)
        is_final = state is not None and isinstance(state.status, str)
        answer = self._final(lambda: wire.parse(data), is_final)
        if self._stream and answer.text:
            deltas(Delta("text", answer.text))
        return answer

    def _record_start(self, id: Any) -> None:
        if self._id:
            return
        if not isinstance(id, str) or not id:
            raise BadResponse("The provider answers in the background, but named no id.")
        self._id = id
        if self._record is not None:
            self._record.record_start(self._request, id)

    def _pause(self, seconds: float) -> None:
        if self._deadline is not None and self._clock() + seconds >= self._deadline:
            raise self._late()
        self._wait(seconds)
        if self._cancelled:
            raise Cancelled("The model call was cancelled.")

    def _sleep(self, seconds: float) -> None:
        if self._cancelled is not None:
            self._cancelled.wait(seconds)
        else:
            time.sleep(seconds)

    # --- streaming ---

    def _follow(self, parser: ResponseStream, response: HttpExchange, deltas: OnDelta) -> None:
        """Feed a stream to the parser until it ends, breaks off or cannot be read."""
        try:
            for chunk in response:
                if not self._feed(parser, chunk, deltas):
                    return
                if parser.done:
                    response.finish_within(0.1)  # at its end the connection is reusable
        except (LLMConnectionError, LLMTimeout):
            late = self._deadline is not None and self._clock() >= self._deadline
            if not parser.done and (late or not self._id):
                raise

    def _feed(self, parser: ResponseStream, chunk: bytes, deltas: OnDelta) -> bool:
        """Feed some bytes to the parser; return False for an event that cannot be read, after which
        the answer can be streamed again."""
        unreadable: LLMError | None = None
        try:
            parser.feed(chunk, deltas)
        except LLMError as error:
            if not is_unreadable(error):  # the stream reports that the answer failed
                self._id = ""
                raise
            unreadable = error
        if parser.response_id:
            self._record_start(parser.response_id)
        if unreadable is not None and not self._id:
            raise unreadable
        return unreadable is None

    def _stream_to_end(self, parser: ResponseStream, deltas: OnDelta) -> Completion:
        fruitless, pause = 0, FIRST_PAUSE_SECONDS
        while not parser.finished and self._id and fruitless < MAX_RESUMPTIONS:
            last = parser.sequence_number
            parser.resume()
            response = self._get(f"stream=true&starting_after={last}")
            self._read_and_close(response, lambda exchange: self._follow(parser, exchange, deltas))
            if parser.sequence_number > last:
                fruitless, pause = 0, FIRST_PAUSE_SECONDS
            elif not parser.finished:
                fruitless += 1
                self._pause(pause)
                pause = min(pause * PAUSE_GROWTH, MAX_PAUSE_SECONDS)
        return self._final(parser.finish, parser.finished)

    # --- cancelling ---

    def cancel(self) -> None:
        """Tell the provider that the answer is no longer wanted, if it is being made. A failure
        changes nothing: the provider then completes the answer, which is never fetched."""
        if not self._id:
            return
        endpoint = self._endpoint
        try:
            endpoint.pool.post(
                self._path("/cancel"),
                b"{}",
                endpoint.headers,
                deadline=time.monotonic() + CANCEL_SECONDS,
            ).close()
        except LLMError:
            pass


def _state(data: bytes) -> _State | None:
    try:
        return _states.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # the wire raises the error
