"""A parser for server-sent events, which yields the data of whole events from bytes cut anywhere
(WHATWG HTML, section 9.2.6)."""

from __future__ import annotations


class EventReader:
    """An incremental reader of an event stream. Accepts LF, CRLF and CR line ends, `data:` with or
    without a space, comments, and a byte order mark."""

    __slots__ = ("_data", "_line", "_name", "_skip_lf", "_started")

    def __init__(self) -> None:
        self._line = b""  # the unfinished last line
        self._data: list[bytes] = []
        self._name = b""
        self._skip_lf = False  # the last chunk ended in CR, so an LF that follows belongs to it
        self._started = False

    def feed(self, chunk: bytes) -> list[tuple[bytes, bytes]]:
        """Return the events that end in `chunk`, as (event name, data)."""
        if not chunk:
            return []
        if self._skip_lf:
            self._skip_lf = False
            if chunk[:1] == b"\n":
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._skip_lf = chunk[-1:] == b"\r"
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._line += chunk
            return []
        events: list[tuple[bytes, bytes]] = []
        if not (self._line or self._data or self._name):
            end = chunk.rfind(b"\n\n") + 2
            events = _plain_events(chunk[:end])
            if events:
                self._started = True
                chunk = chunk[end:]
        lines = (self._line + chunk if self._line else chunk).split(b"\n")
        self._line = lines.pop()
        data = self._data
        for line in lines:
            start = line[:6]
            if start == b"data: ":
                self._started = True
                data.append(line[6:])
            elif start == b"event:" and self._started:
                self._name = line[6:].strip()
            elif line:
                self._read_line(line)
            elif data:
                events.append((self._name, data[0] if len(data) == 1 else b"\n".join(data)))
                data.clear()
                self._name = b""
            else:
                self._name = b""
        return events

    def rest(self) -> list[tuple[bytes, bytes]]:
        """Return an event left unfinished at the end of the stream, if any. The standard drops such
        an event, but servers forget the last blank line, and a truncated one does not parse."""
        if self._line:
            self._read_line(self._line)
            self._line = b""
        self._skip_lf = False
        return self.feed(b"\n") if self._data else []

    def _read_line(self, line: bytes) -> None:
        if not self._started:
            self._started = True
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line[:5] == b"data:":
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line[:6] == b"event:":
            self._name = line[6:].strip()
        elif line[:8] == b"error: {":  # llama.cpp's server, in place of an event named error
            self._name = b"error"
            self._data.append(line[7:])


def _plain_events(chunk: bytes) -> list[tuple[bytes, bytes]]:
    """Return the events of a chunk in which each is one line of data, perhaps after a line with its
    name. Nearly all chunks are of this form; [] for any other. Costs a fraction of reading
    lines."""
    if chunk.startswith(b"data: "):
        texts = chunk[6:-2].split(b"\n\ndata: ")
        if chunk.count(b"\n") == 2 * len(texts):  # no line feed but those around the texts
            return [(b"", text) for text in texts]
    elif chunk.startswith(b"event: "):
        pairs = [text.split(b"\ndata: ") for text in chunk[7:-2].split(b"\n\nevent: ")]
        if chunk.count(b"\n") == 3 * len(pairs) and all(len(pair) == 2 for pair in pairs):
            return [(name.strip(), text) for name, text in pairs]
    return []
