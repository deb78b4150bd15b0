"""Answers of Chat Completions, plain and streamed.

Both forms end in `_completion`, so their results cannot differ: a stream is first put together
into the object that a plain answer is.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Raw

from holdfast.answer import REFUSAL
from holdfast.errors import BadResponse, LLMError, ServerError
from holdfast.llm.completion import Completion, Delta
from holdfast.llm.wires import answers, chat_details, chat_plain, think_tags
from holdfast.llm.wires.answers import as_dict, as_list
from holdfast.llm.wires.chat_hosts import ChatRules
from holdfast.llm.wires.chat_pieces import (
    WHOLE_ITEMS,
    add_items,
    add_thinking,
    join_base64,
    merge,
    merge_others,
)
from holdfast.llm.wires.failures import excerpt, reported_error
from holdfast.llm.wires.lenient_json import clean_texts, encode, join_surrogates
from holdfast.llm.wires.plain import as_json
from holdfast.llm.wires.streams import StreamParser

NAME = "openai_chat"

REASONING_KEYS = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
# Parts of a message that go back to the provider as they came. `reasoning_opaque` is GitHub
# Copilot's, and `thinking_blocks` are LiteLLM's form of Claude's signed thinking.
CARRIED_KEYS = ("reasoning_details", "reasoning_opaque", "extra_content", "thinking_blocks")
PLAIN_KEYS = {"role", "content", "tool_calls", "refusal", "annotations"}
CALL_KEYS = {"index", "id", "type", "function", "custom", "name", "arguments"}
FUNCTION_KEYS = {"name", "arguments"}
_DEFAULT = ChatRules()

_STOP_REASONS = {
    "complete": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "finish_reason_unspecified": "stop",
    "stop": "stop",
    "stop_sequence": "stop",
    "function_call": "tool_calls",
    "tool_call": "tool_calls",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_length": "length",
    "max_output_tokens": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "model_length": "length",
    "blocklist": "content_filter",
    "content_filter": "content_filter",
    "guardrail_intervened": "content_filter",
    "prohibited_content": "content_filter",
    "recitation": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
}
# OpenRouter, DeepSeek, Zhipu and vLLM: the server broke off its answer.
_BROKEN_OFF = {"error", "insufficient_system_resource", "network_error", "abort"}
# MiniMax's codes of errors that come with status 200 -> HTTP statuses.
_MINIMAX_STATUSES = {
    1001: 504,
    1002: 429,
    1004: 401,
    1008: 402,
    1026: 400,
    1027: 400,
    1039: 429,
    2013: 400,
    2049: 401,
    2056: 429,
}

_objects = msgspec.json.Decoder(dict[str, Any])
_json = msgspec.json.Encoder().encode


class _About(msgspec.Struct):
    id: Any
    model: Any


class _RawChoice(msgspec.Struct):
    message: Raw


class _RawAnswer(msgspec.Struct):
    """The choices of an answer, with the bytes of their messages."""

    choices: list[_RawChoice]


_raw_answers = msgspec.json.Decoder(_RawAnswer)


def parse(data: bytes, rules: ChatRules = _DEFAULT) -> Completion:
    """Return the completion of an answer that is not streamed. Raises the error that it reports, or
    `BadResponse`."""
    return chat_plain.read(data, NAME, rules) or parse_any(data, rules)


def parse_any(data: bytes, rules: ChatRules = _DEFAULT) -> Completion:
    """Return the completion of an answer with any content, as `parse` does."""
    return answers.read_answer(
        data, _objects, lambda value, data: _read(value, data, rules), "a chat completion"
    )


def _read(answer: dict[str, Any], data: bytes, rules: ChatRules) -> Completion:
    if error := _reported_error(answer):
        raise error
    choices = as_list(answer.get("choices"))
    if not choices:
        raise answers.bad_answer("a chat completion: it has no choices", data)
    choice = as_dict(choices[0])
    message = choice.get("message")
    if error := _choice_error(choice):
        raise error
    if message is None and choice.get("finish_reason") == "content_filter":
        message = {}  # Azure leaves out the message that its filter stopped
    if not isinstance(message, dict):
        raise answers.bad_answer("a chat completion: it has no message", data)
    return _completion(answer, choice, cast("dict[str, Any]", message), rules, data)


def _reported_error(answer: dict[str, Any]) -> LLMError | None:
    """Return the error that an answer with status 200 reports, in any provider's form."""
    if answer.get("error"):
        return reported_error(answer)
    if answer.get("choices"):
        return None
    status = as_dict(answer.get("base_resp")).get("status_code")
    if status:  # MiniMax
        text = as_dict(answer.get("base_resp")).get("status_msg") or "no reason given"
        code = _MINIMAX_STATUSES.get(status, 500) if isinstance(status, int) else 500
        return reported_error({"code": code, "message": f"{text} ({status})"})
    failed = answer.get("object") == "error" or answer.get("success") is False
    if failed or answer.get("errors") or answer.get("detail"):
        return reported_error(answer)
    has_code = any(answer.get(key) for key in ("code", "type", "status"))
    return reported_error(answer) if has_code and answer.get("message") else None


def _choice_error(choice: dict[str, Any]) -> LLMError | None:
    """Return OpenRouter's error within a choice. An error beside a proper finish is only
    reported in the details."""
    error = choice.get("error")
    finish = str(choice.get("finish_reason") or "error").lower()
    return reported_error({"error": error}) if error and finish == "error" else None


def _completion(
    answer: dict[str, Any],
    choice: dict[str, Any],
    message: dict[str, Any],
    rules: ChatRules,
    data: bytes = b"",
) -> Completion:
    """Return a completion from the parts of an answer, plain or assembled from a stream. `data` is
    the plain answer's JSON."""
    builder = answers.CompletionBuilder()
    content, refusal = message.get("content"), message.get("refusal")
    is_plain = message.keys() <= PLAIN_KEYS  # the usual case, for which nothing more is looked up
    reasoning = "" if is_plain else _reasoning(message)
    is_split = False
    if isinstance(content, list):  # Mistral sends text and thinking as parts
        parts = [as_dict(part) for part in cast("list[Any]", content)]
        reasoning = reasoning or "".join(map(_thinking, parts))
        refusals = [part.get("refusal") for part in parts if part.get("type") == "refusal"]
        refusal = refusal or "".join([one for one in refusals if isinstance(one, str)])
        content = "".join([str(part["text"]) for part in parts if _is_text(part)])
        builder.needs_native = True
    elif rules.think_tags and isinstance(content, str):
        thoughts, answer_text = think_tags.split(content)
        is_split = answer_text != content
        reasoning, content = reasoning or thoughts, answer_text
    text = content if isinstance(content, str) else ""
    if not is_plain:
        text = text or str(as_dict(message.get("audio")).get("transcript") or "")
        reasoning = reasoning or _details_text(message.get("reasoning_details"))
    builder.texts.append(text)
    builder.thoughts.append(reasoning)
    entries = _call_entries(message)
    for entry in entries:
        item = as_dict(entry)
        if (custom := as_dict(item.get("custom"))).get("name"):
            arguments = {"input": str(custom.get("input") or "")}
            builder.add_call(str(custom["name"]), arguments, item.get("id") or "")
            builder.needs_native = True
            continue
        function = as_dict(item.get("function") if "function" in item else item)
        if not function or not ("function" in item or isinstance(function.get("name"), str)):
            raise answers.bad_part("an invalid tool call", entry)
        function_name = str(function.get("name") or "")
        builder.add_call(function_name, function.get("arguments"), item.get("id") or "")
        builder.covers(item, CALL_KEYS)
        builder.covers(function, FUNCTION_KEYS)
    if is_split or not is_plain:
        _keep_native(builder, message, entries, is_split, rules)
    word = str(choice.get("finish_reason") or "stop")
    if word.lower() in _BROKEN_OFF:
        raise ServerError(f"The provider broke off its answer (finish_reason {word!r}).")
    stop_reason = _STOP_REASONS.get(word.lower(), word)
    if isinstance(refusal, str) and refusal:
        builder.detail("refusal", join_surrogates(refusal))
        stop_reason = REFUSAL if stop_reason == "stop" and not entries else stop_reason
    chat_details.add(builder, answer, choice, message, is_split)
    about = _About(answer.get("id"), answer.get("model"))
    usage = chat_details.usage(answer, choice)
    native, raw = _native(message), None
    if data and builder.needs_native and native is message:
        raw = _raw_answers.decode(data).choices[0].message
    return builder.build(NAME, usage, stop_reason, about, native, raw)


def _reasoning(message: dict[str, Any]) -> str:
    """Return the text of the first field for reasoning that has one."""
    fields = [message.get(key) for key in REASONING_KEYS]
    return next((text for text in fields if isinstance(text, str) and text), "")


def _keep_native(
    builder: answers.CompletionBuilder,
    message: dict[str, Any],
    entries: list[Any],
    is_split: bool,
    rules: ChatRules,
) -> None:
    """Note that the message's own form is needed if any part of it goes back to the provider."""
    if any(message.get(key) for key in CARRIED_KEYS) or as_dict(message.get("audio")).get("id"):
        builder.needs_native = True
    sends = rules.send_reasoning
    has_field = any(message.get(key) for key in REASONING_KEYS)
    if (is_split or has_field) and sends in ("all", "tags"):
        builder.needs_native = True
    if has_field and entries and sends == "calls":
        builder.needs_native = True
    # DeepSeek requires the field beside calls even if it is empty.
    if entries and message.get("reasoning_content") == "" and sends == "all":
        builder.needs_native = True


def _native(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without its sound and pictures, which `media` holds."""
    media = {key for key in ("audio", "images", "image") if message.get(key)}
    if not media:
        return message
    fields = {key: value for key, value in message.items() if key not in media}
    audio = as_dict(message.get("audio"))
    place = {key: audio[key] for key in ("id", "expires_at") if audio.get(key)}
    return {**fields, "audio": place} if "id" in place else fields


def _call_entries(message: dict[str, Any]) -> list[Any]:
    """Return the tool calls of a message. `function_call` is OpenAI's first form of one."""
    entries: Any = message.get("tool_calls") or []
    if isinstance(entries, dict):
        entries = [entries]
    if not isinstance(entries, list):
        raise BadResponse(f"The answer's tool calls are not a list: {excerpt(encode(entries))}")
    single = as_dict(message.get("function_call"))
    if not entries and single.get("name"):
        return [{"function": single}]
    return cast("list[Any]", entries)


def _is_text(part: dict[str, Any]) -> bool:
    return bool(part.get("text")) and part.get("type") not in ("thinking", "reasoning")


def _thinking(part: dict[str, Any]) -> str:
    """Return the reasoning of a content part: Mistral's `thinking`, or a `reasoning` with a
    summary."""
    thinking = part.get("thinking")
    if isinstance(thinking, str):
        return thinking
    texts = as_list(thinking)
    if part.get("type") == "reasoning":
        texts = as_list(part.get("summary")) or [part]
    return "".join([str(one["text"]) for one in map(as_dict, texts) if one.get("text")])


def _details_text(details: Any) -> str:
    """Return the readable text of `reasoning_details`."""
    items = [as_dict(item) for item in as_list(details)]
    texts = [item.get("text") or item.get("summary") for item in items]
    return "".join([text for text in texts if isinstance(text, str)])


# --- streams ---


_CHOICE_PARTS = {"index", "delta", "message"}


class ChatStream(StreamParser):
    """A parser of one streamed answer.

    An answer is complete when its `finish_reason` has arrived; a chunk with the token counts may
    follow. `[DONE]` alone does not complete it, because proxies also write it after an interrupted
    stream. Nor is `[DONE]` required, because some servers never send it.
    """

    _piece_decoder = chat_plain.events

    def __init__(self, rules: ChatRules = _DEFAULT) -> None:
        super().__init__()
        self._rules = rules
        self._top: dict[str, Any] = {}  # the fields around the choices
        self._choice: dict[str, Any] = {}  # the fields of the choice, except its message
        self._content: list[str] = []
        self._parts: list[dict[str, Any]] = []  # content that comes in parts
        self._splitter = think_tags.ThinkSplitter() if rules.think_tags else None
        self._refusal: list[str] = []
        self._sound: list[str] = []  # base64
        self._reasoning: dict[str, list[str]] = {}  # server's key -> pieces
        self._calls: list[_StreamedCall] = []
        self._extra: dict[str, Any] = {}

    def _answer(self) -> Completion:
        content: Any = join_surrogates("".join(self._content)) or None
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._parts:
            message["content"] = clean_texts(self._parts)
        if self._refusal:
            message["refusal"] = join_surrogates("".join(self._refusal))
        for key, pieces in self._reasoning.items():
            message[key] = join_surrogates("".join(pieces))
        if self._calls:
            message["tool_calls"] = clean_texts([call.entry() for call in self._calls])
        message.update(clean_texts(self._extra))
        if self._sound:
            message["audio"] = {**as_dict(message.get("audio")), "data": join_base64(self._sound)}
        top, choice = clean_texts(self._top), clean_texts(self._choice)
        whole = {**top, "object": "chat.completion", "choices": [{**choice, "message": message}]}
        plain = chat_plain.read(as_json(whole), NAME, self._rules)
        return plain or _completion(top, choice, message, self._rules)

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        top, choices = self._top, event.get("choices")
        for key, value in event.items():
            if value and key != "choices":
                if type(value) is dict:
                    value = {**as_dict(top.get(key)), **cast("dict[str, Any]", value)}
                top[key] = value
        if "x_groq" in event and (error := as_dict(event["x_groq"]).get("error")):
            raise reported_error({"error": error})
        if not choices and (error := _reported_error(event)):
            raise error
        for choice in choices or ():
            if choice.get("index"):  # another alternative (n > 1); the first is the answer
                continue
            if choice.get("error") and (error := _choice_error(choice)):
                raise error
            for key, value in choice.items():
                if value and key not in _CHOICE_PARTS:
                    self._add_to_choice(key, value)
            delta = choice.get("delta")
            if not delta and not self._has_content:
                # MiniMax repeats the whole message at the end.
                delta = choice.get("message")
            if delta:
                self._delta(delta)
            if choice.get("finish_reason"):
                self.finished = True
                if self._splitter is not None:
                    for kind, piece in self._splitter.rest():
                        self._emit(kind, piece)

    def _add_piece(self, event: chat_plain.ChatEvent) -> Delta | None:
        choice = event.choices[0] if event.choices else None
        if choice is None or choice.finish_reason or event.usage:
            return None
        text, calls = choice.delta.content, choice.delta.tool_calls
        if text and not calls and self._splitter is None and not self._parts:
            self._content.append(text)
            delta = Delta("text", text)
        elif calls and not text and self._calls:
            call, piece = self._calls[-1], calls[0]
            arguments = piece.function.arguments
            if piece.index != call.index or piece.id or piece.function.name or not arguments:
                return None  # another call
            call.arguments.append(arguments)
            delta = Delta("tool", arguments, call.number)
        else:
            return None
        top = self._top
        if event.id:
            top["id"] = event.id
        if event.model:
            top["model"] = event.model
        if event.system_fingerprint:
            top["system_fingerprint"] = event.system_fingerprint
        if event.service_tier:
            top["service_tier"] = event.service_tier
        return delta

    @property
    def _has_content(self) -> bool:
        return bool(self._content or self._parts or self._calls or self._reasoning)

    def _add_to_choice(self, key: str, value: Any) -> None:
        """Add a field beside the message. Later values replace earlier ones, except that
        probabilities and filter results come in pieces."""
        fields = self._choice
        if key == "logprobs":
            lists: dict[str, list[Any]] = fields.setdefault(key, {})
            for name, items in as_dict(value).items():
                lists.setdefault(name, []).extend(as_list(items))
        elif isinstance(value, dict):
            fields[key] = {**as_dict(fields.get(key)), **cast("dict[str, Any]", value)}
        else:
            fields[key] = value

    def _delta(self, delta: dict[str, Any]) -> None:
        has_reasoning = False
        for key, value in delta.items():
            if key == "role" or (not value and key != "reasoning_content"):
                continue
            if key == "content":
                self._content_piece(value)
            elif key in REASONING_KEYS and isinstance(value, str):
                self._reasoning.setdefault(key, []).append(value)
                if value and not has_reasoning:  # some servers send it under both keys
                    has_reasoning = True
                    self._emit("reasoning", value)
            elif not value:
                continue
            elif key == "tool_calls":
                pieces: list[Any] = [value] if isinstance(value, dict) else value
                for piece in pieces:
                    self._call_piece(piece, is_one_of_many=len(pieces) > 1)
            elif key == "function_call":
                self._call_piece({"index": key, "function": value})
            elif key == "refusal" and isinstance(value, str):
                self._refusal.append(value)
            elif key == "audio" and isinstance(value, dict):
                self._audio_piece(cast("dict[str, Any]", value))
            elif key == "thinking_blocks":
                for block in map(as_dict, as_list(value)):
                    add_thinking(self._extra.setdefault(key, []), block)
            elif key in WHOLE_ITEMS:
                add_items(self._extra, key, value)
            else:
                merge(self._extra, key, value)
                if key == "reasoning_details" and not self._reasoning:
                    self._emit_details(delta)

    def _emit_details(self, delta: dict[str, Any]) -> None:
        """Emit the text of `reasoning_details`, if no other field has it."""
        text = _details_text(delta["reasoning_details"])
        if text and not any(delta.get(key) for key in REASONING_KEYS):
            self._emit("reasoning", text)

    def _content_piece(self, value: Any) -> None:
        if not isinstance(value, str):
            for part in map(as_dict, as_list(value)):
                self._part(part)
        elif self._parts:
            self._part({"type": "text", "text": value})
        else:
            self._content.append(value)
            if self._splitter is None:
                self._emit("text", value)
            else:
                for kind, piece in self._splitter.feed(value):
                    self._emit(kind, piece)

    def _part(self, part: dict[str, Any]) -> None:
        """Add a piece of content in parts, the form in which Mistral streams its thinking."""
        if not self._parts and self._content:
            self._parts.append({"type": "text", "text": "".join(self._content)})
        thinking, text = _thinking(part), part["text"] if _is_text(part) else ""
        last = self._parts[-1] if self._parts else {}
        if thinking:
            self._emit("reasoning", thinking)
            if part.get("type") == "thinking":
                part = {**part, "thinking": [{"type": "text", "text": thinking}]}
                if last.get("type") == "thinking":
                    last["thinking"][0]["text"] += thinking
                    merge_others(last, part, {"type", "thinking"})
                    return
        elif text:
            self._emit("text", text)
            if last.get("type") == "text" and part.get("type") == "text":
                last["text"] += text
                merge_others(last, part, {"type", "text"})
                return
        self._parts.append({**part})

    def _audio_piece(self, audio: dict[str, Any]) -> None:
        for key, value in audio.items():
            if key == "data" and isinstance(value, str):
                self._sound.append(value)
            elif key == "transcript" and isinstance(value, str):
                merge(self._extra, "audio", {key: value})
                if value and not self._content:
                    self._emit("text", value)
            elif value:
                self._extra["audio"] = {**as_dict(self._extra.get("audio")), key: value}

    def _call_piece(self, piece: dict[str, Any], is_one_of_many: bool = False) -> None:
        """Add a piece of a tool call. The `index` identifies the call; without an index, a new
        id or a new name after complete arguments begins a new call."""
        index = piece.get("index")
        function: dict[str, Any] = piece.get("function") or {}
        if "function" not in piece and "name" in piece:
            function = {key: piece[key] for key in FUNCTION_KEYS if key in piece}
        custom = as_dict(piece.get("custom"))
        if custom:
            function = {"name": custom.get("name"), "arguments": custom.get("input")}
        id, name = piece.get("id") or "", function.get("name") or ""
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = _json(arguments).decode()
        same = [one for one in self._calls if index is None or one.index == index]
        call = same[-1] if same else None
        # A new id with a name begins a new call even at an old index, because Gemini's servers
        # number all calls of a batch 0. A new id alone does not: vLLM once invented one for every
        # piece. Servers without ids and without indices send each call whole.
        if (
            call is None
            or (id and name and call.id and id != call.id)
            or (name and is_one_of_many and index is None and not id)
            or (name and not id and not call.id and call.is_followed_by(name, arguments))
        ):
            call = _StreamedCall(len(self._calls), index, id)
            self._calls.append(call)
        call.is_custom = call.is_custom or bool(custom)
        first = call.add(id, name, arguments)
        if len(piece) > 2:  # more than index and function
            merge_others(call.extra, piece, CALL_KEYS)
        if len(function) > 1:
            merge_others(call.function, function, FUNCTION_KEYS)
        if arguments or first:
            self._deltas.append(Delta("tool", arguments, call.number, call.name if first else ""))


class _StreamedCall:
    """A tool call that is still arriving."""

    def __init__(self, number: int, index: Any, id: str) -> None:
        self.number = number
        self.index = index
        self.id = id
        self.name = ""
        self.arguments: list[str] = []
        self.is_custom = False  # True if the arguments are any text, not JSON
        self.extra: dict[str, Any] = {}
        self.function: dict[str, Any] = {}

    def is_followed_by(self, name: str, arguments: str) -> bool:
        """Return True if a named piece begins another call: the arguments so far are a whole
        object, and the piece adds something."""
        if not arguments and name == self.name:
            return False
        try:
            return isinstance(msgspec.json.decode("".join(self.arguments)), dict)
        except (ValueError, RecursionError):
            return False

    def add(self, id: str, name: str, arguments: str) -> bool:
        """Add a piece. Return True if it was the first with a name."""
        first = bool(name) and not self.name
        self.id = self.id or id
        if first:
            self.name = name
        elif name and name != self.name and not self.arguments:
            # A name in pieces. Servers that repeat a name repeat it in full.
            self.name += name
        if arguments:
            self.arguments.append(arguments)
        return first

    def entry(self) -> dict[str, Any]:
        arguments = "".join(self.arguments)
        if self.is_custom:
            custom = {"name": self.name, "input": arguments}
            return {"id": self.id, "type": "custom", "custom": custom, **self.extra}
        function = {"name": self.name, "arguments": arguments, **self.function}
        return {"id": self.id, "type": "function", "function": function, **self.extra}
