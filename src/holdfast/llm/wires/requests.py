"""The assembly of requests on all wires."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from holdfast.llm.wires.protocol import RequestHead


def no_family(model: str, host: str) -> str:
    """Return "", for a wire whose encoding is the same for all models."""
    return ""


def set_parameters(parameters: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters that are set, under the API's names for them."""
    return {name: parameters[key] for key, name in names.items() if parameters.get(key) is not None}


def merge_extra(body: dict[str, Any], extra: Mapping[str, Any], objects: Collection[str]) -> None:
    """Merge `extra_body` into a request. Entries under `objects` are merged key by key, `tools`
    follow the agent's, and all other entries replace those of the same name."""
    for key, value in extra.items():
        ours: Any = body.get(key)
        if ours and key in objects and isinstance(value, Mapping):
            value = {**ours, **cast("Mapping[str, Any]", value)}
        elif ours and key == "tools" and isinstance(value, list | tuple):
            value = [*ours, *cast("Sequence[Any]", value)]
        body[key] = value


def join_body(head: RequestHead, fragments: Sequence[bytes], stream: bool) -> bytes:
    """Return the bytes of a request, built with a single copy."""
    suffix = head.stream_suffix if stream else head.suffix
    if not fragments:
        return head.prefix + suffix
    parts = list(fragments)
    parts[-1] += suffix
    if head.first:
        parts[0] = head.prefix + parts[0]
    else:
        parts.insert(0, head.prefix)
    return b",".join(parts)
