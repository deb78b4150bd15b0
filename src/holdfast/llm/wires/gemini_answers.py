"""Answers of the Gemini wire, plain and streamed. Both end in `_completion`, so their results
cannot differ."""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from holdfast.content import ToolCall, Usage
from holdfast.errors import BadRequest, BadResponse, ContentFiltered, StreamInterrupted
from holdfast.llm.completion import NO_NATIVE, Completion, Delta
from holdfast.llm.wires.answers import (
    CompletionBuilder,
    as_dict,
    bad_answer,
    count,
    has_other_keys,
    read_answer,
)
from holdfast.llm.wires.failures import excerpt, reported_error, shorten
from holdfast.llm.wires.lenient_json import clean_texts, decode, encode, join_surrogates
from holdfast.llm.wires.sse import EventReader
from holdfast.llm.wires.streams import StreamParser

NAME = "gemini"

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

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
_HAS_UNDERSCORE = re.compile(r"_+[0-9-]")


class _Candidate(msgspec.Struct, rename="camel"):
    """An answer in the API's form, with `content` and metadata as JSON."""

    content: msgspec.Raw = NO_NATIVE
    finish_reason: Any = None
    finish_message: Any = ""
    grounding_metadata: msgspec.Raw = NO_NATIVE
    citation_metadata: msgspec.Raw = NO_NATIVE
    url_context_metadata: msgspec.Raw = NO_NATIVE

    def metadata(self) -> tuple[msgspec.Raw, ...]:
        """Return the values of `_METADATA`."""
        return self.grounding_metadata, self.citation_metadata, self.url_context_metadata


class _Answer(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: Any = None
    model: Any = msgspec.field(default="", name="modelVersion")
    id: Any = msgspec.field(default="", name="responseId")
    prompt_feedback: Any = None
    error: Any = None


_answers = msgspec.json.Decoder(_Answer)
_chunk_lists = msgspec.json.Decoder(list[Any])


def parse(data: bytes) -> Completion:
    """Parse a plain answer, or a stream without `alt=sse`, which is a JSON array of all chunks.

    Raises the error that the answer reports, `ContentFiltered` for a blocked prompt, or
    `BadResponse` for anything else.
    """
    if data.lstrip()[:1] == b"[":
        return read_answer(data, _chunk_lists, _read_chunks, "a Gemini response")
    return read_answer(data, _answers, _read, "a Gemini response")


def _read(answer: _Answer, data: bytes) -> Completion:
    if answer.error:
        raise reported_error(answer.error)
    candidate = answer.candidates[0] if answer.candidates else None
    if candidate is None and not _block_reason(answer.prompt_feedback):
        raise bad_answer("a Gemini response: it has no candidates", data)
    return _completion(answer, candidate or _Candidate())


def _completion(answer: _Answer, candidate: _Candidate) -> Completion:
    """Return a completion from a candidate, plain or assembled from a stream."""
    content, parts = _parts(candidate.content)
    builder = CompletionBuilder()
    kept: list[dict[str, Any]] = []
    needs_native = rebuilt = False
    for part in parts:
        called: Any = part.get("functionCall")
        if called is not None:
            call = _add_call(builder, called)
            # The API would refuse arguments of another type in a later request.
            if not isinstance(called.get("args"), dict | None):
                arguments = {"invalid_json": call.raw} if call.invalid else call.arguments
                part, rebuilt = {**part, "functionCall": {**called, "args": arguments}}, True
            needs_native = needs_native or has_other_keys(called, _CALL_KEYS)
        elif not any(part.values()):  # empty, and the API refuses empty parts
            rebuilt = True
            continue
        text: Any = part.get("text") or ""
        if not isinstance(text, str):
            raise BadResponse(f"The answer has text that is not a string: {excerpt(_json(part))}")
        if text and part.get("thought"):
            builder.thoughts.append(text)
        elif text:
            builder.texts.append(text)
            needs_native = needs_native or bool(builder.calls)  # text after a call
        needs_native = needs_native or has_other_keys(part, _PART_KEYS)
        if not part.keys() - {"thoughtSignature", "thought"}:
            part, rebuilt = {"text": "", **part}, True  # the API refuses a signature alone
        kept.append(part)
    native = _native(candidate, content, kept, needs_native, rebuilt)
    builder.needs_native = bool(native)
    reason = _stop_reason(answer, candidate, bool(builder.calls), bool(kept))
    return builder.build(NAME, _usage(answer.usage_metadata), reason, answer, native)


def _parts(raw: msgspec.Raw) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a content and its parts. An answer may have neither."""
    value: Any = _decoder.decode(raw) if raw else None
    if value is None:
        return {}, []
    content = cast("dict[str, Any]", value if isinstance(value, dict) else {"parts": "none"})
    parts = cast("list[dict[str, Any]]", content.get("parts") or [])
    if type(parts) is not list or not all(type(part) is dict for part in parts):
        raise BadResponse(f"The answer has an invalid content: {excerpt(bytes(raw))}")
    return content, parts


def _add_call(builder: CompletionBuilder, value: Any) -> ToolCall:
    called = as_dict(value)
    name: Any = called.get("name")
    is_partial = called.get("partialArgs") or called.get("willContinue")
    if not isinstance(name, str) or not name or is_partial:
        raise BadResponse(
            f"The answer has an invalid or partial function call: {excerpt(_json(value))}"
        )
    args: Any = called.get("args")
    if not isinstance(args, dict):
        return builder.add_call(name_from_wire(name), args, called.get("id"))
    call = builder.add_call(name_from_wire(name), None, called.get("id"))
    call = builder.calls[-1] = msgspec.structs.replace(call, arguments=cast("dict[str, Any]", args))
    return call


def _native(
    candidate: _Candidate,
    content: dict[str, Any],
    kept: list[dict[str, Any]],
    needs_content: bool,
    rebuilt: bool,
) -> msgspec.Raw:
    """Return `{"content": ...}` with the metadata present, or nothing if a completion's fields
    hold everything."""
    metadata = [
        b',"%b":%b' % (key.encode(), bytes(value))
        for key, value in zip(_METADATA, candidate.metadata(), strict=True)
        if bytes(value) not in (b"", b"{}", b"null")
    ]
    if not (needs_content or metadata):
        return NO_NATIVE
    body = bytes(candidate.content)
    if not needs_content:
        body = _json({"parts": kept, "role": "model"})
    elif rebuilt or content.get("role") != "model":
        body = _json({**content, "role": "model", "parts": kept})
    return msgspec.Raw(b'{"content":%b%b}' % (body, b"".join(metadata)))


def _stop_reason(answer: _Answer, candidate: _Candidate, calls: bool, parts: bool) -> str:
    """Return the stop reason. Raises for an end that leaves no usable answer."""
    finish = candidate.finish_reason if isinstance(candidate.finish_reason, str) else ""
    blocked = _block_reason(answer.prompt_feedback)
    if blocked and not parts:
        raise ContentFiltered(
            f"The provider's content filter stopped the prompt: {blocked}",
            code=blocked.partition(":")[0],
        )
    broken = finish in _BROKEN_CALLS
    unsigned = finish == "MISSING_THOUGHT_SIGNATURE"
    if not calls and (broken or unsigned or (finish == "OTHER" and not parts)):
        explanation = shorten(str(candidate.finish_message or "no reason given"))
        if unsigned:
            raise BadRequest(
                f"The provider misses a thought signature in the conversation: {explanation}",
                code=finish,
            )
        raise BadResponse(
            f"The model broke off its answer (finishReason {finish}): {explanation}", code=finish
        )
    reason = _STOP_REASONS.get(finish, finish)
    if calls and (reason == "stop" or broken or unsigned):
        return "tool_calls"
    return "content_filter" if blocked and reason == "stop" else reason


def _block_reason(feedback: Any) -> str:
    """Return the reason that a prompt was blocked, or "" if it was not."""
    fields = as_dict(feedback)
    reason, message = fields.get("blockReason"), fields.get("blockReasonMessage")
    return f"{reason}: {shorten(str(message))}" if reason and message else str(reason or "")


def _usage(counts: Any) -> Usage:
    """Return token counts. The API counts thoughts separately from the candidate, and results of
    server tools separately from the prompt."""
    usage = as_dict(counts)
    thoughts = count(usage, "thoughtsTokenCount")
    sent = count(usage, "promptTokenCount") + count(usage, "toolUsePromptTokenCount")
    received = count(usage, "candidatesTokenCount") + thoughts
    return Usage(sent, received, count(usage, "cachedContentTokenCount"), 0, thoughts)


def name_to_wire(name: str) -> str:
    """Return a tool's wire name as a function name, with an underscore before a digit or dash."""
    return "_" + name if _NEEDS_UNDERSCORE.match(name) else name


def name_from_wire(name: str) -> str:
    """Return the tool's wire name for a function name: the inverse of `name_to_wire`. Also
    removes the namespace `default_api.`, which models sometimes write."""
    if name[:12] in ("default_api.", "default_api:"):
        name = name[12:]
    return name[1:] if _HAS_UNDERSCORE.match(name) else name


# --- streams ---

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

    __slots__ = (
        *("_about", "_call_count", "_candidate", "_metadata", "_parts"),
        *("_pieces", "_reader", "_thought", "_usage"),
    )

    def __init__(self) -> None:
        self._reader = _StrayLineReader()
        super().__init__(self._reader)
        self._about = _Answer()
        self._candidate = _Candidate()
        self._parts: list[dict[str, Any]] = []
        self._pieces: list[str] = []  # pieces of the current text part
        self._thought = False  # True if the current text part is a thought
        self._call_count = 0  # number of calls so far
        self._metadata: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}

    def finish(self) -> Completion:
        """Return the answer. A failing stream may end in an error as bare JSON, and that error
        is raised."""
        try:
            return super().finish()
        except StreamInterrupted:
            error = self._reader.error()
            if error is None:
                raise
        raise reported_error(error)

    def _answer(self) -> Completion:
        self._close_text()
        self._about.usage_metadata = self._usage
        get = self._metadata.get
        grounding, citation, url_context = [
            msgspec.Raw(encode(get(key))) if get(key) else NO_NATIVE for key in _METADATA
        ]
        candidate = self._candidate
        candidate.content = msgspec.Raw(encode({"parts": self._parts, "role": "model"}))
        candidate.grounding_metadata = grounding
        candidate.citation_metadata = citation
        candidate.url_context_metadata = url_context
        return _completion(self._about, candidate)

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
        about = self._about
        usage = event.get("usageMetadata")
        if usage:
            # Keep the last count of each kind, because intermediate chunks leave some out.
            self._usage.update(usage)
        about.model = event.get("modelVersion") or about.model
        about.id = event.get("responseId") or about.id
        feedback = event.get("promptFeedback")
        if feedback and _block_reason(feedback):
            about.prompt_feedback = feedback
            self.finished = True
        for candidate in event.get("candidates") or ():
            if not candidate.get("index"):  # others are alternatives (candidateCount > 1)
                self._read_candidate(candidate)

    def _read_candidate(self, candidate: dict[str, Any]) -> None:
        content = candidate.get("content")
        if content:
            for part in content.get("parts") or ():
                self._part(part)
        for key in _METADATA:
            if candidate.get(key):
                self._metadata[key] = _merge_metadata(self._metadata.get(key), candidate[key])
        reason = candidate.get("finishReason")
        if reason and reason != "FINISH_REASON_UNSPECIFIED":
            if self._candidate.finish_reason in (None, "STOP"):
                self._candidate.finish_reason = reason
            self.finished = True
        if candidate.get("finishMessage"):
            self._candidate.finish_message = candidate["finishMessage"]

    def _part(self, part: dict[str, Any]) -> None:
        text = part.get("text")
        thought = bool(part.get("thought"))
        if text:
            self._deltas.append(Delta("reasoning" if thought else "text", join_surrogates(text)))
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
            name = name_from_wire(called.get("name") or "")
            arguments = _json(clean_texts(called.get("args") or {})).decode()
            self._deltas.append(Delta("tool", arguments, self._call_count, name))
            self._call_count += 1

    def _close_text(self) -> None:
        """Complete the text part that is still arriving."""
        if self._pieces:
            text = {"text": join_surrogates("".join(self._pieces))}
            self._parts.append({**text, "thought": True} if self._thought else text)
            self._pieces = []


class _StrayLineReader(EventReader):
    """An event reader that also keeps lines outside of any event. Some servers end a failing
    stream with the error as bare JSON."""

    __slots__ = ("_stray",)

    def __init__(self) -> None:
        super().__init__()
        self._stray: list[bytes] = []

    def error(self) -> Any:
        """Return the error object that the kept lines form, or None."""
        try:
            value: Any = decode(b"\n".join(self._stray)) if self._stray else None
        except (ValueError, RecursionError):
            return None
        if isinstance(value, list) and value:
            value = cast("list[Any]", value)[0]
        return cast("Any", value) if isinstance(value, dict) and "error" in value else None

    def _read_line(self, line: bytes) -> None:
        if line[:1] in b'{[ "]}' and len(self._stray) < _MAX_STRAY_LINES:
            self._stray.append(line)
        super()._read_line(line)


def _merge_metadata(old: Any, new: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata merged with that of another chunk, key by key. New list items are
    appended, because each chunk cites its own sources."""
    merged: dict[str, Any] = dict(old or {})
    for key, value in new.items():
        before = merged.get(key)
        if isinstance(before, list) and isinstance(value, list):
            items = cast("list[Any]", value)
            merged[key] = [*before, *[item for item in items if item not in before]]
        else:
            merged[key] = value
    return merged
