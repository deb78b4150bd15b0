"""`JsonLog`: a line of JSON for each event of a conversation and for each finished span."""

from __future__ import annotations

import itertools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from holdfast import events as ev
from holdfast.errors import ConfigurationError
from holdfast.llm.secrets import MIN_SECRET_CHARS, REDACTED
from holdfast.observe.names import CONVERSATION
from holdfast.observe.spans import Attributes, SpanMaker, SpanStart

_log = logging.getLogger("holdfast")

_CHECK_SECONDS = 1.0  # seconds between checks that the file has not been moved
_MAX_ITEMS = 50  # items shown of a list or an object
_MAX_DEPTH = 8  # nested levels shown

# Names whose values are secret, and the forms of keys that providers publish for secret scanners.
_SECRET_NAMES = re.compile(
    r"(?i)(^|[_-])(api[_-]?key|apikey|password|passwd|secret|token|authorization|credentials?|private[_-]?key|cookie)$|(?i:accessToken|refreshToken|clientSecret|apiKey)$"
)
_KEY_FORMS = re.compile(
    r"sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|A(?:KI|SI)A[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|hf_[A-Za-z0-9]{20,}|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+"
    r"|(?i:bearer|basic)\s+[A-Za-z0-9._~+/=-]{12,}|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)|-----BEGIN [A-Z"
    r" ]*PRIVATE KEY-----[\s\S]*?(?:-----END|$)"
)
# The fields of events that `content=False` leaves out.
_CONTENT_NAMES = """\
content text reasoning arguments raw systemPrompt summary structuredContent message details title
question reason parameters meta request soFar"""
_CONTENT_FIELDS = frozenset(_CONTENT_NAMES.split())


class TextStream(Protocol):
    """A stream that a log can be written to instead of a file."""

    def write(self, text: str, /) -> object:
        """Write some text."""
        ...


@dataclass(slots=True)
class _Span:
    """A span of the log."""

    name: str
    attributes: Attributes
    id: int
    parent: int
    started_at: float  # Unix time
    started: float  # monotonic time
    notes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class JsonLog(SpanMaker[_Span]):
    """An observer that writes JSON lines: `Conversation(agent, observer=JsonLog("agent.log"))`. A
    file is appended to with one write per line; a stream receives one `write` per line.

    Args:
        to: A path, or a stream with a `write` method.
        content: False leaves out messages, answers, arguments and results.
        longest: The number of characters at which a text is cut.
        secrets: Values to replace by `***`. Values under names such as `password` and well-known
            forms of keys are replaced too.

    A file that was moved away is created again within a second. Lines that cannot be written are
    lost; the first failure goes to the log `holdfast`. Thread-safe; a context manager. Raises
    `ConfigurationError` for an invalid target, and `OSError` for a file that cannot be opened.
    """

    def __init__(
        self,
        to: str | os.PathLike[str] | TextStream,
        *,
        content: bool = True,
        longest: int = 1000,
        secrets: Sequence[str] = (),
    ) -> None:
        if isinstance(secrets, str) or not all(isinstance(one, str) for one in secrets):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError("JsonLog: secrets takes a list of str.")
        if not isinstance(longest, int) or longest < 1:  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                f"JsonLog: longest takes a number of characters from 1, not {longest!r}."
            )
        self._path, self._stream = None, None
        if isinstance(to, str | os.PathLike):
            self._path = Path(to).absolute()
        elif callable(getattr(to, "write", None)):
            self._stream = to
        else:
            raise ConfigurationError(f"JsonLog takes a path or a stream, not {to!r}.")
        self.on_event = self.event
        self._with_content = bool(content)  # of events; spans hold none
        self._longest = longest
        self._secrets = sorted(
            (one for one in secrets if len(one) >= MIN_SECRET_CHARS), key=len, reverse=True
        )
        self._span_ids = itertools.count(1)
        self._lock = threading.Lock()
        self._failed = False
        self._closed = False
        self._file = -1
        self._inode: tuple[int, int] = (0, 0)
        self._checked_at = 0.0
        if self._path is not None:
            self._open(self._path)

    def served(self, method: str, headers: Mapping[str, str]) -> Callable[[str, int], None]:
        """Write a line for each request that changes something. See `Observer.served`."""
        started = time.monotonic()

        def done(route: str, status: int) -> None:
            seconds = round(time.monotonic() - started, 6)
            request = {"kind": "request", "method": method, "route": route, "status": status}
            self._line({**request, "seconds": seconds})

        return done

    # --- lines ---

    def event(self, conversation_id: str, event: ev.AnyEvent) -> None:
        """Write a line for an event."""
        if isinstance(event, ev.UnknownEvent):
            fields: dict[str, Any] = {"id": event.id}
        else:
            if isinstance(event, ev.AssistantReplied):
                # The native form repeats the other fields.
                event = msgspec.structs.replace(event, native=msgspec.Raw())
            elif isinstance(event, ev.HistoryCondensed) and event.compaction is not None:
                compaction = msgspec.structs.replace(event.compaction, native=msgspec.Raw())
                event = msgspec.structs.replace(event, compaction=compaction)
            elif isinstance(event, ev.AgentConfigured):
                event = msgspec.structs.replace(event, tools=())
            fields = msgspec.to_builtins(event, enc_hook=str)
            fields.pop("native", None)
        for name in ("type", "seq", "timestamp"):
            fields.pop(name, None)
        head = {"kind": "event", "conversation": conversation_id, "seq": event.seq}
        self._line({**head, "type": event.type, **self._bounded(fields, 0)}, event.timestamp)

    def _line(self, fields: dict[str, Any], at: datetime | None = None) -> None:
        stamped = {"time": _stamp(at or datetime.now(UTC)), **fields}
        line = msgspec.json.encode(stamped, enc_hook=str) + b"\n"
        with self._lock:
            if self._closed:
                return
            try:
                if self._stream is not None:
                    self._stream.write(line.decode())
                    getattr(self._stream, "flush", lambda: None)()
                elif self._path is not None:
                    self._reopen_if_moved(self._path)
                    os.write(self._file, line)
            except (OSError, ValueError) as error:
                if not self._failed:
                    text = "JsonLog cannot write its lines; it tries again with the next one: %s"
                    _log.error(text, error)
                self._failed = True
            else:
                self._failed = False

    def _bounded(self, value: Any, depth: int) -> Any:
        """Return a value without secrets, cut to the size that a line may hold."""
        if isinstance(value, str):
            return self._cut(value)
        if isinstance(value, dict):
            pairs = list(cast("dict[str, Any]", value).items())
            if depth >= _MAX_DEPTH:
                return f"... ({len(pairs)} fields)"
            bounded: dict[str, Any] = {}
            for name, item in pairs[:_MAX_ITEMS]:
                if self._with_content or name not in _CONTENT_FIELDS:
                    secret = isinstance(item, str) and _SECRET_NAMES.search(name)
                    bounded_item = REDACTED if secret else self._bounded(item, depth + 1)
                    bounded[self._cut(str(name))] = bounded_item
            if len(pairs) > _MAX_ITEMS:
                bounded["..."] = f"{len(pairs):,} fields"
            return bounded
        if isinstance(value, list | tuple):
            items = cast("list[Any]", value)
            if depth >= _MAX_DEPTH:
                return f"... ({len(items)} items)"
            more = [f"... ({len(items):,} items)"] if len(items) > _MAX_ITEMS else []
            return [*(self._bounded(item, depth + 1) for item in items[:_MAX_ITEMS]), *more]
        return value

    def _cut(self, text: str) -> str:
        # Remove secrets before cutting, because half of a secret would not be recognized.
        whole = len(text)
        if whole > 8 * self._longest:
            text = text[: 8 * self._longest]
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, REDACTED)
        text = _KEY_FORMS.sub(REDACTED, text)
        if len(text) <= self._longest and whole <= 8 * self._longest:
            return text
        return f"{text[: self._longest]}... ({whole:,} characters)"

    # --- the file ---

    def _open(self, path: Path) -> None:
        # Mode 0600, because the log may hold the conversation's content.
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stat = os.fstat(self._file)
        self._inode, self._checked_at = (stat.st_dev, stat.st_ino), time.monotonic()

    def _reopen_if_moved(self, path: Path) -> None:
        """Reopen the file if it was moved. External tools rotate the log."""
        now = time.monotonic()
        if now - self._checked_at < _CHECK_SECONDS and self._file >= 0:
            return
        self._checked_at = now
        try:
            stat = os.stat(path)
            if (stat.st_dev, stat.st_ino) == self._inode:
                return
        except FileNotFoundError:
            pass
        old, self._file = self._file, -1
        if old >= 0:
            os.close(old)
        self._open(path)

    def close(self) -> None:
        """Stop writing. A stream stays open. May be called repeatedly."""
        with self._lock:
            self._closed = True
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> JsonLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"JsonLog({str(self._path) if self._path is not None else self._stream!r})"

    # --- spans; readers of the log can compute metrics ---

    def start(self, opening: SpanStart[_Span]) -> _Span:
        id, parent = next(self._span_ids), 0 if opening.parent is None else opening.parent.id
        now, at = time.monotonic() - opening.ago, time.time() - opening.ago
        return _Span(opening.name, opening.attributes, id, parent, at, now)

    def note(self, span: _Span, name: str, attributes: Attributes) -> None:
        if len(span.notes) < _MAX_ITEMS:
            after = round(time.monotonic() - span.started, 6)
            span.notes.append({"name": name, "after": after, **attributes})

    def end(self, span: _Span, attributes: Attributes, error: str = "", message: str = "") -> None:
        attributes = {**span.attributes, **attributes}
        fields: dict[str, Any] = {
            "kind": "span",
            "conversation": attributes.pop(CONVERSATION, ""),
            "name": span.name,
            "span": span.id,
            "parent": span.parent,
            "start": _stamp(datetime.fromtimestamp(span.started_at, UTC)),
            "seconds": round(time.monotonic() - span.started, 6),
        }
        if error:
            fields["error"] = error
            if message and self._with_content:
                fields["message"] = message
        fields["attributes"] = attributes
        if span.notes:
            fields["events"] = span.notes
        self._line({name: self._bounded(value, 1) for name, value in fields.items()})


def _stamp(time: datetime) -> str:
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")
