"""`ScriptedLLM`: a model that answers from a script, for tests. Real requests are built and
recorded, but no socket is opened."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import repeat
from typing import Any, cast

import msgspec

from holdfast.content import ToolCall, Usage
from holdfast.errors import Cancelled, ConfigurationError, LLMError
from holdfast.llm.base import BaseModel, CompletionCall
from holdfast.llm.completion import Completion, Delta, OnDelta
from holdfast.llm.request import ModelRequest, RequestTarget, make_request
from holdfast.llm.wires import openai_chat
from holdfast.llm.wires.calls import limit_calls
from holdfast.tools.arguments import refuse_async


class ScriptedRequest:
    """One request to a `ScriptedLLM`: its `number` (from 0), its `body` (the bytes that an `LLM`
    would have sent), and views of them."""

    def __init__(self, number: int, request: ModelRequest) -> None:
        self.number = number
        self.body = request.body
        self.transcript = request.transcript
        self.tools = request.tools
        self.system = request.system

    @cached_property
    def json(self) -> dict[str, Any]:
        """The decoded body."""
        return msgspec.json.decode(self.body)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the body, the system message included, with `role`, `content`,
        `tool_calls` and so on."""
        return self.json["messages"]

    @property
    def text(self) -> str:
        """The text of the last message: a user's message or a tool's result."""
        content: Any = self.messages[-1].get("content") if self.messages else None
        if isinstance(content, list):
            parts = cast("list[dict[str, Any]]", content)
            return "\n".join(str(part["text"]) for part in parts if part.get("type") == "text")
        return content or ""

    def __repr__(self) -> str:
        return f"ScriptedRequest({self.number}, {self.body.decode()})"


Script = Iterable[Any] | Callable[[ScriptedRequest], Any]


class ScriptedLLM(BaseModel):
    """A model that gives the answers of a script, one for each request.

    `script` is a list (or any iterable) of answers, or one function that takes a `ScriptedRequest`
    and returns an answer. Use a function if several conversations share the model. An answer is one
    of:

    - a str
    - a call: a `ToolCall`, `(name, arguments)` or `{"name": ..., "arguments": ...}`, with an
      `id` if the provider's id matters
    - a list of calls and texts, for one answer
    - a `Completion`
    - an exception to raise
    - a function of the `ScriptedRequest` that returns one of these

    Other arguments and attributes:

    - `delay`: the seconds that an answer takes.
    - `stream`: True to pass the answer to `on_delta` word by word.
    - `images`: True if the model accepts pictures. None means unknown, and pictures are sent.
    - `requests`: the requests so far, with the bytes that an `LLM` would have sent.

    `usage` is invented: one token for every four bytes. Thread-safe.

    `completion` raises the script's exceptions, `Cancelled`, and an `LLMError` when the script
    has run out.
    """

    def __init__(
        self,
        script: Script,
        model: str = "scripted",
        *,
        delay: float = 0.0,
        stream: bool = False,
        images: bool | None = None,
    ) -> None:
        if isinstance(script, str | bytes | Mapping):
            raise ConfigurationError(
                f"ScriptedLLM: script takes a list of answers or a function, not {script!r}."
            )
        self.script = script
        self.model = model
        self.delay = delay
        self.stream = stream
        self.sees = images
        self.requests: list[ScriptedRequest] = []
        self._answers = repeat(script) if callable(script) else iter(script)
        self._lock = threading.Lock()

    def complete(self, call: CompletionCall) -> Completion:
        """Return the script's next answer."""
        started = time.monotonic()
        model_request = self._request(call)
        with self._lock:
            request = ScriptedRequest(len(self.requests), model_request)
            self.requests.append(request)
            answer: Any = next(self._answers, self)
        if answer is self:
            raise LLMError(
                f"The script of ScriptedLLM has run out: this is request {request.number + 1},"
                f" there are {request.number} answers. Its last message: {request.text[:200]!r}."
            )
        if self.delay:
            if call.cancelled is None:
                time.sleep(self.delay)
            else:
                call.cancelled.wait(self.delay)
        if call.cancelled:
            raise Cancelled("The model call was cancelled.")
        while callable(answer) and not isinstance(answer, type):
            answer = answer(request)
        completion = limit_calls(self._completion(answer, len(model_request.transcript)))
        refuse_async("completion: on_delta", call.on_delta)
        if call.on_delta is not None and self.stream:
            _stream(completion, call.on_delta)
        if not completion.usage.input_tokens:
            output = completion.text + "".join([call.raw_arguments for call in completion.calls])
            usage = Usage(_tokens(model_request), len(output) // 4 + 1)
            completion = msgspec.structs.replace(completion, usage=usage)
        return model_request.with_canonical_names(completion, duration=time.monotonic() - started)

    def _request(self, call: CompletionCall) -> ModelRequest:
        parameters = self.parameters() if call.head is None else call.head.parameters
        target = RequestTarget(openai_chat, self.model, parameters, f"scripted {self.model}")
        return make_request(target, call)

    def count(self, call: CompletionCall) -> int:
        """Return the input tokens of a call: one for every four bytes of its request."""
        return _tokens(self._request(call))

    def _completion(self, answer: Any, position: int) -> Completion:
        if isinstance(answer, BaseException) or (
            isinstance(answer, type) and issubclass(answer, BaseException)
        ):
            raise answer
        if isinstance(answer, Completion):
            return answer
        parts: list[Any] = cast("list[Any]", answer) if isinstance(answer, list) else [answer]
        text = "".join([part for part in parts if isinstance(part, str)])
        calls = [
            self._tool_call(part, f"call_{position}_{number}")
            for number, part in enumerate(parts)
            if not isinstance(part, str)
        ]
        reason = "tool_calls" if calls else "stop"
        return Completion(text, "", tuple(calls), Usage(), reason, self.model, openai_chat.name)

    def _tool_call(self, part: Any, id: str) -> ToolCall:
        """Return a tool call. Its provider id depends only on its place in the conversation, so
        a replay produces the same bytes."""
        if isinstance(part, ToolCall):
            return msgspec.structs.replace(
                part, id="", provider_id=part.provider_id or part.id or id
            )
        name, arguments = None, None
        if isinstance(part, tuple) and len(cast("tuple[Any, ...]", part)) == 2:
            name, arguments = cast("tuple[Any, Any]", part)
        elif isinstance(part, Mapping):
            fields = cast("Mapping[str, Any]", part)
            name, arguments = fields.get("name"), fields.get("arguments", {})
            id = str(fields.get("id", id))
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            raise ConfigurationError(
                "A script's answer takes a str, a call (ToolCall, (name, arguments) or a dict with"
                " these), a list of them, a Completion, an exception, or a function that returns"
                f" one, not {part!r}."
            )
        return ToolCall("", name, dict(cast("Mapping[str, Any]", arguments)), id)

    def parameters(self) -> dict[str, Any]:
        """Return `{"images": False}` for a model without vision, else nothing. A script has no
        settings."""
        return {"images": False} if self.sees is False else {}

    def cost(self, usage: Usage) -> float | None:
        """Return None: a script has no price."""
        return None

    def close(self) -> None:
        """Do nothing: a script holds no connections."""

    def __repr__(self) -> str:
        return f"ScriptedLLM(model={self.model!r}, requests={len(self.requests)})"


def _tokens(request: ModelRequest) -> int:
    return len(request.body) // 4


def _stream(completion: Completion, on_delta: OnDelta) -> None:
    if completion.reasoning:
        on_delta(Delta("reasoning", completion.reasoning))
    for word in re.findall(r"\s*\S+|\s+$", completion.text):
        on_delta(Delta("text", word))
    for index, call in enumerate(completion.calls):
        on_delta(Delta("tool", call.raw_arguments, index, call.name))
