"""Tool calls as text, for models without tool calling: a wire around another wire.

The system prompt describes the tools, and the model writes a call as

    <tool_call>
    {"name": "read_file", "arguments": {"path": "a.txt"}}
    </tool_call>

Many open models were trained on this form. Results are sent in a user message, each within
`<tool_result>`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from holdfast.content import Content, TextContent, ToolCall
from holdfast.llm.completion import NO_NATIVE, Completion, Delta, OnDelta
from holdfast.llm.wires import protocol
from holdfast.llm.wires.calls import wire_arguments, wire_name
from holdfast.llm.wires.content_parts import media_of, result_text, with_mentions
from holdfast.llm.wires.streams import StreamParser
from holdfast.llm.wires.text_call_parser import CLOSE, OPEN, RESULT, TextLookahead, read_text

_json = msgspec.json.Encoder().encode

PROMPT = """\
# Tools

You have the tools below. To call one, write this and nothing after it:

<tool_call>
{"name": "the tool's name", "arguments": {"an argument": "its value"}}
</tool_call>

The arguments are one JSON object that fits the tool's schema. To call several tools at once, write
several such blocks. Then stop: the results follow in the next message, within <tool_result>. Never
write a <tool_result> yourself. An answer without such a block ends the work.
"""


class TextCalls:
    """The wire `inner` without its own tool calling. Unless `reads_calls` is True, text of an
    answer is never read as a call."""

    def __init__(self, inner: protocol.Wire, reads_calls: bool = True) -> None:
        self.inner = inner
        self.reads_calls = reads_calls
        self.name = inner.name + protocol.TEXT_SUFFIX
        self.bound = inner.bound
        self.path = inner.path
        self.headers = inner.headers
        self.system = inner.system
        self.user = inner.user
        self.body = inner.body
        self.family = inner.family
        self.error = inner.error
        for member in protocol.OPTIONAL_MEMBERS:
            setattr(self, member, getattr(inner, member, None))

    def call_id(self, call: ToolCall, family: str = "") -> str:
        """Return "": calls as text have no ids, because their results follow in order."""
        return ""

    def assistant(
        self, text: str, calls: protocol.Calls, native: Raw, names: protocol.Names, family: str = ""
    ) -> bytes:
        """Encode an answer with its calls as the model wrote them. If the provider assigned ids
        to some calls, only text and calls are sent."""
        if any(call.provider_id for call in calls):
            native = NO_NATIVE
        parts = [text] if text else []
        for call in calls:
            name, arguments = _string(wire_name(call.name, names)), wire_arguments(call)
            parts.append(f'{OPEN}\n{{"name": {name}, "arguments": {arguments}}}\n{CLOSE}')
        return self.inner.assistant("\n".join(parts), (), native, names, family)

    def results(self, batch: protocol.Results, names: protocol.Names, family: str = "") -> bytes:
        blocks: list[Content] = []
        for call, result in batch:
            error = ' error="true"' if result.is_error else ""
            name = _string(wire_name(call.name, names))
            media_parts = [media_of(block) for block in result.content]
            kinds = [media.mime_type or media.kind if media else "" for media in media_parts]
            text = result_text(with_mentions(result, kinds))
            block = f"{RESULT} name={name}{error}>\n{text}\n</tool_result>"
            blocks.append(TextContent(block))
            pairs = zip(result.content, media_parts, strict=True)
            # The inner wire has its own text for a file that it cannot express.
            blocks += [block for block, media in pairs if media]
        return self.inner.user(blocks, family)

    def head(
        self,
        model: str,
        system_prompt: str,
        tools: protocol.Tools,
        parameters: protocol.Parameters,
        names: protocol.Names,
    ) -> protocol.RequestHead:
        """Return the head, with the tools described in the system prompt."""
        if tools:
            lines = [PROMPT]
            for tool in tools:
                description = {"name": wire_name(tool.name, names), "description": tool.description}
                lines.append(_json({**description, "parameters": tool.input_schema}).decode())
            system_prompt = "\n\n".join(filter(None, (system_prompt, "\n".join(lines))))
        return self.inner.head(model, system_prompt, (), parameters, names)

    def parse(self, data: bytes) -> Completion:
        return self.with_calls(self.inner.parse(data))

    def stream(self) -> StreamParser:
        parser = self.inner.stream()
        parser.filter = _TextFilter(self)
        return parser

    def with_calls(self, answer: Completion) -> Completion:
        changes: dict[str, Any] = {"wire": self.name}
        if answer.calls:
            # A native form with calls would show the provider its calls without their results.
            changes["native"] = NO_NATIVE
        if self.reads_calls:
            text, parsed_calls = read_text(answer.text, answer.stop_reason in _CUT_OFF)
            if parsed_calls:
                calls = (*answer.calls, *parsed_calls)
                changes |= {"text": text, "calls": calls, "stop_reason": "tool_calls"}
        return msgspec.structs.replace(answer, **changes)


_CUT_OFF = ("length", "content_filter")


def _string(text: str) -> str:
    return _json(text).decode()


class _TextFilter:
    """The filter of one streamed answer. Text is forwarded as it arrives until a call may have
    begun. The rest is forwarded at the end: only then is it known whether it holds a call."""

    def __init__(self, wire: TextCalls) -> None:
        self._wire = wire
        self._lookahead = TextLookahead() if wire.reads_calls else None
        # Trailing white space so far, which is dropped before calls.
        self._trailing_space: list[str] = []
        self._sent_chars = 0  # number of characters forwarded

    def delta(self, delta: Delta, on_delta: OnDelta) -> None:
        if delta.kind != "text" or self._lookahead is None:
            on_delta(delta)
            return
        text = self._lookahead.feed(delta.text)
        visible = text.rstrip()
        if visible:
            self._send("".join([*self._trailing_space, visible]), on_delta)
            self._trailing_space = []
        if len(visible) < len(text):
            self._trailing_space.append(text[len(visible) :])

    def _send(self, text: str, on_delta: OnDelta) -> None:
        self._sent_chars += len(text)
        on_delta(Delta("text", text))

    def answer(self, answer: Completion, on_delta: OnDelta | None) -> Completion:
        native_calls = len(answer.calls)
        answer = self._wire.with_calls(answer)
        if on_delta is not None and self._lookahead is not None:
            rest = answer.text[self._sent_chars :]
            if rest:
                self._send(rest, on_delta)
            for index, call in enumerate(answer.calls[native_calls:], native_calls):
                on_delta(Delta("tool", call.raw_arguments, index, call.name))
        return answer
