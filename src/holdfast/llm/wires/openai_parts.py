"""Elements shared by OpenAI's two wires: headers, text messages, content parts, cache keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.content import Content, EmbeddedResource, ImageContent, TextContent
from holdfast.llm.wires.blocks import base64
from holdfast.llm.wires.calls import digest

# The longest item id, call id of Responses, and cache key, in characters: "string too long.
# Expected a string with maximum length 64".
MAX_ID_CHARS = 64

_json = msgspec.json.Encoder().encode

Part = dict[str, Any]


def headers(api_key: str) -> dict[str, str]:
    """Return the headers of every request. Without a key, no authorization is sent."""
    request_headers = {"Content-Type": "application/json", "Accept": "*/*"}
    if api_key:
        request_headers["Authorization"] = f"Bearer {api_key}"
    return request_headers


def system(text: str) -> bytes:
    """Encode a system message."""
    return _json({"role": "system", "content": text})


def user(content: Sequence[Content], part: Callable[[Content], Part]) -> bytes:
    """Encode a user message. Text alone becomes a str, which every server accepts; any other
    content becomes parts."""
    if all(isinstance(block, TextContent) for block in content):
        return _json(
            {
                "role": "user",
                "content": "\n".join([cast(TextContent, block).text for block in content]),
            }
        )
    return _json({"role": "user", "content": [part(block) for block in content]})


def picture(block: Content) -> str:
    """Return a picture as a data URL, whether it stands alone or in a resource; "" for any other
    block."""
    if isinstance(block, ImageContent):
        return f"data:{block.mime_type};base64,{base64(block.data)}"
    kind, blob = _blob(block)
    return f"data:{kind};base64,{blob}" if kind.startswith("image/") else ""


def document(block: Content) -> Part | None:
    """Return the name and data of a PDF file in a resource, under the keys of both APIs; None
    for any other block."""
    kind, blob = _blob(block)
    if kind != "application/pdf":
        return None
    title = str(cast(EmbeddedResource, block).resource.get("uri") or "").rpartition("/")[2]
    return {"filename": title or "file.pdf", "file_data": f"data:{kind};base64,{blob}"}


def _blob(block: Content) -> tuple[str, str]:
    if isinstance(block, EmbeddedResource) and isinstance(block.resource.get("blob"), str):
        return str(block.resource.get("mimeType") or ""), block.resource["blob"]
    return "", ""


def cache_key(parameters: Mapping[str, Any], hosts: tuple[str, ...]) -> dict[str, str]:
    """Return `prompt_cache_key` if the host has one of these endings and caching is not turned
    off."""
    key = str(parameters.get("cache_key") or "")
    if (
        not key
        or parameters.get("prompt_caching") is False
        or not str(parameters.get("host")).endswith(hosts)
    ):
        return {}
    return {"prompt_cache_key": key if len(key) <= MAX_ID_CHARS else digest(key)}


def with_name(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `json_schema` of a `response_format` with a name, which both APIs require."""
    return dict(schema) if schema.get("name") else {**schema, "name": "answer"}
