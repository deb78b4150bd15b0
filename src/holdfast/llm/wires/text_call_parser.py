"""Extraction of the tool calls that a model wrote as text.

A call is `<tool_call>` followed by JSON. The call extends to the end of that JSON, because an
argument may itself hold `</tool_call>`. The following are not calls:

- the tag in prose, without JSON after it, or in backticks
- a model's thoughts, from `<think>` (or `<thinking>`) at the beginning of a line to `</think>`. If
  the opening tag is in the prompt, everything before `</think>` is thought
- an example: a call within a code fence that holds more than calls or precedes more text. Some
  models fence their real calls too, at the end of the answer in a separate fence
- text after a made-up `<tool_result>`, which is dropped
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.content import ToolCall
from holdfast.llm.wires.calls import read_call
from holdfast.llm.wires.lenient_json import clean_texts

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


class _CallRange(msgspec.Struct):
    """A range of an answer's text that consists of calls."""

    start: int
    end: int
    calls: list[ToolCall]
    fenced: bool


def read_text(answer: str, cut_off: bool = False) -> tuple[str, list[ToolCall]]:
    """Return an answer's text without its calls, and the calls. White space is removed after the
    text, and before it if calls come first. A call without a closing tag was left open or cut short
    by a stop sequence. Without complete JSON it is invalid, or text if the answer was `cut_off`."""
    ranges, end = _find(answer, cut_off)
    call_ranges: list[_CallRange] = []
    last = end
    for candidate in reversed(ranges):
        if not candidate.fenced or _is_blank(answer, candidate.end, last):
            call_ranges.insert(0, candidate)
            last = candidate.start
    if not call_ranges:
        return answer, []
    texts: list[str] = []
    at = 0
    for candidate in call_ranges:
        texts.append(answer[at : candidate.start])
        at = candidate.end
    text = "".join([*texts, answer[at:end]]).rstrip()
    calls = [call for candidate in call_ranges for call in candidate.calls]
    return text if texts[0].strip() else text.lstrip(), calls


def _find(answer: str, cut_off: bool) -> tuple[list[_CallRange], int]:
    """Return all ranges that may be calls, and the end of the answer."""
    ranges: list[_CallRange] = []
    thinking = False
    fence: _Fence | None = None
    at, end = 0, len(answer)
    while tag := _TAGS.search(answer, at):
        start, at = tag.span()
        word = tag[0]
        if word.startswith("<think"):
            thinking = thinking or _begins_line(answer, start)
        elif word.startswith("</think"):
            if not thinking and answer[start - 1 : start] != "`":
                ranges, fence = [], None
            thinking = False
        elif thinking:
            continue
        elif word.startswith("```"):
            if fence is not None:
                ranges, fence = fence.close(answer, ranges, start, start + 3), None
            elif _begins_line(answer, start, indented=True):
                fence = _Fence(start, at, len(ranges))
        elif word == RESULT:
            last = ranges[-1] if ranges and fence is None else None
            if last and (not last.fenced or _is_blank(answer, last.end, start)):
                end = start
                break
        elif fence is not None or answer[start - 1 : start] != "`":
            lead = _LEAD.match(answer, start)
            if lead is not None and answer[lead.end() : lead.end() + 1] in ("{", "["):
                calls, at = _calls(answer, lead.end(), cut_off)
                if calls:
                    ranges.append(_CallRange(start, at, calls, fence is not None))
    if fence is not None:
        ranges = fence.close(answer, ranges, end, end)
    return ranges, end


class _Fence(msgspec.Struct):
    """A code fence: its start, the start of its text, and the number of call ranges before it."""

    start: int
    inside: int
    before: int

    def close(
        self, answer: str, ranges: list[_CallRange], start: int, end: int
    ) -> list[_CallRange]:
        """Return the call ranges after the fence ends. The ranges inside the fence become one
        range with it, or are dropped if the fence holds anything else."""
        before, inside = ranges[: self.before], ranges[self.before :]
        at = self.inside
        for part in inside:
            if not _is_blank(answer, at, part.start) or part.start - at > 99:
                return before
            at = part.end
        if not inside or not _is_blank(answer, at, start):
            return before
        calls = [call for part in inside for call in part.calls]
        return [*before, _CallRange(self.start, end, calls, True)]


def _is_blank(answer: str, start: int, end: int) -> bool:
    return not answer[start:end].strip()


def _begins_line(answer: str, at: int, indented: bool = False) -> bool:
    if answer[at - 1 : at] in ("", "\n") or not answer[:at].strip():
        return True
    line = answer[max(0, at - 20) : at].rpartition("\n")
    return indented and bool(line[1]) and not line[2].strip()


def _calls(answer: str, at: int, cut_off: bool) -> tuple[list[ToolCall], int]:
    """Return the calls of the JSON that begins at `at`, and their end. Without calls, everything
    up to that end is text."""
    calls: list[ToolCall] = []
    while True:
        try:
            value, end = _json().raw_decode(answer, at)
            decoded: Any = clean_texts(value)
        except (ValueError, RecursionError) as error:
            closed = answer.find(CLOSE, at)
            if closed >= 0:
                return [*calls, _unreadable(answer[at:closed])], closed + len(CLOSE)
            if cut_off or not _is_unfinished(answer, error):
                return calls, at
            return [*calls, _unreadable(answer[at:])], len(answer)
        items = cast("list[Any]", decoded) if isinstance(decoded, list) else []
        if items and all(isinstance(item, dict) for item in items):
            calls += [_call(item, msgspec.json.encode(item).decode()) for item in items]
        else:
            calls.append(_call(decoded, answer[at:end]))
        more = _NEXT.match(answer, end)
        if more is None:
            closed = _END.match(answer, end)
            return calls, closed.end() if closed else end
        at = more.end()


def _is_unfinished(answer: str, error: Exception) -> bool:
    at_end = getattr(error, "pos", 0) >= len(answer.rstrip())
    return at_end or getattr(error, "msg", "").startswith("Unterminated")


@lru_cache(1)
def _json() -> JSONDecoder:
    from json import JSONDecoder  # reports where a value ends; rarely needed

    return JSONDecoder(strict=False, parse_constant=lambda _: None)


def _call(item: Any, text: str) -> ToolCall:
    if isinstance(item, dict):
        fields = cast("dict[str, Any]", item)
        if isinstance(fields.get("name"), str):
            return read_call(fields["name"], fields.get("arguments", fields.get("parameters")), "")
    return _unreadable(text)


def _unreadable(text: str) -> ToolCall:
    text = text.strip().removesuffix("```").strip()
    name = _NAME.search(text)
    call = read_call(name[1] if name else "", text, "")
    return ToolCall("", call.name, {}, "", text, call.invalid or _SHAPE)


class TextLookahead:
    """A filter for streamed text that holds back any text that may begin a call.

    `feed` returns the text that can be forwarded. After the first tag that may open a call
    outside of thinking, `feed` returns nothing.
    """

    __slots__ = ("_at_start", "_call_found", "_held_back", "_last", "_thinking")

    def __init__(self) -> None:
        self._held_back = ""  # text that may begin a tag
        self._last = "\n"  # the character before `_held_back`
        self._at_start = True  # True if only white space precedes `_held_back`
        self._thinking = False
        self._call_found = False

    def feed(self, piece: str) -> str:
        """Add some text and return the part that can be forwarded."""
        if self._call_found:
            return ""
        text = self._held_back + piece
        keep = len(text)
        if "<" in text or "`" in text:
            keep = self._read(text)
        self._held_back = text[keep:]
        text = text[:keep]
        if text:
            self._last = text[-1]
            self._at_start = self._at_start and not text.strip()
        return text

    def _read(self, text: str) -> int:
        at = 0
        fence = (0, -1)  # the last fence, and the position after it
        while tag := _TAGS.search(text, at):
            start, at = tag.span()
            word = tag[0]
            if word.startswith("```"):
                match = _FENCE.match(text, start)
                fence = start, match.end() if match is not None else at
                rest = text[fence[1] :]  # may become a tag that opens a call
                if not self._thinking and len(rest) < len(OPEN) and OPEN.startswith(rest):
                    return start
            elif word.startswith("<think"):
                before = text[start - 1 : start] if start else self._last
                begins_text = self._at_start and not text[:start].strip()
                self._thinking = self._thinking or before == "\n" or begins_text
            elif word.startswith("</think"):
                self._thinking = False
            elif word == OPEN and not self._thinking:
                lead = _LEAD.match(text, start)
                behind = lead.end() if lead is not None else at
                if fence[1] == start:
                    start = fence[0]
                if behind == len(text):  # undecided without more text
                    return start
                self._call_found = text[behind] in "{["
                may_be_fence = len(text) - behind < 3 and not text[behind:].strip("`")
                if self._call_found or may_be_fence:
                    return start
        if text.endswith("`") and not text.endswith("```"):
            return len(text.rstrip("`"))
        tag_start = text.rfind("<", max(at, len(text) - _LONGEST_TAG))
        tags = (OPEN, "<think>", "<thinking>", "</think>", "</thinking>")
        is_held_back = tag_start >= 0 and any(one.startswith(text[tag_start:]) for one in tags)
        return tag_start if is_held_back else len(text)
