"""`RecordedLLM`: a model that records its HTTP exchanges in a file and replays them later. Tests
get real answers without a key."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast import errors
from holdfast.content import Usage
from holdfast.errors import Cancelled, ConfigurationError, LLMError
from holdfast.llm.base import BaseModel, CompletionCall
from holdfast.llm.client import LLM
from holdfast.llm.completion import Completion
from holdfast.llm.http import HttpExchange, Transport
from holdfast.llm.info import ModelInfo
from holdfast.llm.secrets import redact, redact_bytes, redact_path
from holdfast.llm.transcript import Messages
from holdfast.nesting import MAX_STORED_DEPTH, decode_json

if TYPE_CHECKING:
    from holdfast.llm.wires.protocol import Wire

MODES = ("auto", "replay", "record")

# The response headers that parsing needs. They never hold a cookie or a key.
_KEPT_HEADERS = ("content-type", "retry-after", "retry-after-ms", "x-request-id", "request-id")

_sorted = msgspec.json.Encoder(order="sorted")
_log = logging.getLogger("holdfast.llm")


class Recording(msgspec.Struct, rename="camel", omit_defaults=True):
    """One recorded exchange, a line of the file."""

    path: str
    request: msgspec.Raw
    hash: str = ""  # identifies the request if `request` is not verbatim
    status: int = 0
    headers: dict[str, str] = {}
    body: str = ""  # the answer's text, verbatim
    hex: str = ""  # the answer's bytes, if they are not text
    error: str = ""  # the class of the error that broke the exchange off, if any
    message: str = ""  # the message of that error
    retryable: bool = True  # True if a retry may help
    failed: bool = False  # True if the exchange gave no answer

    @property
    def key(self) -> str:
        """The identity of the request."""
        return self.hash or _request_key(self.path, bytes(self.request))

    def chunks(self) -> Iterator[bytes]:
        """Yield the answer's bytes. Raises the error that broke the exchange off."""
        if self.hex or self.body:
            yield bytes.fromhex(self.hex) if self.hex else self.body.encode()
        if self.error:
            kind: Any = getattr(errors, self.error, None)
            is_kind = isinstance(kind, type) and issubclass(kind, LLMError)
            error: LLMError = (kind if is_kind else LLMError)(self.message)
            error.retryable = self.retryable
            raise error


class RecordedLLM(BaseModel):
    """An LLM whose HTTP exchanges are recorded in the file at `path` (JSON lines, one per
    exchange).

    - `mode` "auto": a recorded request is answered from the file. Any other request is sent and
      its answer recorded. Failures are neither recorded nor replayed, because a retry or another
      key may succeed.
    - "replay": nothing is sent, and no key is needed. Recorded failures are repeated.
    - "record": the file is overwritten, and every request is sent and recorded, failures included.

    A request is identified by its bytes and path. Answers to identical requests are replayed in the
    order of the file. Exchanges that the caller breaks off (a cancellation, Ctrl-C, an `on_delta`
    that raises) are not recorded.

    Secrets are not written to the file: request headers are left out, and `api_key`, `headers` and
    the base URL's query values are removed everywhere. Values shorter than 8 characters are not
    treated as secrets.

    A RecordedLLM can replace any `LLM`. Thread-safe. Raises `ConfigurationError` for an
    unreadable file, and in `completion` while replaying, for an unrecorded request.
    """

    def __init__(self, llm: LLM, path: str | Path, mode: str = "auto") -> None:
        if not isinstance(llm, LLM):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"RecordedLLM: llm takes an LLM, not {llm!r}.")
        if mode not in MODES:
            raise ConfigurationError(
                f"RecordedLLM: mode takes one of {', '.join(MODES)}, not {mode!r}."
            )
        self.path = Path(path)
        self.mode = mode
        tape = Tape(self.path, mode)
        self._llm = llm.with_transport(lambda pool, hidden: _RecordingTransport(tape, pool, hidden))

    @property
    def model(self) -> str:
        """The model's name."""
        return self._llm.model

    @property
    def info(self) -> ModelInfo | None:
        """The same as `LLM.info`."""
        return self._llm.info

    @property
    def sees(self) -> bool | None:
        """The same as `LLM.sees`."""
        return self._llm.sees

    @property
    def wire(self) -> Wire:
        """The same as `LLM.wire`."""
        return self._llm.wire

    def parameters(self) -> dict[str, Any]:
        """Return the same as `LLM.parameters`."""
        return self._llm.parameters()

    def cost(self, usage: Usage) -> float | None:
        """Return the same as `LLM.cost`."""
        return self._llm.cost(usage)

    def close(self) -> None:
        """Close idle connections."""
        self._llm.close()

    def complete(self, call: CompletionCall) -> Completion:
        """Return one answer, as `LLM` does. A replayed answer takes no time."""
        return self._llm.complete(call)

    def count(self, call: CompletionCall) -> int:
        """Return the input tokens of a call, as `LLM` does."""
        return self._llm.count(call)

    def compact(self, messages: Messages, **arguments: Any) -> Completion:
        """Return a compaction of `messages`, as `LLM.compact` does with these arguments."""
        return self._llm.compact(messages, **arguments)

    def __repr__(self) -> str:
        return f"RecordedLLM({self._llm!r}, {str(self.path)!r}, mode={self.mode!r})"


class Tape:
    """The file of recordings, indexed by request."""

    def __init__(self, path: Path, mode: str) -> None:
        self.path = path
        self.mode = mode
        self._lock = threading.Lock()
        self._recordings: dict[str, list[Recording]] = {}
        if mode == "record":
            self._write(b"", os.O_TRUNC)
        elif mode == "replay" or path.exists():
            self._load()

    def find(self, key: str, request: str) -> Recording | None:
        """Return the next recorded answer to a request, or None. In "replay" mode, raises
        `ConfigurationError` instead of returning None."""
        with self._lock:
            recordings = self._recordings.get(key)
            if recordings:
                return recordings.pop(0)
        if self.mode != "replay":
            return None
        unused = sum(map(len, self._recordings.values()))
        reason = "all its recorded answers have been replayed"
        reason = f"it is not in {str(self.path)!r}" if recordings is None else reason
        raise ConfigurationError(
            f"RecordedLLM: this request cannot be replayed: {reason} ({unused} other recorded"
            f" answers are left). Its end: {request[-300:]!r}. Record again with mode='record', or"
            " use mode='auto'."
        )

    def add(self, recording: Recording) -> None:
        """Append one exchange to the file."""
        if recording.failed and self.mode == "auto":
            return
        line = msgspec.json.encode(recording) + b"\n"
        with self._lock:  # the lock guards the file
            self._write(line, os.O_APPEND)

    def _load(self) -> None:
        name = repr(str(self.path))
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"RecordedLLM: {name} cannot be read: {error.strerror}."
            ) from None
        for number, line in enumerate(data.splitlines(), 1):
            if not line.strip():
                continue
            try:
                recording = decode_json(line, Recording, MAX_STORED_DEPTH)
                key = recording.key
            except ValueError as error:
                if "truncated" in str(error):  # a crash during a write
                    _log.warning("line %d of %s is truncated and is skipped", number, self.path)
                    continue
                raise ConfigurationError(
                    f"RecordedLLM: line {number} of {name} is not a recorded exchange: {error}."
                ) from None
            if self.mode == "replay" or not (recording.failed or recording.status != 200):
                self._recordings.setdefault(key, []).append(recording)

    def _write(self, data: bytes, flags: int) -> None:
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | flags, 0o600)
            try:
                if os.lseek(file, 0, os.SEEK_END):
                    os.lseek(file, -1, os.SEEK_END)
                    if os.read(file, 1) != b"\n":  # after a truncated line
                        data = b"\n" + data
                while data:
                    data = data[os.write(file, data) :]
            finally:
                os.close(file)
        except OSError as error:
            raise ConfigurationError(
                f"RecordedLLM: {str(self.path)!r} cannot be written: {error.strerror}."
            ) from None


def _request_key(path: str, body: bytes) -> str:
    """Return the hash of a path (whose query may hold a key) and a decoded body."""
    from hashlib import sha256

    fields: Any = msgspec.json.decode(body)
    if isinstance(fields, dict):  # the cache key may differ for the same question
        cast("dict[str, Any]", fields).pop("prompt_cache_key", None)
    return sha256(path.partition("?")[0].encode() + b"\n" + _sorted.encode(fields)).hexdigest()


class _RecordingTransport:
    """A transport that replays recorded exchanges and records new ones."""

    def __init__(self, tape: Tape, pool: Transport, secrets: Sequence[str]) -> None:
        self._tape = tape
        self._pool = pool
        self._secrets = secrets
        self.close = pool.close

    def post(self, path: str, body: bytes, headers: Any, **options: Any) -> HttpExchange:
        return self._send(path, body, lambda: self._pool.post(path, body, headers, **options))

    def get(self, path: str, headers: Any, **options: Any) -> HttpExchange:
        """Fetch a resource, recorded like a request with the body `null`."""
        return self._send(path, b"null", lambda: self._pool.get(path, headers, **options))

    def _send(self, path: str, body: bytes, send: Callable[[], HttpExchange]) -> HttpExchange:
        key = _request_key(path, body)
        request = redact_bytes(body, self._secrets)
        replay = self._tape.find(key, request.decode())
        if replay is not None:
            if not replay.status:  # raises the error that prevented an answer
                list(replay.chunks())
            return HttpExchange(replay.status, dict(replay.headers), replay.chunks())
        recording = Recording(redact(redact_path(path), self._secrets), msgspec.Raw(request))
        if recording.key != key:
            recording.hash = key
        try:
            response = send()
        except LLMError as error:
            self.save(recording, b"", error, error)
            raise
        recording.status = response.status
        recording.headers = {
            name: redact(value, self._secrets)
            for name, value in response.headers.items()
            if name in _KEPT_HEADERS or "ratelimit" in name
        }
        return _RecordingResponse(response, recording, self)

    def save(
        self, recording: Recording, data: bytes, outcome: LLMError | None, broken: LLMError | None
    ) -> None:
        """Write an exchange to the file: its bytes, its outcome, and the error that broke its
        connection. An error after the complete answer was ignored."""
        if isinstance(outcome, Cancelled):
            return
        recording.failed = outcome is not None
        if outcome is not None and broken is not None:
            recording.error = type(broken).__name__
            recording.message = redact(str(broken), self._secrets)
            recording.retryable = broken.retryable
        data = redact_bytes(data, self._secrets)
        try:
            recording.body = data.decode()
        except UnicodeDecodeError:
            recording.hex = data.hex()
        self._tape.add(recording)


class _RecordingResponse(HttpExchange):
    """A live response that is recorded when its outcome is known."""

    def __init__(
        self, response: HttpExchange, recording: Recording, transport: _RecordingTransport
    ) -> None:
        super().__init__(response.status, response.headers, iter(response))
        self._recording = recording
        self._transport = transport
        self._body_parts: list[bytes] = []
        self._broken: LLMError | None = None
        self.finish_within = response.finish_within
        self.close = response.close

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._chunks:
                self._body_parts.append(chunk)
                yield chunk
        except LLMError as error:
            self._broken = error
            raise

    def record_outcome(self, error: LLMError | None) -> None:
        self._transport.save(self._recording, b"".join(self._body_parts), error, self._broken)
