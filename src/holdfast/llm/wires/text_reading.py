"""Extraction of the tool calls that a model wrote as text.

A call is `<tool_call>` followed by JSON. The call extends to the end of that JSON, because an
argument may itself hold `</tool_call>`. These are not calls:

- the tag in prose, without JSON after it, or in backticks
- a model's thoughts, from `<think>` (or `<thinking>`) at the beginning of a line to `</think>`;
  the opening tag may be in the prompt rather than in the answer, and then everything before
  `</think>` is thought
- an example: a call within a code fence that holds more than calls, or that is followed by more
  text; some models fence their real calls too, at the end of the answer and in a fence of their
  own
- text after a made-up `<tool_result>`, which is dropped
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.content import ToolCall
from holdfast.llm.wires.calls import read_call
from holdfast.llm.wires.lenient import clean

if TYPE_CHECKING:
    from json import JSONDecoder

OPEN, CLOSE = "<tool_call>", "</tool_call>"
RESULT = "<tool_result"

_TAGS = re.compile(r"<(/?)think(?:ing)?>|<tool_call>|<tool_result|```\w{0,20}")
_LONGEST_TAG = len("</thinking>")
# White space is limited, so that a long run of it is not scanned repeatedly.
_FENCE = re.compile(r"```\w{0,20}\s{0,99}")
_LEAD = re.compile(r"<tool_call>\s{0,99}(?:`{3}\w{0,20}\s{0,99})?")
_END = re.compile(r"[\s}\]]*(?:```\s*)?</tool_call>")  # some models close one brace too many
_NEXT = re.compile(r"\s*,?\s*(?=\{)")
_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')
_SHAPE = 'A call takes one JSON object with "name" and "arguments".'


class _Cut(msgspec.Struct):
    """A range of an answer's text that consists of calls."""

    start: int
    end: int
    calls: list[ToolCall]
    fenced: bool


def read_text(said: str, cut_off: bool = False) -> tuple[str, list[ToolCall]]:
    """Return an answer's text without its calls, and the calls. White space is removed after the
    text, and before it if calls come first.

    A call without a closing tag was left open or cut short by a stop sequence. If its JSON is
    incomplete as well, it is an invalid call. If the answer was `cut_off`, it stays text.
    """
    cuts, end = _find(said, cut_off)
    kept: list[_Cut] = []
    last = end
    for found in reversed(cuts):
        if found.fenced and not _blank(said, found.end, last):
            continue
        kept.append(found)
        last = found.start
    if not kept:
        return said, []
    kept.reverse()
    texts: list[str] = []
    at = 0
    for found in kept:
        texts.append(said[at : found.start])
        at = found.end
    text = "".join([*texts, said[at:end]]).rstrip()
    return text if texts[0].strip() else text.lstrip(), [
        call for found in kept for call in found.calls
    ]


def _find(said: str, cut_off: bool) -> tuple[list[_Cut], int]:
    """Return all ranges that may be calls, and the end of the answer."""
    cuts: list[_Cut] = []
    thinks = False
    fence: _Fence | None = None
    at, end = 0, len(said)
    while tag := _TAGS.search(said, at):
        start, at = tag.span()
        word = tag[0]
        if word.startswith("<think"):
            thinks = thinks or _begins_line(said, start)
        elif word.startswith("</think"):
            if not thinks and said[start - 1 : start] != "`":
                cuts, fence = [], None
            thinks = False
        elif thinks:
            continue
        elif word.startswith("```"):
            if fence is not None:
                cuts, fence = fence.close(said, cuts, start, start + 3), None
            elif _begins_line(said, start, indented=True):
                fence = _Fence(start, at, len(cuts))
        elif word == RESULT:
            if (
                fence is None
                and cuts
                and (not cuts[-1].fenced or _blank(said, cuts[-1].end, start))
            ):
                end = start
                break
        elif fence is not None or said[start - 1 : start] != "`":
            lead = _LEAD.match(said, start)
            if lead is not None and said[lead.end() : lead.end() + 1] in ("{", "["):
                calls, at = _calls(said, lead.end(), cut_off)
                if calls:
                    cuts.append(_Cut(start, at, calls, fence is not None))
    if fence is not None:
        cuts = fence.close(said, cuts, end, end)
    return cuts, end


class _Fence(msgspec.Struct):
    """A code fence: its start, the start of its text, and the number of cuts before it."""

    start: int
    inside: int
    before: int

    def close(self, said: str, cuts: list[_Cut], start: int, end: int) -> list[_Cut]:
        """Return the cuts after the fence ends. The fence's own cuts become one with it, or are
        dropped if it holds anything else."""
        own = cuts[self.before :]
        at = self.inside
        for found in own:
            if not _blank(said, at, found.start) or found.start - at > 99:
                return cuts[: self.before]
            at = found.end
        if not own or not _blank(said, at, start):
            return cuts[: self.before]
        return [
            *cuts[: self.before],
            _Cut(self.start, end, [call for found in own for call in found.calls], True),
        ]


def _blank(said: str, start: int, end: int) -> bool:
    return not said[start:end].strip()


def _begins_line(said: str, at: int, indented: bool = False) -> bool:
    if said[at - 1 : at] in ("", "\n") or not said[:at].strip():
        return True
    line = said[max(0, at - 20) : at].rpartition("\n")
    return indented and bool(line[1]) and not line[2].strip()


def _calls(said: str, at: int, cut_off: bool) -> tuple[list[ToolCall], int]:
    """Return the calls of the JSON that begins at `at`, and their end. Without calls, everything
    up to that end is text."""
    calls: list[ToolCall] = []
    while True:
        try:
            value, end = _json().raw_decode(said, at)
            found: Any = clean(value)
        except (ValueError, RecursionError) as error:
            closed = said.find(CLOSE, at)
            if closed >= 0:
                return [*calls, _unreadable(said[at:closed])], closed + len(CLOSE)
            if cut_off or not _unfinished(said, error):
                return calls, at
            return [*calls, _unreadable(said[at:])], len(said)
        items = cast("list[Any]", found) if isinstance(found, list) else []
        if items and all(isinstance(item, dict) for item in items):
            calls += [_call(item, msgspec.json.encode(item).decode()) for item in items]
        else:
            calls.append(_call(found, said[at:end]))
        more = _NEXT.match(said, end)
        if more is None:
            closed = _END.match(said, end)
            return calls, closed.end() if closed else end
        at = more.end()


def _unfinished(said: str, error: Exception) -> bool:
    """Return True if the JSON's only fault is that it ends too early."""
    return getattr(error, "msg", "").startswith("Unterminated") or getattr(error, "pos", 0) >= len(
        said.rstrip()
    )


@lru_cache(1)
def _json() -> JSONDecoder:
    from json import JSONDecoder  # reports where a value ends; rarely needed

    return JSONDecoder(strict=False, parse_constant=lambda _: None)


def _call(item: Any, text: str) -> ToolCall:
    if isinstance(item, dict):
        found = cast("dict[str, Any]", item)
        if isinstance(found.get("name"), str):
            return read_call(found["name"], found.get("arguments", found.get("parameters")), "")
    return _unreadable(text)


def _unreadable(text: str) -> ToolCall:
    text = text.strip().removesuffix("```").strip()
    name = _NAME.search(text)
    call = read_call(name[1] if name else "", text, "")
    return ToolCall("", call.name, {}, "", text, call.invalid or _SHAPE)


class Ahead:
    """A filter for streamed text that holds back any text that may begin a call.

    `feed` returns the text that can be forwarded. After the first tag that may open a call
    outside of thinking, `feed` returns nothing.
    """

    __slots__ = ("_called", "_first", "_held", "_last", "_thinks")

    def __init__(self) -> None:
        self._held = ""  # text that may begin a tag
        self._last = "\n"  # the character before `_held`
        self._first = True  # True if only white space precedes `_held`
        self._thinks = False
        self._called = False

    def feed(self, piece: str) -> str:
        """Add some text and return the part that can be forwarded."""
        if self._called:
            return ""
        text = self._held + piece
        keep = len(text)
        if "<" in text or "`" in text:
            keep = self._read(text)
        self._held = text[keep:]
        text = text[:keep]
        if text:
            self._last = text[-1]
            self._first = self._first and not text.strip()
        return text

    def _read(self, text: str) -> int:
        at = 0
        fence = (0, -1)  # the last fence, and the position after it
        while tag := _TAGS.search(text, at):
            start, at = tag.span()
            word = tag[0]
            if word.startswith("```"):
                found = _FENCE.match(text, start)
                fence = start, found.end() if found is not None else at
                if (
                    not self._thinks
                    and OPEN.startswith(text[fence[1] : fence[1] + len(OPEN)])
                    and len(text) - fence[1] < len(OPEN)
                ):
                    return start
            elif word.startswith("<think"):
                before = text[start - 1 : start] if start else self._last
                self._thinks = (
                    self._thinks or before == "\n" or (self._first and not text[:start].strip())
                )
            elif word.startswith("</think"):
                self._thinks = False
            elif word == OPEN and not self._thinks:
                lead = _LEAD.match(text, start)
                behind = lead.end() if lead is not None else at
                if fence[1] == start:
                    start = fence[0]
                if behind == len(text):  # undecided without more text
                    return start
                if text[behind] in "{[" or (
                    len(text) - behind < 3 and not text[behind:].strip("`")
                ):
                    self._called = text[behind] in "{["
                    return start
        if text.endswith("`") and not text.endswith("```"):
            return len(text.rstrip("`"))
        begun = text.rfind("<", max(at, len(text) - _LONGEST_TAG))
        if begun >= 0 and any(
            one.startswith(text[begun:])
            for one in (OPEN, "<think>", "<thinking>", "</think>", "</thinking>")
        ):
            return begun
        return len(text)
