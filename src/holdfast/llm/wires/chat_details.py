"""The token counts of Chat Completions, and the other parts of an answer: citations, pictures,
sound, tools that the provider ran, filters, probabilities and prices."""

from __future__ import annotations

from binascii import Error, a2b_base64
from typing import Any, cast

from holdfast.answer import Citation, ServerToolCall, TokenLogprob
from holdfast.content import AudioContent, Content, Usage, content_at
from holdfast.llm.providers import maker
from holdfast.llm.wires import openai_common as common
from holdfast.llm.wires.answers import CompletionBuilder, as_dict, as_list, count
from holdfast.llm.wires.lenient_json import clean_texts, decode

# Keys whose values a completion has elsewhere, or that say nothing about the answer.
_TOP_KEYS = {
    *("id", "object", "created", "model", "choices", "usage", "service_tier", "obfuscation"),
    *("citations", "search_results", "web_search", "prompt_filter_results", "content_filter"),
    *("moderation", "error", "base_resp", "time_info", "nvext"),
}
_CHOICE_KEYS = {
    *("index", "message", "delta", "finish_reason", "logprobs", "content_filter_results", "usage"),
    *("stop_reason", "matched_stop", "text", "token_ids"),
}
_MESSAGE_KEYS = {
    *("role", "content", "tool_calls", "function_call", "refusal", "annotations", "images"),
    *("audio", "executed_tools", "reasoning_details", "reasoning_opaque", "extra_content"),
    *("thinking_blocks", "image"),
    *("channel", "token_id", "token_ids", "name"),
    *("reasoning_content", "reasoning", "reasoning_text", "thinking"),
}
_USAGE_KEYS = {
    *("prompt_tokens", "completion_tokens", "total_tokens", "cost", "cached_tokens"),
    *("prompt_tokens_details", "prompt_token_details", "completion_tokens_details"),
    *("num_cached_tokens", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens"),
    *("reasoning_tokens", "cost_in_usd_ticks", "estimated_cost"),
    *("cache_creation_input_tokens", "cache_read_input_tokens"),
}
# An answer with these keys alone has no details.
_PLAIN_TOP_KEYS = {"id", "object", "created", "model", "choices", "usage"}
_PLAIN_CHOICE_KEYS = {"index", "message", "finish_reason"}
_PLAIN_MESSAGE_KEYS = {"role", "content", "tool_calls", "refusal"}
_PLAIN_USAGE_KEYS = {
    *("prompt_tokens", "completion_tokens", "total_tokens"),
    *("prompt_tokens_details", "completion_tokens_details"),
}


# --- token counts ---


def usage(answer: dict[str, Any], choice: dict[str, Any]) -> Usage:
    """Return the token counts. Groq streams them in `x_groq`, Moonshot within the choice."""
    places = (as_dict(answer.get("x_groq")), choice)
    counts = answer.get("usage")
    if not counts:
        counts = next((one["usage"] for one in places if one.get("usage")), None)
    token_usage = common.read_usage(counts, "prompt", "completion")
    return with_thinking(token_usage, count(as_dict(counts), "total_tokens"), answer.get("model"))


def with_thinking(usage: Usage, total_tokens: int, model: Any) -> Usage:
    """Return the usage with the thinking that Google's endpoint leaves out of the output; the total
    includes it."""
    thinking = total_tokens - usage.input_tokens - usage.output_tokens
    if usage.reasoning_tokens or thinking <= 0:
        return usage
    is_google = isinstance(model, str) and maker(model) == "google"
    return common.with_reasoning(usage, thinking) if is_google else usage


# --- details ---


def add(
    builder: CompletionBuilder,
    answer: dict[str, Any],
    choice: dict[str, Any],
    message: dict[str, Any],
    is_split: bool,
) -> None:
    """Set the details of an answer. `is_split` says that reasoning was cut off the text, so that
    positions in it are unknown."""
    counts = as_dict(answer.get("usage"))
    if (
        answer.keys() <= _PLAIN_TOP_KEYS
        and choice.keys() <= _PLAIN_CHOICE_KEYS
        and message.keys() <= _PLAIN_MESSAGE_KEYS
        and counts.keys() <= _PLAIN_USAGE_KEYS
        and not isinstance(message.get("content"), list)
    ):
        return
    for citation in _citations(answer, message, is_split):
        builder.detail("citations", citation)
    for item in map(as_dict, as_list(message.get("executed_tools"))):
        builder.detail("server_calls", _executed_tool(item))
    for block in _media(message):
        builder.detail("media", block)
    for token in _logprobs(as_dict(choice.get("logprobs"))):
        builder.detail("logprobs", token)
    for result in _filters(answer, choice):
        builder.detail("filters", result)
    tier = answer.get("service_tier")
    builder.detail("service_tier", tier if isinstance(tier, str) else "")
    stopped_at = choice.get("stop_reason") or choice.get("matched_stop")  # vLLM, SGLang
    builder.detail("stop_sequence", stopped_at if isinstance(stopped_at, str) else "")
    builder.detail("provider_cost", common.stated_cost(counts))
    others = _others(answer, _TOP_KEYS) | _others(choice, _CHOICE_KEYS)
    others |= _others(message, _MESSAGE_KEYS)
    if groq := as_dict(others.pop("x_groq", None)):
        others |= {"x_groq": rest} if (rest := _others(groq, {"id", "usage"})) else {}
    if more := _others(counts, _USAGE_KEYS):
        others["usage"] = more
    builder.detail("provider_details", clean_texts(others))


def _others(fields: dict[str, Any], known_keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in known_keys and value}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _filters(answer: dict[str, Any], choice: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results of Azure's filters, OpenAI's moderation and Zhipu's filter."""
    filters = [as_dict(item) for item in as_list(answer.get("prompt_filter_results"))]
    if results := as_dict(choice.get("content_filter_results")):
        filters.append({"content_filter_results": results})
    if moderation := as_dict(answer.get("moderation")):
        filters.append({"moderation": moderation})
    return filters + [as_dict(item) for item in as_list(answer.get("content_filter"))]


def _logprobs(logprobs: dict[str, Any]) -> list[TokenLogprob]:
    """Return the probabilities of tokens, in OpenAI's form or in the one of Together."""
    entries: list[TokenLogprob] = []
    for item in map(as_dict, as_list(logprobs.get("content"))):
        tops = [as_dict(top) for top in as_list(item.get("top_logprobs"))]
        top = tuple([(_text(one.get("token")), _number(one.get("logprob"))) for one in tops])
        entries.append(TokenLogprob(_text(item.get("token")), _number(item.get("logprob")), top))
    tokens, values = as_list(logprobs.get("tokens")), as_list(logprobs.get("token_logprobs"))
    if not entries and len(tokens) == len(values):
        pairs = zip(tokens, values, strict=True)
        entries = [TokenLogprob(_text(token), _number(value)) for token, value in pairs]
    return entries


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _executed_tool(item: dict[str, Any]) -> ServerToolCall:
    """Return a tool that Groq ran."""
    arguments: Any = item.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = clean_texts(decode(arguments))
        except ValueError:
            pass
    results = {key: value for key, value in item.items() if key.endswith("results") and value}
    output: Any = item.get("output")
    if results:
        output = {**results, **({"output": output} if output else {})}
    name = _text(item.get("name")) or _text(item.get("type"))
    return ServerToolCall(name, _text(item.get("id")), arguments, output)


# --- citations ---


def _citations(answer: dict[str, Any], message: dict[str, Any], is_split: bool) -> list[Citation]:
    citations = [
        _annotation(as_dict(item.get("url_citation")) or item, is_split)
        for item in map(as_dict, as_list(message.get("annotations")))
        if item.get("type") == "url_citation"
    ]
    for part in map(as_dict, as_list(message.get("content"))):  # Mistral
        if part.get("type") == "reference":
            ids = as_list(part.get("reference_ids"))
            citations += [Citation(source=str(one)) for one in ids]
        elif part.get("type") == "tool_reference":
            citations.append(Citation(_text(part.get("url")), _text(part.get("title"))))
    results = [as_dict(item) for item in as_list(answer.get("search_results"))]
    results += [as_dict(item) for item in as_list(answer.get("web_search"))]
    venice = as_dict(answer.get("venice_parameters"))
    results += [as_dict(item) for item in as_list(venice.get("web_search_citations"))]
    by_url = {_text(item.get("url") or item.get("link")): item for item in results}
    # Perplexity and xAI: the n-th is [n] in the text.
    sources = as_list(answer.get("citations")) or list(by_url)
    for number, item in enumerate(sources, 1):
        fields = as_dict(item)
        url = item if isinstance(item, str) else _text(fields.get("url"))
        fields = fields or by_url.get(url, {})
        quote = _text(fields.get("snippet") or fields.get("content"))
        details = _others(fields, {"url", "link", "title", "snippet", "content", "refer"})
        source = _text(fields.get("refer")) or str(number)
        citations.append(
            Citation(url, _text(fields.get("title")), quote, source, details=clean_texts(details))
        )
    return citations


def _annotation(fields: dict[str, Any], is_split: bool) -> Citation:
    start, end = fields.get("start_index"), fields.get("end_index")
    is_placed = not is_split and type(start) is int and type(end) is int and end > 0
    known_keys = {"type", "url", "title", "content", "start_index", "end_index"}
    return Citation(
        _text(fields.get("url")),
        _text(fields.get("title")),
        _text(fields.get("content")),
        start=cast("int", start) if is_placed else None,
        end=cast("int", end) if is_placed else None,
        details=clean_texts(_others(fields, known_keys)),
    )


# --- pictures and sound ---

_SOUNDS = {
    b"RIFF": "audio/wav",
    b"ID3": "audio/mpeg",
    b"\xff\xfb": "audio/mpeg",
    b"\xff\xf3": "audio/mpeg",
    b"fLaC": "audio/flac",
    b"OggS": "audio/ogg",
}


def _media(message: dict[str, Any]) -> list[Content]:
    """Return sound, and pictures in `images` or in the content."""
    blocks: list[Content] = []
    sound = as_dict(message.get("audio")).get("data")
    if isinstance(sound, str) and sound and (data := _decode_base64(sound)):
        kinds = (kind for start, kind in _SOUNDS.items() if data.startswith(start))
        # The answer does not name the format. Streams have no header: 16-bit samples at 24 kHz.
        blocks.append(AudioContent(data, next(kinds, "audio/pcm")))
    parts = [*as_list(message.get("images")), *as_list(message.get("content"))]
    if "image" in message:  # LiteLLM before 1.77
        parts.append({"image_url": message["image"]})
    for part in map(as_dict, parts):
        place: Any = part.get("image_url")
        url = place if isinstance(place, str) else _text(as_dict(place).get("url"))
        if url and (picture := _picture(url)) is not None:
            blocks.append(picture)
    return blocks


def _picture(url: str) -> Content | None:
    if url[:5].lower() == "data:":
        return content_at(url, "image/png")
    return content_at(url, "image/*" if "." not in url[-6:] else "")


def _decode_base64(text: str) -> bytes:
    try:
        return a2b_base64(text)
    except (Error, ValueError):
        return b""
