"""Files in requests: the texts in place of files that a model is not sent, and the providers that
have a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import msgspec

from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    FileContent,
    ImageContent,
    Message,
    ResourceLink,
    TextContent,
    ToolResult,
)
from holdfast.events import MessageAdded as MessageEvent
from holdfast.llm import providers

# The reason in the text for a file that a wire cannot express.
NOT_TAKEN = "this model's API takes no such file"
_MAX_NAME_CHARS = 200

# Wire -> the possible providers of a server that nothing else identifies.
_PROVIDERS_OF_WIRES = {
    "anthropic_messages": ("anthropic",),
    "gemini": ("google", "google-vertex"),
    "openai_chat": ("openai",),
    "openai_responses": ("openai",),
}


def byte_count(count: int) -> str:
    """Return a size for a person: `12 KB`."""
    if count < 999_500:
        return f"{count} bytes" if count < 1000 else f"{count / 1000:.0f} KB"
    return f"{count / 1_000_000:.1f} MB"


def one_line(text: str, limit: int) -> str:
    """Return the text on one line, cut to `limit` characters."""
    return " ".join(text.split())[:limit]


def left_out(block: Content, reason: str = NOT_TAKEN) -> str:
    """Return the replacement of a file, with its kind, name, size and the reason: `[application/pdf
    report.pdf, 12 KB: this model's API takes no such file]`. Return "" for a text block."""
    size = 0
    match block:
        case ImageContent() | AudioContent():
            kind, name, size = block.mime_type, "", len(block.data)
        case FileContent():
            kind, size = block.mime_type, len(block.data)
            name = block.name or block.url or block.file_id
        case EmbeddedResource():
            kind, name = str(block.resource.get("mimeType") or ""), str(block.resource.get("uri"))
            blob = block.resource.get("blob")
            size = len(blob) * 3 // 4 if isinstance(blob, str) else 0
        case ResourceLink():
            kind, name = block.mime_type or "", block.name or block.uri
        case _:
            return ""
    shown_name = one_line(name, _MAX_NAME_CHARS)
    label = " ".join(filter(None, (one_line(kind, 80) or "file", shown_name)))
    has_size = size or isinstance(block, ImageContent | AudioContent)
    return f"[{label}{f', {byte_count(size)}' if has_size else ''}: {reason}]"


MessageT = TypeVar("MessageT", bound="ToolResult | Message | MessageEvent")


def with_texts(message: MessageT, text_for: Callable[[Content], str]) -> MessageT:
    """Return a message or a result with texts in place of some blocks. `text_for` returns the text
    for a block, or "" to keep the block."""
    texts = [text_for(block) for block in message.content]
    if not any(texts):
        return message
    pairs = zip(message.content, texts, strict=True)
    content = [TextContent(text) if text else block for block, text in pairs]
    return msgspec.structs.replace(message, content=tuple(content))


# --- files of one provider ---


def is_bound(content: Iterable[Content]) -> bool:
    """Return True if any block is a file that only one provider has."""
    # A loop, because this runs for every message and a generator costs more than the check.
    for block in content:  # noqa: SIM110
        if type(block) is FileContent and block.provider:
            return True
    return False


def providers_of(model: str, host: str, wire: str) -> frozenset[str]:
    """Return the possible providers of a model: the host's owner, else the prefix of the model's
    name, else the providers that speak the wire."""
    owner = providers.provider_at(f"https://{host}") if host else ""
    if owner:
        return frozenset((owner,))
    prefix, slash, _ = model.partition("/")
    prefix = providers.ALIASES.get(prefix, prefix)
    if slash and (prefix in providers.PROVIDERS or providers.find_provider(prefix) is not None):
        return frozenset((prefix,))
    return frozenset(_PROVIDERS_OF_WIRES.get(wire.partition("+")[0], ()))


def is_foreign(block: Content, provider_names: frozenset[str]) -> bool:
    """Return True for a file that no provider in `provider_names` has."""
    if not isinstance(block, FileContent) or not block.provider:
        return False
    name = block.provider.lower()
    return providers.ALIASES.get(name, name) not in provider_names


def foreign(block: Content) -> str:
    """Return the text that replaces a file of another provider."""
    return left_out(block, f"only {cast(FileContent, block).provider} has this file")


def can_receive(model: Any, block: Content) -> bool:
    """Return True unless the model is known to be another provider's than the file. Of a
    composite, any member may answer."""
    parameters: Mapping[str, Any] = model.parameters()
    wire = str(parameters.get("wire", "openai_chat"))  # a scripted model names none
    provider_names = providers_of(model.model, str(parameters.get("host", "")), wire)
    return "routes" in parameters or not is_foreign(block, provider_names)


def hide_foreign(message: MessageT, provider_names: frozenset[str]) -> MessageT:
    """Return a message or a result in the form for a model of these providers."""
    return with_texts(
        message, lambda block: foreign(block) if is_foreign(block, provider_names) else ""
    )
