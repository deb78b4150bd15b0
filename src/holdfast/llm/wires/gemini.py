"""The Gemini wire (`generateContent`), spoken by Google's Gemini API and by Vertex AI.

An answer that holds more than text and calls is sent back as exactly the content that came. Gemini
signs its thoughts, and Gemini 3 refuses a history in which a signature is lost or moved to another
part.

`base_url` is `https://generativelanguage.googleapis.com/v1beta`, or for Vertex AI, which requires
an OAuth token (`headers={"Authorization": "Bearer ..."}`)::

https://{region}-aiplatform.googleapis.com/v1/projects/{project}/locations/{region}/publishers/google
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote

import msgspec
from msgspec import Raw

from holdfast import errors
from holdfast.content import Content, EmbeddedResource, ToolCall, Usage
from holdfast.llm.completion import NO_NATIVE, Completion, Delta
from holdfast.llm.wires import answers, content_parts, protocol
from holdfast.llm.wires.calls import wire_input, wire_name
from holdfast.llm.wires.content_parts import Part
from holdfast.llm.wires.failures import excerpt, http_error, reported_error, shorten
from holdfast.llm.wires.lenient_json import clean_texts, decode, encode, join_surrogates
from holdfast.llm.wires.protocol import Calls, Names, Parameters, RequestHead, Results, Tools
from holdfast.llm.wires.sse import EventReader
from holdfast.llm.wires.streams import StreamParser
from holdfast.tools import styles

name = "gemini"
bound = True  # a host refuses the signatures of another
family = protocol.no_family
error = http_error

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

# Gemini 3 refuses a call of the current turn without a signature. Google's documentation of thought
# signatures gives this substitute for calls of another model, on Gemini API and Vertex AI alike.
# Older models need no signature but also receive it, because a fragment is not bound to one model.
_NO_SIGNATURE = "skip_thought_signature_validator"

_USER = b'{"role":"user"'
# The API requires requests to begin and end with a user's content. The beginning may have been
# condensed away, and an answer from another provider may end in a pause.
_OPENING_MESSAGE = b'{"role":"user","parts":[{"text":"(what came before is not shown)"}]}'
_CONTINUE_MESSAGE = b'{"role":"user","parts":[{"text":"Go on."}]}'

_FULL_NAMES = ("models/", "tunedModels/", "publishers/", "projects/", "endpoints/")
_MEDIA_TYPES = ("image/", "audio/", "video/", "application/pdf")
_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")

# Parameter -> its name in `generationConfig`.
_PARAMETERS = {
    "temperature": "temperature",
    "top_p": "topP",
    "max_output_tokens": "maxOutputTokens",
    "stop": "stopSequences",
    "seed": "seed",
}
# Effort -> the level, and for models before Gemini 3, which have no levels, the budget in tokens.
# 24576 is the limit of 2.5 Flash.
_EFFORTS = {
    "none": ("MINIMAL", 0),
    "minimal": ("MINIMAL", 512),
    "low": ("LOW", 2048),
    "medium": ("MEDIUM", 8192),
    "high": ("HIGH", 24576),
    "xhigh": ("HIGH", 24576),
    "max": ("HIGH", 24576),
}
_MIN_PRO_BUDGET_TOKENS = 128  # tokens; 2.5 Pro cannot turn thinking off


def path(model: str, stream: bool) -> str:
    """Return the path. A full name (`models/...`, `publishers/...`) is used unchanged."""
    full = model if model.startswith(_FULL_NAMES) else f"models/{model}"
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"/{quote(full, safe='/-._~@:')}:{method}"


def headers(api_key: str) -> dict[str, str]:
    return {**protocol.JSON_HEADERS, **({"x-goog-api-key": api_key} if api_key else {})}


def call_id(call: ToolCall, family: str = "") -> str:
    """Return the model's id, if it assigned one. Calls without ids are matched by order."""
    return call.provider_id


# --- fragments ---


def system(text: str) -> bytes:
    """Encode a system message as a user message, because the API accepts no other there."""
    return _content([{"text": f"<system>\n{text}\n</system>"}])


def user(content: Sequence[Content]) -> bytes:
    """Encode text, pictures, sound, and resources of kinds that the models can read."""
    parts = [_media_part(block) or {"text": content_parts.as_text(block)} for block in content]
    return _content(parts or [{"text": ""}])


def _content(parts: list[Part]) -> bytes:
    return _json({"role": "user", "parts": parts})


def _media_part(block: Content) -> Part | None:
    kind, data = content_parts.media(block)
    is_resource = isinstance(block, EmbeddedResource)
    accepted = kind.startswith(_MEDIA_TYPES) if is_resource else bool(kind or data)
    return {"inlineData": {"mimeType": kind, "data": data}} if accepted else None


class _CallShape(msgspec.Struct):
    name: str = ""
    id: Any = ""


class _PartShape(msgspec.Struct, rename="camel"):
    function_call: _CallShape | None = None
    thought_signature: Any = None


class _ContentShape(msgspec.Struct):
    parts: list[_PartShape] = []


class _Native(msgspec.Struct):
    content: Raw


_natives = msgspec.json.Decoder(_Native)
_content_shapes = msgspec.json.Decoder(_ContentShape)


def assistant(text: str, calls: Calls, native: Raw, names: Names, family: str = "") -> bytes:
    """Encode an answer of the model: its own content verbatim if its calls still have the same
    names and ids, or else a new one from text and calls. Its first call then carries the documented
    substitute for a missing signature."""
    if native:
        content = _natives.decode(native).content
        parts = _content_shapes.decode(content).parts
        native_calls = [part.function_call for part in parts if part.function_call]
        if len(native_calls) == len(calls):
            ours = [(_name(call, names), call.provider_id) for call in calls]
            signed = not calls or any(part.thought_signature for part in parts)
            if signed and ours == [(one.name, one.id or "") for one in native_calls]:
                return bytes(content) if parts else b""
            return _renamed(content, calls, names, signed)
    new_parts: list[Part] = [{"text": text}] if text else []
    for call in calls:
        called = {"name": _name(call, names), "args": wire_input(call), **_id(call)}
        signature = {"thoughtSignature": _NO_SIGNATURE} if call is calls[0] else {}
        new_parts.append({"functionCall": called, **signature})
    return _json({"role": "model", "parts": new_parts}) if new_parts else b""


def _renamed(raw: Raw, calls: Calls, names: Names, signed: bool) -> bytes:
    """Return a content whose calls have the names and ids of their results. A model may call a
    tool that does not exist, or use one id for two calls."""
    content: Any = _decoder.decode(raw)
    entries = [part for part in content["parts"] if part.get("functionCall")]
    for part, call in zip(entries, calls, strict=True):
        called = part["functionCall"]
        called["name"] = _name(call, names)
        called.pop("id", None)
        called.update(_id(call))
    if not signed:
        entries[0]["thoughtSignature"] = _NO_SIGNATURE
    return _json(content)


def _id(call: ToolCall) -> dict[str, str]:
    return {"id": call.provider_id} if call.provider_id else {}


def _name(call: ToolCall, names: Names) -> str:
    return name_to_wire(wire_name(call.name, names))


def results(batch: Results, names: Names, family: str = "") -> bytes:
    """Encode one `functionResponse` for each call, all in one content, because the API counts them.
    Its text, or the structured content alone, is under `output` or `error`. Pictures and sound
    follow in a content of their own. Only Gemini 3 accepts them within the response, and beside it
    they break the count."""
    responses: list[Part] = []
    media_parts: list[Part] = []
    for call, result in batch:
        name = _name(call, names)
        output: Any = result.structured_content
        if result.content or output is None:
            parts = [_media_part(block) for block in result.content]
            if any(parts):
                media_parts.append({"text": content_parts.caption(name, call.provider_id)})
                media_parts += [part for part in parts if part]
                kinds = [part["inlineData"]["mimeType"] if part else "" for part in parts]
                result = content_parts.with_mentions(result, kinds)
            output = content_parts.result_text(result)
        outcome = {"error" if result.is_error else "output": output}
        responses.append({"functionResponse": {"name": name, "response": outcome, **_id(call)}})
    return _content(responses) + (b"," + _content(media_parts) if media_parts else b"")


# --- requests ---


def head(
    model: str, system_prompt: str, tools: Tools, parameters: Parameters, names: Names
) -> RequestHead:
    """Return all of a request except its messages.

    Tools' schemas are sent unchanged (`parametersJsonSchema`). `extra_body` is merged last. Objects
    present on both sides (`generationConfig`, its `thinkingConfig`, `toolConfig`) are merged,
    `tools` are appended to the agent's, and all other entries replace those of the same name. With
    a `cachedContent` in it, the system prompt and tools are left to the cache, because the API
    refuses them beside it.

    Raises `ConfigurationError` for settings that the API does not support.
    """
    extra: Parameters = parameters.get("extra_body") or {}
    if "contents" in extra:
        raise errors.ConfigurationError(
            "LLM: extra_body takes the provider's own parameters, not 'contents'."
        )
    if parameters.get("parallel_tool_calls") is False:
        raise errors.ConfigurationError(
            "LLM: parallel_tool_calls=False is not supported by Gemini, which has no such setting;"
            " leave it out."
        )
    body: dict[str, Any] = {}
    if "cachedContent" not in extra:
        if system_prompt:
            body["systemInstruction"] = {"parts": [{"text": system_prompt}]}
        if tools:
            declarations = [styles.gemini(tool, wire_name(tool.name, names)) for tool in tools]
            body["tools"] = [{"functionDeclarations": declarations}]
    config = _generation_config(model, parameters)
    if config:
        body["generationConfig"] = config
    for key, value in extra.items():
        ours = body.get(key)
        if key == "tools" and isinstance(ours, list) and isinstance(value, list):
            value = [*cast("list[Any]", ours), *cast("list[Any]", value)]
        elif isinstance(ours, dict) and isinstance(value, dict):
            value = {**cast("dict[str, Any]", ours), **cast("dict[str, Any]", value)}
            thinking: Any = value.get("thinkingConfig") or {}
            if "thinkingConfig" in ours and "thinkingConfig" in value:
                value["thinkingConfig"] = {**body[key]["thinkingConfig"], **thinking}
        body[key] = value
    if b'"streamFunctionCallArguments":true' in _json(extra.get("toolConfig")):
        raise errors.ConfigurationError(
            "LLM: streamFunctionCallArguments in extra_body is not supported. Without it, arguments"
            " arrive whole."
        )
    prefix = _json(body)[:-1] + (b',"contents":[' if body else b'"contents":[')
    return RequestHead(prefix, stream_suffix=b"]}")


def _generation_config(model: str, parameters: Parameters) -> dict[str, Any]:
    config = protocol.set_parameters(parameters, _PARAMETERS)
    seed = parameters.get("seed")
    if seed is not None and not -(2**31) <= seed < 2**31:
        raise errors.ConfigurationError(
            f"LLM: seed takes a number of 32 bits for Gemini, not {seed}."
        )
    form: Parameters = parameters.get("response_format") or {}
    if form.get("type") in ("json_object", "json_schema"):
        config["responseMimeType"] = "application/json"
        if form["type"] == "json_schema":
            config["responseJsonSchema"] = form["json_schema"]["schema"]
    budget, effort = parameters.get("reasoning_budget"), parameters.get("reasoning_effort")
    if budget is not None:
        config["thinkingConfig"] = _budget_config(budget)
    elif effort is not None:
        config["thinkingConfig"] = _thinking_config(model.lower(), effort)
    return config


def _budget_config(tokens: int) -> dict[str, Any]:
    # The API refuses `includeThoughts` together with a budget of 0.
    return {"thinkingBudget": tokens, "includeThoughts": True} if tokens else {"thinkingBudget": 0}


def _version(model: str) -> tuple[int, int]:
    found = _VERSION.search(model)
    # A name without a number, such as gemini-flash-latest, belongs to a new model.
    return (int(found[1]), int(found[2] or 0)) if found else (9, 0)


def _thinking_config(model: str, effort: str) -> dict[str, Any]:
    """Return the nearest thinking level that the model has, or before Gemini 3 a budget."""
    if effort not in _EFFORTS:
        raise errors.ConfigurationError(
            f"LLM: reasoning_effort takes one of {', '.join(_EFFORTS)} for Gemini, not {effort!r}."
        )
    level, budget = _EFFORTS[effort]
    version = _version(model)
    if version < (3, 0):
        return _budget_config(max(budget, _MIN_PRO_BUDGET_TOKENS if "pro" in model else 0))
    if level == "MINIMAL" and not ("flash" in model and version < (3, 7)):
        # Pro models and Flash from 3.7 on lack this level.
        level = "LOW"
    if level == "MEDIUM" and version == (3, 0) and "pro" in model:  # has only LOW and HIGH
        level = "HIGH"
    return {"thinkingLevel": level, "includeThoughts": True}


def body(head: RequestHead, fragments: Sequence[bytes], stream: bool) -> bytes:
    parts = list(fragments)
    if parts and not parts[-1].startswith(_USER):
        parts.append(_CONTINUE_MESSAGE)
    if parts and not parts[0].startswith(_USER):
        parts.insert(0, _OPENING_MESSAGE)
    return protocol.join_body(head, parts, stream)


# --- answers ---
# Plain and streamed answers both end in `_completion`, so their results cannot differ.

_STOP_REASONS = {
    "": "stop",
    "STOP": "stop",
    "FINISH_REASON_UNSPECIFIED": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        (
            *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
            *("MODEL_ARMOR", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
        ),
        "content_filter",
    ),
}
# The model tried to call a tool and failed. Without a call, its output is not an answer. A retry
# often succeeds.
_BROKEN_CALLS = {
    "MALFORMED_FUNCTION_CALL",
    "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS",
    "MALFORMED_RESPONSE",
}
_CALL_KEYS = {"name", "args", "id"}
_PART_KEYS = {"text", "functionCall"}
# A candidate's fields beside its content. They are kept for clients that show sources; only the
# content is sent back to the API.
_METADATA = ("groundingMetadata", "citationMetadata", "urlContextMetadata")

# Function names begin with a letter or an underscore. A tool name that begins with a digit or a
# dash gets an underscore in front. A name that already looks so gets one more, so the mapping stays
# invertible.
_NEEDS_UNDERSCORE = re.compile(r"_*[0-9-]")


class _Candidate(msgspec.Struct, rename="camel"):
    """An answer in the API's form, with `content` and metadata as JSON."""

    content: Raw = NO_NATIVE
    finish_reason: Any = None
    finish_message: Any = ""
    grounding_metadata: Raw = NO_NATIVE
    citation_metadata: Raw = NO_NATIVE
    url_context_metadata: Raw = NO_NATIVE


class _Answer(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: Any = None
    model: Any = msgspec.field(default="", name="modelVersion")
    id: Any = msgspec.field(default="", name="responseId")
    prompt_feedback: Any = None
    error: Any = None


_answers = msgspec.json.Decoder(_Answer)
_candidates = msgspec.json.Decoder(_Candidate)
_chunk_lists = msgspec.json.Decoder(list[Any])


def parse(data: bytes) -> Completion:
    """Parse a plain answer, or a stream without `alt=sse`: a JSON array of all chunks."""
    if data.lstrip()[:1] == b"[":
        return answers.read_answer(data, _chunk_lists, _read_chunks, "a Gemini response")
    return answers.read_answer(data, _answers, _read, "a Gemini response")


def _read(answer: _Answer, data: bytes) -> Completion:
    if answer.error:
        raise reported_error(answer.error)
    candidate = answer.candidates[0] if answer.candidates else None
    if candidate is None and not _block_reason(answer.prompt_feedback):
        raise answers.bad_answer("a Gemini response: it has no candidates", data)
    return _completion(answer, candidate or _Candidate())


def _completion(answer: _Answer, candidate: _Candidate) -> Completion:
    """Return a completion from a candidate, plain or assembled from a stream."""
    content, parts = _parts(candidate.content)
    builder = answers.CompletionBuilder()
    kept: list[dict[str, Any]] = []
    rebuilt = False
    for part in parts:
        called: Any = part.get("functionCall")
        if called is not None:
            call = _add_call(builder, called)
            # The API would refuse arguments of another type in a later request.
            if not isinstance(called.get("args"), dict | None):
                part, rebuilt = {**part, "functionCall": {**called, "args": wire_input(call)}}, True
            builder.covers(called, _CALL_KEYS)
        elif not any(part.values()):  # empty, and the API refuses empty parts
            rebuilt = True
            continue
        text: Any = part.get("text") or ""
        if not isinstance(text, str):
            raise answers.bad_part("text that is not a string", part)
        if text and part.get("thought"):
            builder.thoughts.append(text)
        elif text:
            builder.texts.append(text)
            builder.needs_native |= bool(builder.calls)  # text after a call
        builder.covers(part, _PART_KEYS)
        if not part.keys() - {"thoughtSignature", "thought"}:
            part, rebuilt = {"text": "", **part}, True  # the API refuses a signature alone
        kept.append(part)
    metadata = [
        b',"%b":%b' % (key.encode(), bytes(value))
        for key, value in zip(_METADATA, msgspec.structs.astuple(candidate)[-3:], strict=True)
        if bytes(value) not in (b"", b"{}", b"null")
    ]
    body = bytes(candidate.content)
    if not builder.needs_native:
        body = _json({"parts": kept, "role": "model"}) if metadata else b""
    elif rebuilt or content.get("role") != "model":
        body = _json({**content, "role": "model", "parts": kept})
    builder.needs_native |= bool(metadata)
    native = Raw(b'{"content":%b%b}' % (body, b"".join(metadata)))
    reason = _stop_reason(answer, candidate, bool(builder.calls), bool(kept))
    return builder.build(name, _usage(answer.usage_metadata), reason, answer, None, native)


def _parts(raw: Raw) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    value: Any = _decoder.decode(raw) if raw else None
    if value is None:
        return {}, []
    content = cast("dict[str, Any]", value if isinstance(value, dict) else {"parts": "none"})
    parts = cast("list[dict[str, Any]]", content.get("parts") or [])
    if type(parts) is not list or not all(type(part) is dict for part in parts):
        raise errors.BadResponse(f"The answer has an invalid content: {excerpt(bytes(raw))}")
    return content, parts


def _add_call(builder: answers.CompletionBuilder, value: Any) -> ToolCall:
    called = answers.as_dict(value)
    raw_name: Any = called.get("name")
    is_partial = called.get("partialArgs") or called.get("willContinue")
    if not isinstance(raw_name, str) or not raw_name or is_partial:
        raise answers.bad_part("an invalid or partial function call", value)
    name, id = name_from_wire(raw_name), called.get("id")
    args: Any = called.get("args")
    if not isinstance(args, dict):
        return builder.add_call(name, args, id)
    call = msgspec.structs.replace(builder.add_call(name, None, id), arguments=args)
    builder.calls[-1] = call
    return call


def _stop_reason(answer: _Answer, candidate: _Candidate, calls: bool, parts: bool) -> str:
    """Return the stop reason. Raises for an end that leaves no usable answer."""
    finish = candidate.finish_reason if isinstance(candidate.finish_reason, str) else ""
    blocked = _block_reason(answer.prompt_feedback)
    if blocked and not parts:
        raise errors.ContentFiltered(
            f"The provider's content filter stopped the prompt: {blocked}",
            code=blocked.partition(":")[0],
        )
    broken = finish in _BROKEN_CALLS
    unsigned = finish == "MISSING_THOUGHT_SIGNATURE"
    if not calls and (broken or unsigned or (finish == "OTHER" and not parts)):
        kind, problem = (
            errors.BadResponse,
            f"The model broke off its answer (finishReason {finish})",
        )
        if unsigned:
            kind, problem = (
                errors.BadRequest,
                "The provider misses a thought signature in the conversation",
            )
        explanation = shorten(str(candidate.finish_message or "no reason given"))
        raise kind(f"{problem}: {explanation}", code=finish)
    reason = _STOP_REASONS.get(finish, finish)
    if calls and (reason == "stop" or broken or unsigned):
        return "tool_calls"
    return "content_filter" if blocked and reason == "stop" else reason


def _block_reason(feedback: Any) -> str:
    fields = answers.as_dict(feedback)
    reason, message = fields.get("blockReason"), fields.get("blockReasonMessage")
    return f"{reason}: {shorten(str(message))}" if reason and message else str(reason or "")


def _usage(counts: Any) -> Usage:
    """Return token counts. The API counts thoughts and results of server tools separately."""
    usage = answers.as_dict(counts)
    thoughts = answers.count(usage, "thoughtsTokenCount")
    sent = answers.count(usage, "promptTokenCount")
    sent += answers.count(usage, "toolUsePromptTokenCount")
    received = answers.count(usage, "candidatesTokenCount") + thoughts
    return Usage(sent, received, answers.count(usage, "cachedContentTokenCount"), 0, thoughts)


def name_to_wire(name: str) -> str:
    """Return a tool's wire name as a function name, with an underscore before a digit or dash."""
    return "_" + name if _NEEDS_UNDERSCORE.match(name) else name


def name_from_wire(name: str) -> str:
    """Invert `name_to_wire`, and remove the `default_api.` that models sometimes write."""
    if name[:12] in ("default_api.", "default_api:"):
        name = name[12:]
    return name[1:] if _NEEDS_UNDERSCORE.match(name) and name[0] == "_" else name


_MAX_STRAY_LINES = 1000  # more than any error has


def _read_chunks(chunks: list[Any], data: bytes) -> Completion:
    parser = GeminiStream()
    parser.feed(b"".join([b"data: %b\n\n" % encode(chunk) for chunk in chunks]))
    return parser.finish()


class GeminiStream(StreamParser):
    """A parser of one streamed answer.

    An answer is complete when a `finishReason` has arrived. There is no end mark, and some
    models send STOP in every chunk, so content after it belongs to the answer. Pieces of text
    are joined, but never with one that has a signature.
    """

    def __init__(self) -> None:
        self._reader = _StrayLineReader()
        super().__init__(self._reader)
        self._response: dict[str, Any] = {}  # the answer in the API's form, without its candidate
        self._candidate: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []
        self._pieces: list[str] = []  # pieces of the current text part
        self._thought = False  # True if the current text part is a thought
        self._call_count = 0  # number of calls so far
        self._usage: dict[str, Any] = {}

    def finish(self) -> Completion:
        """Return the answer, or raise the error that ends a failing stream as bare JSON."""
        try:
            return super().finish()
        except errors.StreamInterrupted:
            error = self._reader.error()
            if error is None:
                raise
        raise reported_error(error)

    def _answer(self) -> Completion:
        self._close_text()
        self._candidate["content"] = {"parts": self._parts, "role": "model"}
        candidate = _candidates.decode(encode(self._candidate))
        answer = _answers.decode(encode(self._response))
        answer.usage_metadata = self._usage
        return _completion(answer, candidate)

    def _event(self, name: bytes, data: bytes) -> None:
        if data[:1] == b"[" and data.strip() != b"[DONE]":
            # An error may come as an array, as it does for a failed request.
            try:
                items: Any = clean_texts(decode(data))
            except (ValueError, RecursionError):  # `clean` raises RecursionError
                items = None
            if isinstance(items, list):
                for item in cast("list[Any]", items):
                    super()._event(name, _json(item))
                return
        super()._event(name, data)

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        usage = event.get("usageMetadata")
        if usage:
            # Keep the last count of each kind, because intermediate chunks leave some out.
            self._usage.update(usage)
        for key in ("modelVersion", "responseId"):
            self._response[key] = event.get(key) or self._response.get(key)
        feedback = event.get("promptFeedback")
        if feedback and _block_reason(feedback):
            self._response["promptFeedback"] = feedback
            self.finished = True
        for candidate in event.get("candidates") or ():
            if not candidate.get("index"):  # others are alternatives (candidateCount > 1)
                self._read_candidate(candidate)

    def _read_candidate(self, candidate: dict[str, Any]) -> None:
        content: Any = candidate.get("content") or {}
        for part in content.get("parts") or ():
            self._part(part)
        ours = self._candidate
        for key in _METADATA:
            if candidate.get(key):
                ours[key] = _merge_metadata(ours.get(key), candidate[key])
        reason = candidate.get("finishReason")
        if reason and reason != "FINISH_REASON_UNSPECIFIED":
            if ours.get("finishReason") in (None, "STOP"):
                ours["finishReason"] = reason
            self.finished = True
        ours["finishMessage"] = candidate.get("finishMessage") or ours.get("finishMessage")

    def _part(self, part: dict[str, Any]) -> None:
        text = part.get("text")
        thought = bool(part.get("thought"))
        if text:
            self._emit("reasoning" if thought else "text", text)
        if text is not None and len(part) == 1 + ("thought" in part):
            if text:
                if thought is not self._thought:
                    self._close_text()
                    self._thought = thought
                self._pieces.append(text)
            return
        self._close_text()
        self._parts.append(part)
        called = part.get("functionCall")
        if called is not None:
            arguments = _json(clean_texts(called.get("args") or {})).decode()
            name = name_from_wire(called.get("name") or "")
            self._deltas.append(Delta("tool", arguments, self._call_count, name))
            self._call_count += 1

    def _close_text(self) -> None:
        if self._pieces:
            text = {"text": join_surrogates("".join(self._pieces))}
            self._parts.append({**text, "thought": True} if self._thought else text)
            self._pieces = []


class _StrayLineReader(EventReader):
    """An event reader that also keeps lines outside of any event. Some servers end a failing
    stream with the error as bare JSON."""

    def __init__(self) -> None:
        super().__init__()
        self._stray: list[bytes] = []

    def error(self) -> Any:
        """Return the error object that the kept lines form, or None."""
        try:
            value: Any = decode(b"\n".join(self._stray)) if self._stray else None
        except (ValueError, RecursionError):
            return None
        value = next(iter(answers.as_list(value)), value)
        return cast("Any", value) if isinstance(value, dict) and "error" in value else None

    def _read_line(self, line: bytes) -> None:
        if line[:1] in b'{[ "]}' and len(self._stray) < _MAX_STRAY_LINES:
            self._stray.append(line)
        super()._read_line(line)


def _merge_metadata(old: Any, new: dict[str, Any]) -> dict[str, Any]:
    """Merge the metadata of another chunk. Lists grow, because each chunk cites its sources."""
    merged: dict[str, Any] = dict(old or {})
    for key, value in new.items():
        before = merged.get(key)
        if isinstance(before, list) and isinstance(value, list):
            items = cast("list[Any]", value)
            merged[key] = [*before, *[item for item in items if item not in before]]
        else:
            merged[key] = value
    return merged


stream = GeminiStream
