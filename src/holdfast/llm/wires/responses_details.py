"""The details of an answer of the Responses API: citations, calls that the provider ran, pictures,
token probabilities, and facts about the whole response."""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from holdfast.answer import Citation, ServerToolCall, TokenLogprob
from holdfast.content import ImageContent, content_at
from holdfast.llm.wires.answers import CompletionBuilder, as_dict, as_list
from holdfast.llm.wires.openai_common import stated_cost

Item = dict[str, Any]

# Fields of a response that are kept under their own names in `provider_details`.
KEPT_FIELDS = (
    *("conversation", "incomplete_details", "metadata", "previous_response_id"),
    *("prompt_cache_options", "prompt_cache_retention", "background"),
)


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    return value if type(value) is int else None


def _rest(fields: Item, *known_keys: str) -> Item:
    return {
        key: value for key, value in fields.items() if key not in known_keys and value is not None
    }


# --- texts ---


def read_annotations(part: Item, offset: int, builder: CompletionBuilder) -> None:
    """Read the sources of a part of a message, whose text begins at `offset` in the answer's."""
    for annotation in as_list(part.get("annotations")):
        fields = as_dict(annotation)
        kind = text_of(fields.get("type"))
        start, end = _number(fields.get("start_index")), _number(fields.get("end_index"))
        # The API's `index` of a file is its place in a list, not in the text.
        citation = Citation(
            text_of(fields.get("url")),
            text_of(fields.get("title")) or text_of(fields.get("filename")),
            source=text_of(fields.get("file_id")),
            start=None if start is None else offset + start,
            end=None if end is None else offset + end,
            details=_rest(
                fields,
                *("url", "title", "filename", "file_id", "start_index", "end_index"),
                *(("type",) if kind == "url_citation" else ()),
            ),
        )
        builder.detail("citations", citation)
        builder.detail("container", text_of(fields.get("container_id")))


def read_logprobs(part: Item, builder: CompletionBuilder) -> None:
    """Read the probabilities of a part's tokens."""
    for entry in as_list(part.get("logprobs")):
        token, logprob = _token(as_dict(entry))
        if logprob is not None:
            top = [_token(as_dict(one)) for one in as_list(as_dict(entry).get("top_logprobs"))]
            likely = tuple([(name, value) for name, value in top if value is not None])
            builder.detail("logprobs", TokenLogprob(token, logprob, likely))


def _token(entry: Item) -> tuple[str, float | None]:
    value: Any = entry.get("logprob")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return text_of(entry.get("token")), float(value) if is_number else None


# --- calls that the provider ran ---


class _Outputs(NamedTuple):
    """The items with outputs of calls in the same answer, by the id of the call."""

    by_id: dict[Any, Item]

    def of(self, item: Item, key: str) -> Any:
        return self.by_id.get(item.get("call_id"), {}).get(key)


def outputs_of(items: list[Item]) -> _Outputs:
    """Return the items that hold the output of a call."""
    outputs = [item for item in items if text_of(item.get("type")).endswith("_output")]
    return _Outputs({item["call_id"]: item for item in outputs if text_of(item.get("call_id"))})


def read_server_call(item: Item, outputs: _Outputs, builder: CompletionBuilder) -> None:
    """Read an item that is neither text nor a call to the client. Items of an unknown kind whose
    name ends in `_call` count as calls of the tool of that name."""
    kind = text_of(item.get("type"))
    builder.detail("container", text_of(item.get("container_id")))
    if kind == "image_generation_call":
        _read_picture(item, builder)
    elif kind == "code_interpreter_call":
        for output in as_list(item.get("outputs")):
            _read_image_output(as_dict(output), builder)
    reader = _SERVER_CALLS.get(kind)
    if reader is None and kind.endswith("_call"):
        reader = _read_other
    if reader is not None:
        name, arguments, output = reader(item, outputs)
        call = ServerToolCall(
            name,
            text_of(item.get("call_id")) or text_of(item.get("id")),
            arguments or None,
            output,
            item.get("status") == "failed" or bool(item.get("error")),
        )
        builder.detail("server_calls", call)


_Read = tuple[str, Any, Any]


def _read_web_search(item: Item, outputs: _Outputs) -> _Read:
    action = as_dict(item.get("action"))
    output = {"sources": action.get("sources"), "results": item.get("results")}
    return "web_search", _rest(action, "sources"), _rest(output) or None


def _read_file_search(item: Item, outputs: _Outputs) -> _Read:
    return "file_search", _rest({"queries": item.get("queries")}), item.get("results")


def _read_code(item: Item, outputs: _Outputs) -> _Read:
    return "code_interpreter", _rest({"code": item.get("code")}), item.get("outputs")


def _read_generation(item: Item, outputs: _Outputs) -> _Read:
    return "image_generation", _rest(item, "id", "type", "status", "result"), None


def _read_mcp_call(item: Item, outputs: _Outputs) -> _Read:
    label, name = text_of(item.get("server_label")), text_of(item.get("name"))
    output = item.get("error") or item.get("output")
    return f"{label}.{name}" if label else name, _decode(item.get("arguments")), output


def _read_mcp_list(item: Item, outputs: _Outputs) -> _Read:
    label = _rest({"server_label": item.get("server_label")})
    return "mcp_list_tools", label, item.get("error") or item.get("tools")


def _read_shell(item: Item, outputs: _Outputs) -> _Read:
    return "shell", _rest(as_dict(item.get("action"))), outputs.of(item, "output")


def _read_tool_search(item: Item, outputs: _Outputs) -> _Read:
    return "tool_search", item.get("arguments"), outputs.of(item, "tools")


def _read_program(item: Item, outputs: _Outputs) -> _Read:
    return "program", _rest({"code": item.get("code")}), outputs.of(item, "result")


def _read_custom(item: Item, outputs: _Outputs) -> _Read:
    name = text_of(item.get("name"))
    return name, _rest({"input": item.get("input")}), outputs.of(item, "output")


def _read_other(item: Item, outputs: _Outputs) -> _Read:
    name = text_of(item.get("type")).removesuffix("_call")
    return name, _rest(item, "id", "call_id", "type", "status"), outputs.of(item, "output")


_SERVER_CALLS: dict[str, Callable[[Item, _Outputs], _Read]] = {
    "web_search_call": _read_web_search,
    "file_search_call": _read_file_search,
    "code_interpreter_call": _read_code,
    "image_generation_call": _read_generation,
    "mcp_call": _read_mcp_call,
    "mcp_list_tools": _read_mcp_list,
    "shell_call": _read_shell,
    "tool_search_call": _read_tool_search,
    "program": _read_program,
    "custom_tool_call": _read_custom,
}


def _decode(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text


def _read_picture(item: Item, builder: CompletionBuilder) -> None:
    data = _bytes(text_of(item.get("result")))
    if data:
        form = text_of(item.get("output_format")) or "png"
        builder.detail("media", ImageContent(data, f"image/{form}"))


def _read_image_output(output: Item, builder: CompletionBuilder) -> None:
    """Read a picture that code made: its bytes in a `data:` address, or an address."""
    url = text_of(output.get("url"))
    if output.get("type") != "image" or not url:
        return
    if (picture := content_at(url, "image/png")) is not None:
        builder.detail("media", picture)


def _bytes(text: str) -> bytes:
    try:
        return a2b_base64(text.encode("ascii", "replace"))
    except ValueError:
        return b""


# --- the response ---


def read_response(answer: Any, builder: CompletionBuilder) -> None:
    """Read the fields of a response that say more than its items."""
    builder.detail("service_tier", text_of(answer.service_tier))
    builder.detail("provider_cost", stated_cost(as_dict(answer.usage)))
    for item in (answer.moderation, *as_list(answer.content_filters)):  # the latter are Azure's
        builder.detail("filters", as_dict(item))
    values = [(name, getattr(answer, name)) for name in KEPT_FIELDS]
    builder.detail("provider_details", {name: value for name, value in values if value})
