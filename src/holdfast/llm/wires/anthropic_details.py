"""The details of a message of Anthropic's API: token counts, citations, tools that the provider
ran, files, and all data without a separate field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.answer import Citation, ModelRun, ServerToolCall, TextPart
from holdfast.content import FileContent, Usage
from holdfast.llm.wires.answers import CompletionBuilder, as_dict, as_list, count

PROVIDER = "anthropic"

# The keys of a message and of its usage that have a field in `Completion` or `AnswerDetails`.
_MESSAGE_KEYS = {
    *("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage", "error"),
}
_USAGE_KEYS = {
    *("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
    *("cache_creation", "output_tokens_details", "service_tier"),
}
# Usage with these keys alone is that of a single run.
_PLAIN_USAGE_KEYS = {
    *("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
    "service_tier",
}
# The counts of one run that together are its input.
_INPUT_KEYS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_CITATION_KEYS = {"cited_text", "document_title", "title", "url", "source", "file_id"}
_ADDRESSES = ("https://", "http://")


def usage(counts: Any) -> Usage:
    """Return all billed tokens of a message. The API's `input_tokens` leave out those of the cache.

    The top-level counts leave out the tokens of a compaction and an advisor. `iterations` lists
    every model run of the answer, and the sum of all is billed. A message of a single run has no
    such list, or one with the same numbers.
    """
    top = as_dict(counts)
    if top.keys() <= _PLAIN_USAGE_KEYS:
        cache_reads, cache_writes = (
            count(top, "cache_read_input_tokens"),
            count(top, "cache_creation_input_tokens"),
        )
        input_tokens, output_tokens = count(top, "input_tokens"), count(top, "output_tokens")
        return Usage(
            input_tokens + cache_reads + cache_writes, output_tokens, cache_reads, cache_writes
        )
    runs = [as_dict(one) for one in as_list(top.get("iterations"))]

    def total(key: str) -> int:
        return max(count(top, key), sum([count(run, key) for run in runs]))

    def hour(of: dict[str, Any]) -> int:
        return count(as_dict(of.get("cache_creation")), "ephemeral_1h_input_tokens")

    cache_reads, cache_writes = (
        total("cache_read_input_tokens"),
        total("cache_creation_input_tokens"),
    )
    return Usage(
        total("input_tokens") + cache_reads + cache_writes,
        total("output_tokens"),
        cache_reads,
        cache_writes,
        count(as_dict(top.get("output_tokens_details")), "thinking_tokens"),
        min(cache_writes, max(hour(top), sum([hour(run) for run in runs]))),
    )


def _runs(counts: dict[str, Any], runs: Sequence[dict[str, Any]], model: Any) -> list[ModelRun]:
    """Return the model runs behind a message of `model`, if there are several and they add up to
    its tokens."""
    model_runs: list[ModelRun] = []
    for run in runs:
        own = run.get("model")
        name = own if isinstance(own, str) and own != model else ""
        model_runs.append(ModelRun(usage({**run, "iterations": ()}), name))
    total, whole = sum([run.usage for run in model_runs], Usage()), usage(counts)
    adds_up = (total.input_tokens, total.output_tokens) == (whole.input_tokens, whole.output_tokens)
    return model_runs if len(model_runs) > 1 and adds_up else []


def add_details(
    builder: CompletionBuilder, message: dict[str, Any], blocks: Sequence[dict[str, Any]]
) -> None:
    """Set all details of a message except citations and text parts, which belong to its texts."""
    counts = as_dict(message.get("usage"))
    plain = all(block["type"] in ("text", "tool_use", "thinking") for block in blocks)
    if not plain:
        _add_server_calls(builder, blocks)
    container = as_dict(message.get("container"))
    details = (
        ("service_tier", counts.get("service_tier")),
        ("stop_sequence", message.get("stop_sequence")),
        ("container", container.get("id")),
    )
    for name, value in details:
        if isinstance(value, str):
            builder.detail(name, value)
    if plain and message.keys() <= _MESSAGE_KEYS and counts.keys() <= _USAGE_KEYS:
        return
    others = {key: value for key, value in message.items() if key not in _MESSAGE_KEYS}
    others |= {key: value for key, value in counts.items() if key not in _USAGE_KEYS}
    runs = [as_dict(run) for run in as_list(others.get("iterations"))]
    if len(runs) == 1 and runs[0].get("type") == "message":
        del others["iterations"]  # the top-level counts again
    elif own := [run for run in runs if run.get("type") == "message"]:
        input_tokens = sum([count(own[-1], key) for key in _INPUT_KEYS])
        if input_tokens:
            builder.detail("context_tokens", input_tokens)
    for run in _runs(counts, runs, message.get("model")):
        builder.detail("runs", run)
    edits = as_list(as_dict(message.get("context_management")).get("applied_edits"))
    if cleared_tokens := sum([count(as_dict(edit), "cleared_input_tokens") for edit in edits]):
        builder.detail("cleared_tokens", cleared_tokens)
    servers = {
        str(block.get("id")): block["server_name"]
        for block in blocks
        if block.get("server_name") and block.get("type") == "mcp_tool_use"
    }
    if servers:
        others["mcp_servers"] = servers
    builder.detail("provider_details", {key: one for key, one in others.items() if _says(one)})


def _says(value: Any) -> bool:
    """Return False for null, zeros, and what holds nothing else."""
    if isinstance(value, dict):
        return any(map(_says, cast("dict[str, Any]", value).values()))
    return bool(value)


def refusal(message: Mapping[str, Any]) -> str:
    """Return the category and the explanation of a refusal; "" if the API gives neither."""
    details = as_dict(message.get("stop_details"))
    parts = [details.get(key) for key in ("category", "explanation")]
    return ": ".join([part for part in parts if isinstance(part, str) and part])


def add_citations(builder: CompletionBuilder, block: dict[str, Any], start: int) -> None:
    """Add the citations of a text block, which begins at `start` in the answer's text."""
    for item in as_list(block.get("citations")):
        fields = as_dict(item)
        if fields:
            builder.detail("citations", _citation(fields, start, start + len(block["text"])))


def _citation(fields: dict[str, Any], start: int, end: int) -> Citation:
    def text(key: str) -> str:
        value = fields.get(key)
        return value if isinstance(value, str) else ""

    source = text("file_id") or text("source")
    if not source and isinstance(fields.get("document_index"), int):
        source = str(fields["document_index"])
    return Citation(
        text("url") or (source if source.startswith(_ADDRESSES) else ""),
        text("title") or text("document_title"),
        text("cited_text"),
        source,
        start,
        end,
        {
            key: value
            for key, value in fields.items()
            if value is not None and key not in _CITATION_KEYS and not key.startswith("encrypted_")
        },
    )


def add_parts(builder: CompletionBuilder, groups: Sequence[str]) -> None:
    """Add the texts of an answer that other blocks separate, if there are several. Neighbouring
    text blocks are one text, which the API cut at its citations."""
    if len(groups) > 1:
        for text in groups:
            builder.detail("parts", TextPart(text))


def _add_server_calls(builder: CompletionBuilder, blocks: Sequence[dict[str, Any]]) -> None:
    """Add the tool calls that the provider ran, each with its result. A result whose call is in an
    earlier answer (which paused) is named after its own kind."""
    calls: dict[Any, ServerToolCall] = {}
    for place, block in enumerate(blocks):
        kind: str = block["type"] if isinstance(block["type"], str) else ""
        if kind.endswith("_tool_use"):  # `server_tool_use`, `mcp_tool_use`
            id, name = str(block.get("id") or ""), str(block.get("name") or "")
            calls[id or place] = ServerToolCall(name, id, block.get("input"))
        elif kind.endswith("_tool_result"):
            id, content = str(block.get("tool_use_id") or ""), block.get("content")
            call = calls.get(id) or ServerToolCall(kind.removesuffix("_tool_result"), id)
            failed = block.get("is_error") is True or str(
                as_dict(content).get("type") or ""
            ).endswith("_error")
            output = _readable(content)
            calls[id or place] = msgspec.structs.replace(call, output=output, is_error=failed)
            for file in as_list(as_dict(content).get("content")):
                file_id = as_dict(file).get("file_id")
                if isinstance(file_id, str) and file_id:
                    builder.detail("media", FileContent(file_id=file_id, provider=PROVIDER))
    for call in calls.values():
        builder.detail("server_calls", call)


def _readable(value: Any) -> Any:
    """Return a result without the parts that only the provider can read."""
    if isinstance(value, list):
        return [_readable(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {
            key: _readable(one)
            for key, one in cast("dict[str, Any]", value).items()
            if not key.startswith("encrypted_")
        }
    return value
