"""A wire of one's own: Ollama's native chat API (`/api/chat`), whose streams are JSON lines.

LLM("qwen3", base_url="http://localhost:11434", wire=OllamaWire(), stream=True)
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.content import Content, ImageContent, ToolCall, Usage
from holdfast.errors import ConfigurationError, LLMError
from holdfast.llm.completion import Completion
from holdfast.llm.wires.answers import CompletionBuilder, as_dict, as_list, count, read_answer
from holdfast.llm.wires.calls import wire_input, wire_name
from holdfast.llm.wires.content_parts import as_text, result_text
from holdfast.llm.wires.failures import http_error, reported_error
from holdfast.llm.wires.lenient_json import clean_texts
from holdfast.llm.wires.protocol import (
    JSON_HEADERS,
    Calls,
    Names,
    Parameters,
    RequestHead,
    Results,
    Tools,
    join_body,
    merge_extra,
    set_parameters,
)
from holdfast.llm.wires.sse import EventReader
from holdfast.llm.wires.streams import StreamParser

NAME = "ollama_chat"
_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(dict[str, Any])

# Holdfast's parameters, and their names in Ollama's `options`.
_OPTIONS = {
    **{key: key for key in ("temperature", "top_p", "seed", "stop")},
    "max_output_tokens": "num_predict",
}
_UNSUPPORTED = ("reasoning_budget", "parallel_tool_calls")


class OllamaWire:
    """Ollama's chat API. It has no ids of calls: results follow in the order of their calls."""

    name = NAME
    bound = False

    # --- requests ---

    def path(self, model: str, stream: bool) -> str:
        return "/api/chat"

    def headers(self, api_key: str) -> dict[str, str]:
        return JSON_HEADERS | ({"Authorization": f"Bearer {api_key}"} if api_key else {})

    def family(self, model: str, host: str) -> str:
        return ""

    def call_id(self, call: ToolCall, family: str = "") -> str:
        return ""

    def system(self, text: str) -> bytes:
        return _json({"role": "system", "content": text})

    def user(self, content: Sequence[Content], family: str = "") -> bytes:
        pictures = [block for block in content if isinstance(block, ImageContent)]
        texts = [as_text(block) for block in content if not isinstance(block, ImageContent)]
        message: dict[str, Any] = {"role": "user", "content": "\n".join(texts)}
        if pictures:
            message["images"] = [b64encode(picture.data).decode() for picture in pictures]
        return _json(message)

    def assistant(
        self, text: str, calls: Calls, native: msgspec.Raw, names: Names, family: str = ""
    ) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if native and (thinking := _decoder.decode(native).get("thinking")):
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = [
                {"function": {"name": wire_name(call.name, names), "arguments": wire_input(call)}}
                for call in calls
            ]
        return _json(message)

    def results(self, batch: Results, names: Names, family: str = "") -> bytes:
        return b",".join(
            _json(
                {
                    "role": "tool",
                    "tool_name": wire_name(call.name, names),
                    "content": result_text(result),
                }
            )
            for call, result in batch
        )

    def head(
        self, model: str, system_prompt: str, tools: Tools, parameters: Parameters, names: Names
    ) -> RequestHead:
        for key in _UNSUPPORTED:
            if parameters.get(key) is not None:
                raise ConfigurationError(f"LLM: {key} is not supported on the wire {NAME}.")
        body: dict[str, Any] = {"model": model}
        if options := set_parameters(parameters, _OPTIONS):
            body["options"] = options
        if parameters.get("reasoning_effort"):
            body["think"] = parameters["reasoning_effort"]
        if form := parameters.get("response_format"):
            body["format"] = as_dict(form.get("json_schema")).get("schema", "json")
        if tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": wire_name(tool.name, names),
                        "description": tool.description,
                        "parameters": tool.input_schema,
                    },
                }
                for tool in tools
            ]
        merge_extra(body, parameters.get("extra_body") or {}, objects=("options",))
        prefix = _json(body)[:-1] + b',"messages":['
        if system_prompt:
            prefix += self.system(system_prompt)
        # Ollama streams unless it is told not to.
        return RequestHead(prefix, b'],"stream":false}', first=not system_prompt)

    def body(self, head: RequestHead, fragments: Sequence[bytes], stream: bool) -> bytes:
        return join_body(head, fragments, stream)

    # --- answers ---

    def parse(self, data: bytes) -> Completion:
        return read_answer(data, _decoder, _whole, "an answer of Ollama")

    def stream(self) -> StreamParser:
        return _Lines()

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, url: str = "", model: str = ""
    ) -> LLMError:
        return http_error(status, headers, body, url, model)


class _About(msgspec.Struct):
    model: Any
    id: str = ""


def _whole(answer: dict[str, Any], data: bytes) -> Completion:
    if answer.get("error"):
        raise reported_error(answer)
    if not isinstance(answer.get("message"), dict) or answer.get("done") is not True:
        raise ValueError("no finished message")
    return _completion(answer["message"], answer)


def _completion(message: dict[str, Any], last: dict[str, Any]) -> Completion:
    """Return the answer with the counts of `last`, the only or the last object of an answer."""
    builder = CompletionBuilder()
    builder.texts.append(message.get("content") or "")
    builder.thoughts.append(message.get("thinking") or "")
    for entry in message.get("tool_calls") or ():
        builder.add_call(entry["function"]["name"], entry["function"].get("arguments"), "")
    builder.needs_native = bool(message.get("thinking"))
    usage = Usage(count(last, "prompt_eval_count"), count(last, "eval_count"))
    reason = str(last.get("done_reason") or "stop")
    kept = clean_texts({"role": "assistant", "thinking": message.get("thinking")})
    return builder.build(NAME, usage, reason, _About(last.get("model")), kept, None)


class _JsonLines(EventReader):
    """A reader of JSON lines. Every line is an event without a name."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        super().__init__()
        self._rest = b""

    def feed(self, chunk: bytes) -> list[tuple[bytes, bytes]]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [(b"", line) for line in lines]

    def rest(self) -> list[tuple[bytes, bytes]]:
        return self.feed(b"\n")


class _Lines(StreamParser):
    """A parser of one streamed answer. Its last line is `done`."""

    def __init__(self) -> None:
        super().__init__(_JsonLines())
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Any] = []
        self._last: dict[str, Any] = {}

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        message = as_dict(event.get("message"))
        if text := message.get("content"):
            self._texts.append(text)
            self._emit("text", text)
        if thought := message.get("thinking"):
            self._thoughts.append(thought)
            self._emit("reasoning", thought)
        for call in as_list(message.get("tool_calls")):
            function = call["function"]
            arguments = _json(function.get("arguments") or {}).decode()
            self._emit("tool", arguments, len(self._calls), function["name"])
            self._calls.append(call)
        if event.get("done"):
            self._last = event
            self.finished = self.done = True

    def _answer(self) -> Completion:
        message: dict[str, Any] = {
            "content": "".join(self._texts),
            "thinking": "".join(self._thoughts),
            "tool_calls": self._calls,
        }
        return _completion(message, self._last)
