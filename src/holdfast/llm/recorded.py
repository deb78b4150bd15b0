"""`RecordedLLM`: a model whose HTTP exchanges are kept in a file, and answered from it the next time: real answers in tests, without a key."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast import errors
from holdfast.content import Usage
from holdfast.errors import Cancelled, ConfigurationError, LLMError
from holdfast.llm.client import LLM
from holdfast.llm.completion import Completion, OnDelta
from holdfast.llm.model import ToolLike
from holdfast.llm.transcript import Messages

if TYPE_CHECKING:
    from holdfast.events import Agent
    from holdfast.llm.http import Exchange, Transport
    from holdfast.llm.info import ModelInfo
    from holdfast.tools.context import Cancellation

MODES = ("auto", "replay", "record")

# Of a request, what may be another one for the same question. Of an answer's headers, what its reading needs; never a cookie or a key.
_VARYING = ("prompt_cache_key",)
_KEPT = ("content-type", "retry-after", "retry-after-ms", "x-request-id", "request-id")

_sorted = msgspec.json.Encoder(order="sorted")


class Recording(msgspec.Struct, rename="camel", omit_defaults=True):
    """One exchange, a line of the file. `body` is the answer's text to the letter (`hex` if it is none); `error` and `message` what broke it
    off, if something did."""

    path: str
    request: msgspec.Raw
    status: int = 0
    headers: dict[str, str] = {}
    body: str = ""
    hex: str = ""
    error: str = ""
    message: str = ""

    @property
    def data(self) -> bytes:
        """The answer's bytes."""
        return bytes.fromhex(self.hex) if self.hex else self.body.encode()


class RecordedLLM:
    """`llm`, with its HTTP exchanges in the file at `path` (JSON lines, one each).

    `mode` "auto": a request that is in the file is answered from it, any other is asked and added. "replay": nothing is asked, and no key is
    needed. "record": the file is begun anew, and everything asked. Requests are known by their bytes; of several that are the
    same the answers come in the order of the file. Keys are not in the file: neither `headers` nor `api_key` are written, and where
    an answer repeats them they are blotted out.

    Use it wherever an `LLM` is. Thread-safe. Raises `ConfigurationError` for a file that cannot be read, and in `completion`, if replaying,
    for a request that is not in it.
    """

    def __init__(self, llm: LLM, path: str | Path, mode: str = "auto") -> None:
        if not isinstance(llm, LLM):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"RecordedLLM: llm takes an LLM, not {llm!r}.")
        if mode not in MODES:
            raise ConfigurationError(f"RecordedLLM: mode takes one of {', '.join(MODES)}, not {mode!r}.")
        self.path = Path(path)
        self.mode = mode
        tape = Tape(self.path, mode)
        self._llm = llm.through(lambda pool, secrets: _Pool(tape, pool, secrets))

    @property
    def model(self) -> str:
        """The model's name."""
        return self._llm.model

    @property
    def info(self) -> ModelInfo | None:
        """As `LLM.info`."""
        return self._llm.info

    def parameters(self) -> dict[str, Any]:
        """As `LLM.parameters`."""
        return self._llm.parameters()

    def cost(self, usage: Usage) -> float | None:
        """As `LLM.cost`."""
        return self._llm.cost(usage)

    def close(self) -> None:
        """Close idle connections."""
        self._llm.close()

    def completion(
        self,
        messages: Messages,
        tools: Sequence[ToolLike] = (),
        *,
        system: str | None = None,
        head: Agent | None = None,
        on_delta: OnDelta | None = None,
        cancelled: Cancellation | None = None,
    ) -> Completion:
        """As `LLM.completion`; from the file, an answer takes no time."""
        return self._llm.completion(messages, tools, system=system, head=head, on_delta=on_delta, cancelled=cancelled)

    def __repr__(self) -> str:
        return f"RecordedLLM({self._llm!r}, {str(self.path)!r}, mode={self.mode!r})"


class Tape:
    """The file: what it holds by request, and where new exchanges go."""

    def __init__(self, path: Path, mode: str) -> None:
        self.path = path
        self.mode = mode
        self._lock = threading.Lock()
        self._held: dict[bytes, list[Recording]] = {}
        if mode == "record":
            self._write(b"", os.O_TRUNC)
        elif mode == "replay" or path.exists():
            for number, line in enumerate(self._read().splitlines(), 1):
                if line.strip():
                    try:
                        recording = msgspec.json.decode(line, type=Recording)
                        self._held.setdefault(_key(recording.path, bytes(recording.request)), []).append(recording)
                    except ValueError as error:
                        raise ConfigurationError(f"RecordedLLM: line {number} of {str(path)!r} is no recorded exchange: {error}.") from None

    def find(self, path: str, body: bytes) -> Recording | None:
        """The next recorded answer to this request. Raises `ConfigurationError` if there is none and nothing may be asked."""
        key = _key(path, body)
        with self._lock:
            held = self._held.get(key)
            if held:
                return held.pop(0)
            if self.mode == "replay":
                left = sum(len(found) for found in self._held.values())
                why = "its answers have all been given" if held is not None else f"it is not in {str(self.path)!r}"
                raise ConfigurationError(
                    f"RecordedLLM: this request cannot be replayed: {why} ({left} other recorded answers are left). Its end: "
                    f"{body[-300:].decode('utf-8', 'replace')!r}. Record again with mode='record', or use mode='auto'."
                )
        return None

    def add(self, recording: Recording) -> None:
        """Write one exchange."""
        line = msgspec.json.encode(recording) + b"\n"
        with self._lock:  # it guards the file
            self._write(line, os.O_APPEND)

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"RecordedLLM: {str(self.path)!r} cannot be read: {error.strerror}.") from None

    def _write(self, data: bytes, how: int) -> None:
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | how, 0o600)
            try:
                while data:
                    data = data[os.write(file, data) :]
            finally:
                os.close(file)
        except OSError as error:
            raise ConfigurationError(f"RecordedLLM: {str(self.path)!r} cannot be written: {error.strerror}.") from None


def _key(path: str, body: bytes) -> bytes:
    from hashlib import sha256

    found: Any = msgspec.json.decode(body)
    if isinstance(found, dict):
        for name in _VARYING:
            cast("dict[str, Any]", found).pop(name, None)
    return sha256(path.encode() + b"\n" + _sorted.encode(found)).digest()


class _Pool:
    """Stands where an LLM's connections are."""

    def __init__(self, tape: Tape, pool: Transport, secrets: Sequence[str]) -> None:
        self._tape = tape
        self._pool = pool
        self._secrets = secrets

    def post(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str] | str,
        *,
        cancelled: Cancellation | None = None,
        stream: bool = False,
        deadline: float | None = None,
    ) -> Exchange:
        known = self._tape.find(path, body)
        if known is not None:
            if known.error and not known.status:
                raise _error(known)
            return _Played(known)
        made = Recording(path, msgspec.Raw(self._blot(body.decode()).encode()))
        try:
            response = self._pool.post(path, body, headers, cancelled=cancelled, stream=stream, deadline=deadline)
        except Cancelled:
            raise
        except LLMError as error:
            self._failed(made, error)
            raise
        made.status = response.status
        made.headers = {name: self._blot(value) for name, value in response.headers.items() if name in _KEPT or "ratelimit" in name}
        return _Recorded(response, made, self)

    def close(self) -> None:
        self._pool.close()

    def keep(self, made: Recording, data: bytes) -> None:
        try:
            made.body = self._blot(data.decode())
        except UnicodeDecodeError:
            made.hex = data.hex()
        self._tape.add(made)

    def _failed(self, made: Recording, error: LLMError) -> None:
        made.error, made.message = type(error).__name__, self._blot(str(error))
        self._tape.add(made)

    def _blot(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class _Recorded:
    """A response that is written down when it has been read, or when it broke off."""

    def __init__(self, response: Exchange, made: Recording, pool: _Pool) -> None:
        self.status = response.status
        self.headers = response.headers
        self._response = response
        self._made: Recording | None = made
        self._pool = pool
        self._chunks: list[bytes] = []
        self._body: bytes | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._response:
                self._chunks.append(chunk)
                yield chunk
        except Cancelled:
            self._made = None
            raise
        except LLMError as error:
            if self._made is not None:
                self._made.error, self._made.message = type(error).__name__, str(error)
            raise
        finally:
            made, self._made = self._made, None
            if made is not None:
                self._pool.keep(made, b"".join(self._chunks))

    def read(self) -> bytes:
        if self._body is None:
            self._body = b"".join(self)
        return self._body

    def hurry(self, seconds: float) -> None:
        self._response.hurry(seconds)

    def close(self) -> None:
        self._response.close()


class _Played:
    """A response out of the file."""

    def __init__(self, known: Recording) -> None:
        self.status = known.status
        self.headers = dict(known.headers)
        self._known = known

    def __iter__(self) -> Iterator[bytes]:
        if self._known.data:
            yield self._known.data
        if self._known.error:
            raise _error(self._known)

    def read(self) -> bytes:
        return b"".join(self)

    def hurry(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


def _error(known: Recording) -> LLMError:
    kind: Any = getattr(errors, known.error, None)
    return kind(known.message) if isinstance(kind, type) and issubclass(kind, LLMError) else LLMError(known.message)
