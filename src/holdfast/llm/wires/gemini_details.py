"""The details of an answer of Gemini: sources, calls that Google ran, media, filters, usage."""

from __future__ import annotations

import re
from binascii import Error, a2b_base64
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from holdfast.answer import Citation, ServerToolCall, TokenLogprob
from holdfast.content import AudioContent, Content, Usage, content_at, typed_content
from holdfast.llm.wires.answers import CompletionBuilder, as_dict, as_list, count

Fields = dict[str, Any]

# Fields that the completion or its details cover. All others are `provider_details`.
_ANSWER_KEYS = {"candidates", "usageMetadata", "modelVersion", "responseId", "promptFeedback"}
_CANDIDATE_KEYS = {
    *("content", "index", "finishReason", "groundingMetadata", "citationMetadata"),
    *("urlContextMetadata", "safetyRatings", "logprobsResult"),
}
_GROUNDING_KEYS = {
    *("groundingChunks", "groundingSupports", "webSearchQueries", "imageSearchQueries"),
    "retrievalQueries",
}
_ORDINARY_ENDS = ("", "STOP", "MAX_TOKENS")
# An answer with these keys alone has no details.
_PLAIN_ANSWER_KEYS = {"candidates", "usageMetadata", "modelVersion", "responseId"}
_PLAIN_CANDIDATE_KEYS = {"content", "finishReason", "index"}
_PLAIN_PART_KEYS = {"text", "functionCall", "thought", "thoughtSignature"}
_PLAIN_USAGE_KEYS = {
    *("promptTokenCount", "candidatesTokenCount", "totalTokenCount", "thoughtsTokenCount"),
    *("cachedContentTokenCount", "promptTokensDetails", "candidatesTokensDetails"),
}

# The type of a server-run tool -> the tool's name in requests.
_TOOL_NAMES = {"GOOGLE_SEARCH_WEB": "google_search", "GOOGLE_SEARCH_IMAGE": "google_search"}
# Gemini 2.5 searches files by running this code.
_FILE_SEARCH = re.compile(r"""file_search\.query\(\s*query\s*=\s*(["'])((?:\\.|(?!\1)[^\\])*)\1""")
_RAW_SOUND = ("audio/l16", "audio/pcm")  # samples without a header, which a stream sends in pieces


def read_details(
    builder: CompletionBuilder,
    answer: Fields,
    candidate: Fields,
    parts: Sequence[Fields],
    starts: Mapping[int, int],
    filtered: bool,
) -> None:
    """Add the details of an answer to `builder`, which has its texts.

    Args:
        parts: The parts of the content, as they came.
        starts: Index of a part with text -> offset of its text in the answer's text.
        filtered: True if a content filter ended the answer.
    """
    usage = as_dict(answer.get("usageMetadata"))
    if (
        not filtered
        and answer.keys() <= _PLAIN_ANSWER_KEYS
        and candidate.keys() <= _PLAIN_CANDIDATE_KEYS
        and candidate.get("finishReason", "") in _ORDINARY_ENDS
        and usage.keys() <= _PLAIN_USAGE_KEYS
        and all(as_dict(one).get("modality") == "TEXT" for one in _counts_by_modality(usage))
        and all(part.keys() <= _PLAIN_PART_KEYS for part in parts)
    ):
        return
    grounding = as_dict(candidate.get("groundingMetadata"))
    text = _AnswerText("".join(builder.texts), parts, starts)
    for citation in _grounding_citations(grounding, text):
        builder.detail("citations", citation)
    for citation in _citations(as_dict(candidate.get("citationMetadata")), text):
        builder.detail("citations", citation)
    for call in _server_calls(parts, grounding, as_dict(candidate.get("urlContextMetadata"))):
        builder.detail("server_calls", call)
    for block in _media(parts):
        builder.detail("media", block)
    for result in _filters(answer, candidate, filtered):
        builder.detail("filters", result)
    for token in _logprobs(as_dict(candidate.get("logprobsResult"))):
        builder.detail("logprobs", token)
    tier = usage.get("serviceTier") or usage.get("trafficType")
    builder.detail("service_tier", tier if isinstance(tier, str) else "")
    builder.detail("provider_details", _other_fields(answer, candidate, grounding, usage))


def _other_fields(answer: Fields, candidate: Fields, grounding: Fields, usage: Fields) -> Fields:
    """Return what no other field of a completion covers."""
    other = {key: value for key, value in answer.items() if key not in _ANSWER_KEYS}
    other |= {key: value for key, value in candidate.items() if key not in _CANDIDATE_KEYS}
    rest = {key: value for key, value in grounding.items() if key not in _GROUNDING_KEYS}
    other["groundingMetadata"] = rest
    if candidate.get("finishReason") not in _ORDINARY_ENDS:
        other["finishReason"] = candidate.get("finishReason")
    lists = {key: value for key, value in usage.items() if key.endswith("Details")}
    counts = [as_dict(one) for one in _counts_by_modality(usage)]
    if any(one.get("modality") not in ("TEXT", None) for one in counts):
        other["usageMetadata"] = lists
    return {key: value for key, value in other.items() if value not in (None, "", {}, [])}


def _counts_by_modality(usage: Fields) -> list[Any]:
    return [one for key, value in usage.items() if key[-7:] == "Details" for one in as_list(value)]


# --- sources ---


class _AnswerText:
    """The text of an answer, and the positions that sources name in it."""

    def __init__(self, text: str, parts: Sequence[Fields], starts: Mapping[int, int]) -> None:
        self.text = text
        self._parts = parts
        self._starts = starts
        self._encoded: dict[str, bytes] = {}

    def find(self, segment: Fields) -> tuple[int | None, int | None]:
        """Return the offsets of a segment in characters, or (None, None).

        The API counts bytes of UTF-8, from the beginning of a part or, in streams, of the answer.
        The segment's own text tells which; if neither fits, its nearest occurrence counts.
        """
        first, last = segment.get("startIndex") or 0, segment.get("endIndex")
        quote = segment.get("text")
        quote = quote if isinstance(quote, str) else ""
        if type(first) is int and type(last) is int and 0 <= first <= last:
            place: Any = segment.get("partIndex") or 0
            places: list[tuple[int, str]] = [(0, self.text)]
            if type(place) is int and place in self._starts:
                places.insert(0, (self._starts[place], self._parts[place]["text"]))
            for start, text in places:
                begin, end = self._characters(text, first), self._characters(text, last)
                if (text[begin:end] == quote) if quote else last <= len(self._bytes(text)):
                    return start + begin, start + end
        if not quote or type(first) is not int:
            return None, None
        near = max(0, first)
        offset = self.text.find(quote, near)
        before = self.text.rfind(quote, 0, near + len(quote) - 1)
        if offset < 0 or (before >= 0 and near - before < offset - near):
            offset = before
        return (offset, offset + len(quote)) if offset >= 0 else (None, None)

    def _bytes(self, text: str) -> bytes:
        encoded = self._encoded.get(text)
        if encoded is None:
            encoded = self._encoded[text] = text.encode("utf-8", "replace")
        return encoded

    def _characters(self, text: str, offset: int) -> int:
        return offset if text.isascii() else len(self._bytes(text)[:offset].decode(errors="ignore"))


def _grounding_citations(grounding: Fields, text: _AnswerText) -> Iterator[Citation]:
    """Return one citation for each source of each supported segment, then the sources that support
    no segment."""
    chunks = [as_dict(chunk) for chunk in as_list(grounding.get("groundingChunks"))]
    cited: set[int] = set()
    for support in map(as_dict, as_list(grounding.get("groundingSupports"))):
        start, end = text.find(as_dict(support.get("segment")))
        scores = as_list(support.get("confidenceScores"))
        for place, index in enumerate(as_list(support.get("groundingChunkIndices"))):
            if type(index) is int and 0 <= index < len(chunks):
                cited.add(index)
                score = {"confidenceScore": scores[place]} if place < len(scores) else {}
                yield _source(chunks[index], score, start, end)
    for index, chunk in enumerate(chunks):
        if index not in cited:
            yield _source(chunk, {})


def _source(
    chunk: Fields, details: Fields, start: int | None = None, end: int | None = None
) -> Citation:
    """Return a chunk, which has one field (`web`, `maps`, `retrievedContext` or `image`)."""
    values: list[Fields] = [as_dict(value) for value in chunk.values()]
    fields = dict(next(filter(None, values), Fields()))
    url = _take(fields, "uri") or _take(fields, "sourceUri")
    title, quote = _take(fields, "title"), _take(fields, "text")
    names = ("documentName", "placeId", "mediaId", "fileSearchStore")
    source = next((fields[name] for name in names if isinstance(fields.get(name), str)), "")
    return Citation(url, title, quote, source, start, end, {**fields, **details})


def _citations(metadata: Fields, text: _AnswerText) -> Iterator[Citation]:
    """Return the quotations that the API recognized. Its two hosts name the list differently."""
    listed = metadata.get("citationSources") or metadata.get("citations")
    for fields in map(as_dict, as_list(listed)):
        start, end = text.find(fields)
        fields = {key: fields[key] for key in fields if key not in ("startIndex", "endIndex")}
        yield Citation(_take(fields, "uri"), _take(fields, "title"), "", "", start, end, fields)


def _take(fields: Fields, key: str) -> str:
    value = fields.pop(key, None)
    return value if isinstance(value, str) else ""


# --- calls that Google ran ---


def _server_calls(
    parts: Sequence[Fields], grounding: Fields, url_context: Fields
) -> list[ServerToolCall]:
    """Return the calls of an answer: first those of its parts, then those in its metadata alone."""
    calls: list[Fields] = []
    for part in parts:
        for key, reader in _READERS.items():
            if isinstance(part.get(key), dict):
                reader(calls, part[key])
    explicit = {call["name"] for call in calls}
    for call in _searches(grounding, url_context):
        if call["name"] not in explicit:
            calls.append(call)
        else:  # Gemini 3 may leave a result to the metadata
            empty = (one for one in calls if one["name"] == call["name"])
            for one in empty:
                one["output"] = one.get("output") or call.get("output")
    return [ServerToolCall(**call) for call in calls]


def _add_tool_call(calls: list[Fields], tool_call: Fields) -> None:
    calls.append(
        {
            "name": _tool_name(tool_call),
            "id": _id(tool_call),
            "arguments": tool_call.get("args") or {},
        }
    )


def _add_tool_response(calls: list[Fields], response: Fields) -> None:
    call = _unanswered_call(calls, (_tool_name(response),), _id(response))
    call["output"] = response.get("response") or None


def _add_code(calls: list[Fields], code: Fields) -> None:
    match = _FILE_SEARCH.search(str(code.get("code") or ""))
    if match:
        query = re.sub(r"\\(.)", r"\1", match[2])
        calls.append({"name": "file_search", "id": _id(code), "arguments": {"query": query}})
        return
    arguments = {key: value for key, value in code.items() if key != "id"}
    calls.append({"name": "code_execution", "id": _id(code), "arguments": arguments})


def _add_code_result(calls: list[Fields], result: Fields) -> None:
    call = _unanswered_call(calls, ("code_execution", "file_search"), _id(result))
    call["output"] = {key: value for key, value in result.items() if key != "id"}
    call["is_error"] = result.get("outcome") not in ("OUTCOME_OK", "OUTCOME_UNSPECIFIED", None)


_READERS = {
    "toolCall": _add_tool_call,
    "toolResponse": _add_tool_response,
    "executableCode": _add_code,
    "codeExecutionResult": _add_code_result,
}


def _unanswered_call(calls: list[Fields], names: tuple[str, ...], id: str) -> Fields:
    """Return the call that a result belongs to: by its id, or else by its name."""
    waiting = [call for call in calls if "output" not in call]
    for call in waiting:
        if id and call["id"] == id:
            return call
    for call in waiting:
        if call["name"] in names and not (id and call["id"]):
            return call
    calls.append({"name": names[0], "id": id})
    return calls[-1]


def _tool_name(fields: Fields) -> str:
    kind = str(fields.get("toolType") or "")
    return _TOOL_NAMES.get(kind, kind.lower() or "tool")


def _id(fields: Fields) -> str:
    id = fields.get("id")
    return id if isinstance(id, str) else ""


def _searches(grounding: Fields, url_context: Fields) -> Iterator[Fields]:
    """Return the calls of tools that an answer mentions only in its metadata."""
    chunks = [as_dict(chunk) for chunk in as_list(grounding.get("groundingChunks"))]
    for key, queries, name in (
        ("web", "webSearchQueries", "google_search"),
        ("image", "imageSearchQueries", "google_search"),
        ("maps", "", "google_maps"),
        ("retrievedContext", "retrievalQueries", "retrieval"),
    ):
        sources = [chunk[key] for chunk in chunks if isinstance(chunk.get(key), dict)]
        search_queries = as_list(grounding.get(queries))
        if any("fileSearchStore" in source for source in sources):
            name = "file_search"
        if sources or search_queries:
            yield {
                "name": name,
                "arguments": {"queries": search_queries} if search_queries else None,
                "output": sources or None,
            }
    pages = [as_dict(page) for page in as_list(url_context.get("urlMetadata"))]
    if pages:
        states = [page.get("urlRetrievalStatus") for page in pages]
        yield {
            "name": "url_context",
            "arguments": {"urls": [page.get("retrievedUrl") for page in pages]},
            "output": pages,
            "is_error": "URL_RETRIEVAL_STATUS_SUCCESS" not in states,
        }


# --- media ---


def _media(parts: Sequence[Fields]) -> list[Content]:
    """Return generated files. Drafts of a picture are thoughts and left out; pieces of raw sound
    are one sound."""
    blocks: list[Content] = []
    for kind, group in groupby(map(_shown_file, parts), _raw_sound):
        group_blocks = [block for block in group if block is not None]
        if kind:
            sounds = [cast("AudioContent", block).data for block in group_blocks]
            group_blocks = [AudioContent(b"".join(sounds), kind)]
        blocks += group_blocks
    return blocks


def _shown_file(part: Fields) -> Content | None:
    return None if part.get("thought") else _file(part)


def _raw_sound(block: Content | None) -> str:
    """Return the type of a piece of raw sound, which may go on in the next part; "" for others."""
    is_raw = isinstance(block, AudioContent) and block.mime_type.lower().startswith(_RAW_SOUND)
    return cast("AudioContent", block).mime_type if is_raw else ""


def _file(part: Fields) -> Content | None:
    inline, file = as_dict(part.get("inlineData")), as_dict(part.get("fileData"))
    kind: Any = inline.get("mimeType") or file.get("mimeType")
    kind = kind if isinstance(kind, str) else ""
    encoded, uri = inline.get("data"), file.get("fileUri")
    if isinstance(encoded, str) and encoded:
        try:
            data = a2b_base64(encoded.translate(_STANDARD_BASE64))
        except (Error, ValueError):
            data = b""
        return typed_content(data, kind) if data else None
    return content_at(uri, kind) if isinstance(uri, str) and uri else None


_STANDARD_BASE64 = str.maketrans("-_", "+/")


# --- filters, probabilities, usage ---


def _filters(answer: Fields, candidate: Fields, filtered: bool) -> Iterator[Fields]:
    """Return the ratings of an answer, the feedback on its prompt, and the filter that ended it."""
    for rating in as_list(candidate.get("safetyRatings")):
        yield as_dict(rating)
    feedback = as_dict(answer.get("promptFeedback"))
    if feedback:
        yield {"promptFeedback": feedback}
    reason, message = candidate.get("finishReason"), candidate.get("finishMessage")
    if filtered and reason and reason not in _ORDINARY_ENDS:
        yield {"finishReason": reason, **({"finishMessage": message} if message else {})}


def _logprobs(result: Fields) -> Iterator[TokenLogprob]:
    top = as_list(result.get("topCandidates"))
    for place, chosen in enumerate(as_list(result.get("chosenCandidates"))):
        likely = as_dict(top[place]).get("candidates") if place < len(top) else None
        token, logprob = _token(chosen)
        yield TokenLogprob(token, logprob, tuple([_token(one) for one in as_list(likely)]))


def _token(value: Any) -> tuple[str, float]:
    """Return a token and its logarithm, which JSON leaves out if it is 0."""
    fields = as_dict(value)
    token, logprob = fields.get("token"), fields.get("logProbability")
    number = float(logprob) if isinstance(logprob, int | float) else 0.0
    return token if isinstance(token, str) else "", number


def read_usage(metadata: Any) -> Usage:
    """Return token counts. The API counts thoughts and results of server tools separately."""
    usage = as_dict(metadata)
    thoughts = count(usage, "thoughtsTokenCount")
    if usage.keys().isdisjoint(_DETAIL_KEYS):
        prompt_tokens, answer_tokens = (
            count(usage, "promptTokenCount"),
            count(usage, "candidatesTokenCount"),
        )
        cached = count(usage, "cachedContentTokenCount")
        return Usage(prompt_tokens, answer_tokens + thoughts, cached, 0, thoughts)
    input_details = ("promptTokensDetails", "toolUsePromptTokensDetails")
    output_details = ("candidatesTokensDetails",)
    return Usage(
        count(usage, "promptTokenCount") + count(usage, "toolUsePromptTokenCount"),
        count(usage, "candidatesTokenCount") + thoughts,
        count(usage, "cachedContentTokenCount"),
        0,
        thoughts,
        input_audio_tokens=_modality(usage, input_details, "AUDIO"),
        output_audio_tokens=_modality(usage, output_details, "AUDIO"),
        input_image_tokens=_modality(usage, input_details, "IMAGE"),
        output_image_tokens=_modality(usage, output_details, "IMAGE"),
    )


_DETAIL_KEYS = {
    *("promptTokensDetails", "candidatesTokensDetails", "toolUsePromptTokensDetails"),
    "toolUsePromptTokenCount",
}


def _modality(usage: Fields, keys: Sequence[str], modality: str) -> int:
    counts = [as_dict(one) for key in keys for one in as_list(usage.get(key))]
    return sum(count(one, "tokenCount") for one in counts if one.get("modality") == modality)
