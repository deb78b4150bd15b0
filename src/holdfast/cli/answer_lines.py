"""Lines for the parts of an answer beyond its text: refusals, server tool calls, media, sources."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from holdfast import content
from holdfast.answer import Citation
from holdfast.cli.text import TextLine, one_line, size
from holdfast.events import AssistantReplied


def detail_lines(answer: AssistantReplied) -> Iterator[TextLine]:
    """Yield the lines of an answer's details; none for an answer without details."""
    if answer.refusal:
        yield TextLine("error", f"(refused: {one_line(answer.refusal)})")
    for call in answer.server_calls:
        failed = ", failed" if call.is_error else ""
        arguments = "" if call.arguments is None else f" {one_line(str(call.arguments))}"
        yield TextLine("dim", f"(the provider ran {one_line(call.name)}{arguments}{failed})")
    for block in answer.media:
        yield TextLine("dim", f"({_described(block)})")
    sources = dict.fromkeys(_source(citation) for citation in answer.citations)
    for number, source in enumerate(sources, 1):
        yield TextLine("dim", f"[{number}] {source}")


def _described(block: content.Content) -> str:
    match block:
        case content.FileContent():
            name = f", {one_line(block.name)}" if block.name else ""
            bytes_ = f", {size(len(block.data))}" if block.data else ""
            return f"generated {block.kind}, {one_line(block.mime_type)}{bytes_}{name}"
        case content.ImageContent() | content.AudioContent():
            kind = "image" if isinstance(block, content.ImageContent) else "audio"
            return f"generated {kind}, {one_line(block.mime_type)}, {size(len(block.data))}"
        case content.ResourceLink():
            kind = f", {one_line(block.mime_type)}" if block.mime_type else ""
            return f"generated file{kind}, {one_line(block.uri)}"
        case _:
            return "generated content"


def _source(citation: Citation) -> str:
    """Return the title and the address of a source. Only web addresses are shown as such."""
    try:
        is_web = urlsplit(citation.url).scheme.lower() in ("http", "https")
    except ValueError:
        is_web = False
    parts = [citation.title or citation.source, citation.url if is_web else ""]
    return " ".join(one_line(part) for part in parts if part) or "(a source without a name)"
