"""Text for a terminal: lines with a style, safe characters, widths, durations, amounts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.content import Usage

# Characters that could move the cursor, change colours, hide text or reorder it. These are C0
# except tab and newline, DEL, C1 (a terminal may take U+009B for ESC [), and line separators. The
# bidirectional controls can make code look different from its effect (CVE-2021-42574).
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


class TextLine(NamedTuple):
    """One line to show. Styles: plain, user, call, dim, error, add, remove, and gap, a blank line
    unless the line before it is blank."""

    style: str
    text: str = ""


GAP = TextLine("gap")


def styled(style: str, text: str, indent: str = "") -> list[TextLine]:
    return [TextLine(style, f"{indent}{line}") for line in text.split("\n")]


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return f"^{chr(code + 0x40)}"
    if code == 0x7F:
        return "^?"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def safe(text: str) -> str:
    """Return text that cannot control a terminal: control characters become visible (`^[` for
    ESC). Newlines and tabs stay."""
    return _UNSAFE.sub(_visible, text.replace("\r", ""))


def plain(text: str) -> str:
    """Return `safe` text in which nothing is hidden: invisible characters and carriage returns
    become visible too."""
    text = safe(text.replace("\r", "^M"))
    if text.isascii():
        return text
    hidden = {char for char in text if unicodedata.category(char) in ("Cf", "Zl", "Zp")}
    return "".join([f"\\u{ord(char):04x}" if char in hidden else char for char in text])


def one_line(text: str) -> str:
    """Return `safe` text on one line, with runs of white space as one blank."""
    return safe(" ".join(text.split()))


def plain_line(text: str) -> str:
    return plain(one_line(text))


def columns(text: str) -> int:
    """Return the columns that one line takes in a terminal. A wide character, such as a Chinese
    one, takes 2, and a combining one none."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def _columns_of(char: str) -> int:
    if char.isascii():
        return 1
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def clip(text: str, width: int) -> str:
    """Return at most `width` columns of one line, `…` at a cut. Tabs stop every 4 columns."""
    text = text.expandtabs(4)
    if columns(text) <= width:
        return text
    room, at = max(1, width - 1), 0
    while at < len(text) and (room := room - _columns_of(text[at])) >= 0:
        at += 1
    return text[: max(1, at)].rstrip() + "…"


def padded(text: str, width: int, right: bool = False) -> str:
    """Return a text with blanks up to `width` columns, before it if it is to stand at the right."""
    blanks = " " * (width - columns(text))
    return f"{blanks}{text}" if right else f"{text}{blanks}"


def table(rows: Sequence[Sequence[str]], right: int = -1) -> list[str]:
    """Return the rows with their cells in columns, of which the one `right` is aligned so."""
    widths = [max(map(columns, cells)) for cells in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [padded(cell, widths[at], at == right) for at, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    return lines


def duration(seconds: float) -> str:
    """Return a duration in words: `3 ms`, `0.31 s`, `4.2 s`, `2 min 05 s`."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def minute(time: datetime | None) -> str:
    """Return a time by the clock of this machine: `2026-11-24 09:00`; "" for None."""
    if time is not None:
        with suppress(OverflowError):  # the first or the last day of the calendar
            time = time.astimezone()
    return f"{time:%Y-%m-%d %H:%M}" if time else ""


def size(count: int) -> str:
    """Return a number of bytes in words: `512 B`, `12 KB`, `3.4 MB`."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.0f} KB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


def status_text(status: str) -> str:
    return status.replace("_", " ")


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 step`, `2 steps`, `1,200 steps`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# Words for the counts of `Usage` within the input and the output.
_INPUT_PARTS = (
    ("cached_input_tokens", "cached"),
    ("cache_write_tokens", "written to the cache"),
    ("cache_write_1h_tokens", "of them for an hour"),
    ("input_audio_tokens", "audio"),
    ("input_image_tokens", "image"),
)
_OUTPUT_PARTS = (
    ("reasoning_tokens", "reasoning"),
    ("output_audio_tokens", "audio"),
    ("output_image_tokens", "image"),
)


def token_parts(usage: Usage, cached_share: bool = False) -> list[str]:
    """Return the counts of tokens that are not zero: `4,210 tokens in (3,000 cached)` and `312 out
    (100 reasoning)`. With `cached_share` the cached part is a percentage."""
    if not usage.input_tokens and not usage.output_tokens:
        return []
    counts = [_counts(usage, names) for names in (_INPUT_PARTS, _OUTPUT_PARTS)]
    if cached_share and usage.cached_input_tokens and usage.input_tokens:
        counts[0][0] = f"{usage.cached_input_tokens / usage.input_tokens:.0%} cached"
    input_details, output_details = [f" ({', '.join(parts)})" if parts else "" for parts in counts]
    return [
        f"{usage.input_tokens:,} tokens in{input_details}",
        f"{usage.output_tokens:,} out{output_details}",
    ]


def _counts(usage: Usage, words: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{count:,} {word}" for name, word in words if (count := getattr(usage, name))]


def summary(steps: int, seconds: float, usage: Usage, cost: float | None) -> str:
    """Return the line at a run's end: `3 steps, 12.4 s, 4,210 tokens in (3,000 cached), 312 out,
    $0.0123`."""
    parts = [counted(steps, "step"), duration(seconds), *token_parts(usage)]
    if cost is not None:
        parts.append(dollars(cost))
    return ", ".join(parts)


def dollars(cost: float) -> str:
    """Return an amount of US dollars: `$1.20`, `$0.0123`."""
    return f"${cost:.2f}" if cost >= 1 else f"${cost:.4f}"


def json_shown(text: str) -> str:
    """Return JSON that cannot control a terminal: characters that JSON leaves raw are escaped."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
