"""Tool calls as text, for models that cannot call tools: a wire around another wire.

The model is told of the tools in its system prompt and writes a call as

    <tool_call>
    {"name": "read_file", "arguments": {"path": "a.txt"}}
    </tool_call>

which is how many open models were trained to; results come in a user message, each within `<tool_result>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.content import Content, ImageContent, TextContent, ToolCall, ToolResult
from holdfast.errors import LLMError
from holdfast.events import ToolDefinition
from holdfast.llm.completion import Completion, Delta, OnDelta
from holdfast.llm.wires import TEXT, Head, Names, Parser, Wire
from holdfast.llm.wires.blocks import result_text
from holdfast.llm.wires.calls import read_call, wire_arguments, wire_name
from holdfast.llm.wires.lenient import clean, decode

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_RESULT = "<tool_result"
_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')
_FENCE = re.compile(r"^```\w*\s*|\s*```$")

_json = msgspec.json.Encoder().encode

PROMPT = """\
# Tools

You have the tools below. To call one, write this and nothing behind it:

<tool_call>
{"name": "the tool's name", "arguments": {"an argument": "its value"}}
</tool_call>

The arguments are one JSON object that fits the tool's schema. To call several tools at once, write several such blocks. Then stop: you are told
the results in the next message, within <tool_result>. Never write a <tool_result> yourself. Without such a block your answer ends the work.
"""


class TextCalls:
    """`inner`, spoken without tools of its own."""

    def __init__(self, inner: Wire) -> None:
        self.inner = inner
        self.name = inner.name + TEXT
        self.bound = inner.bound
        self.path = inner.path
        self.headers = inner.headers
        self.system = inner.system
        self.user = inner.user
        self.body = inner.body

    def assistant(self, text: str, calls: Sequence[ToolCall], native: msgspec.Raw, names: Names) -> bytes:
        """An answer, its calls written as the model wrote them."""
        parts = [text] if text else []
        parts += [f'{OPEN}\n{{"name": {_string(wire_name(c.name, names))}, "arguments": {wire_arguments(c)}}}\n{CLOSE}' for c in calls]
        return self.inner.assistant("\n".join(parts), (), native, names)

    def results(self, batch: Sequence[tuple[ToolCall, ToolResult]], names: Names) -> bytes:
        """The results of a batch, in one user message."""
        found: list[Content] = []
        for call, result in batch:
            error = ' error="true"' if result.is_error else ""
            said = f"{_RESULT} name={_string(wire_name(call.name, names))}{error}>\n{result_text(result)}\n</tool_result>"
            found.append(TextContent(said))
            found += [block for block in result.content if isinstance(block, ImageContent)]
        return self.inner.user(found)

    def head(self, model: str, system_prompt: str, tools: Sequence[ToolDefinition], parameters: Mapping[str, Any], names: Names) -> Head:
        """The tools stand in the system prompt."""
        if tools:
            told = [
                _json({"name": wire_name(t.name, names), "description": t.description, "parameters": t.input_schema}).decode()
                for t in tools
            ]
            system_prompt = "\n\n".join([part for part in (system_prompt, PROMPT + "\n" + "\n".join(told)) if part])
        return self.inner.head(model, system_prompt, (), parameters, names)

    def parse(self, data: bytes) -> Completion:
        """A plain answer, its calls taken out of the text."""
        return self._with_calls(self.inner.parse(data))

    def stream(self) -> Parser:
        """A parser for one streamed answer."""
        return _Stream(self.inner.stream(), self._with_calls)

    def error(self, status: int, headers: Mapping[str, str], body: bytes, url: str = "", model: str = "") -> LLMError:
        """As the inner wire's."""
        return self.inner.error(status, headers, body, url, model)

    def _with_calls(self, answer: Completion) -> Completion:
        text, written, rest = read_text(answer.text)
        calls = [_call(block) for block in written]
        if rest and answer.stop_reason != "length":  # it forgot the end, or a stop sequence took it
            calls.append(_call(rest))
        elif rest:
            text = f"{text}\n{OPEN}{rest}"
        if not calls:
            return msgspec.structs.replace(answer, wire=self.name)
        return msgspec.structs.replace(answer, text=text, calls=tuple(calls), stop_reason="tool_calls", wire=self.name)


def read_text(said: str) -> tuple[str, list[str], str]:
    """What an answer says besides its calls, what stands within each of them, and what stands in one that has no end."""
    texts: list[str] = []
    blocks: list[str] = []
    at = 0
    while (start := said.find(OPEN, at)) >= 0:
        texts.append(said[at:start])
        end = said.find(CLOSE, start)
        if end < 0:
            return "".join(texts).strip(), blocks, said[start + len(OPEN) :]
        blocks.append(said[start + len(OPEN) : end])
        at = end + len(CLOSE)
    if blocks:  # some go on and make up the results
        texts.append(said[at:].partition(_RESULT)[0])
        return "".join(texts).strip(), blocks, ""
    return said, [], ""


def _call(block: str) -> ToolCall:
    text = _FENCE.sub("", block.strip()).strip()
    try:
        found = clean(decode(text))
    except ValueError:
        found = None
    if isinstance(found, dict):
        item = cast("dict[str, Any]", found)
        if isinstance(item.get("name"), str):
            return read_call(item["name"], item.get("arguments", item.get("parameters")), "")
    name = _NAME.search(text)
    call = read_call(name[1] if name else "", text, "")
    why = call.invalid or 'A call takes one JSON object with "name" and "arguments".'
    return ToolCall("", call.name, {}, "", text, why)


def _string(text: str) -> str:
    return _json(text).decode()


class _Stream:
    """The inner parser; text goes on to whoever listens, a call's as a call."""

    def __init__(self, inner: Parser, with_calls: Any) -> None:
        self._inner = inner
        self._with_calls = with_calls
        self._held = ""  # text that may be the beginning of a call, or is one
        self._index = 0
        self._listener: OnDelta | None = None

    @property
    def finished(self) -> bool:
        return self._inner.finished

    @property
    def done(self) -> bool:
        return self._inner.done

    def feed(self, chunk: bytes, on_delta: OnDelta | None = None) -> None:
        self._listener = on_delta
        if on_delta is None:
            self._inner.feed(chunk)
        else:
            self._inner.feed(chunk, lambda delta: self._tell(delta, on_delta))

    def _tell(self, delta: Delta, on_delta: OnDelta) -> None:
        if delta.kind != "text":
            on_delta(delta)
            return
        self._held += delta.text
        while True:
            start = self._held.find(OPEN)
            if start < 0:
                keep = next((n for n in range(min(len(OPEN) - 1, len(self._held)), 0, -1) if OPEN.startswith(self._held[-n:])), 0)
                end = len(self._held) - keep
                if self._held[:end]:
                    on_delta(Delta("text", self._held[:end]))
                self._held = self._held[end:]
                return
            if start:
                on_delta(Delta("text", self._held[:start]))
                self._held = self._held[start:]
            end = self._held.find(CLOSE)
            if end < 0:
                return
            call = _call(self._held[len(OPEN) : end])
            on_delta(Delta("tool", call.raw_arguments, self._index, call.name))
            self._index += 1
            self._held = self._held[end + len(CLOSE) :]

    def finish(self) -> Completion:
        answer = self._with_calls(self._inner.finish())
        if self._listener is not None and self._held and len(answer.calls) == self._index:
            self._listener(Delta("text", self._held))
        elif self._listener is not None:
            for index, call in enumerate(answer.calls[self._index :], self._index):
                self._listener(Delta("tool", call.raw_arguments, index, call.name))
        return answer
