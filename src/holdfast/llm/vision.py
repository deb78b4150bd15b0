"""Pictures: the text that replaces one for a model without vision, and the models
that have vision."""

from __future__ import annotations

from binascii import Error, a2b_base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from holdfast.content import (
    Content,
    EmbeddedResource,
    FileContent,
    ImageContent,
    TextContent,
)
from holdfast.image_size import pixels
from holdfast.llm.files import MessageT, byte_count, one_line, with_texts

IMAGES_PARAMETER = "images"  # the parameter that is False for a model without vision


def picture(block: Content) -> ImageContent | FileContent | None:
    """Return a block as a picture; None for any other block. A file with bytes and a resource
    become an `ImageContent`; a `FileContent` stands for a picture by URL or id."""
    if not _is_picture(block):
        return None
    if isinstance(block, EmbeddedResource):
        resource = block.resource
        try:
            data = a2b_base64(resource["blob"])
        except (Error, ValueError):
            data = b""
        return ImageContent(data, resource["mimeType"])
    if isinstance(block, FileContent) and block.data:
        return ImageContent(block.data, block.mime_type)
    return cast("ImageContent | FileContent", block)


def has_picture(content: Iterable[Content]) -> bool:
    """Return True if any block is a picture."""
    # A loop, because this runs for every event and a generator costs more than the check.
    for block in content:  # noqa: SIM110
        if type(block) is not TextContent and _is_picture(block):
            return True
    return False


def _is_picture(block: Content) -> bool:
    """Return True for a picture, without decoding its data."""
    if isinstance(block, EmbeddedResource):
        kind, blob = block.resource.get("mimeType"), block.resource.get("blob")
        return isinstance(kind, str) and kind.startswith("image/") and isinstance(blob, str)
    if isinstance(block, FileContent):
        return block.kind == "image"
    return isinstance(block, ImageContent)


def placeholder(image: ImageContent | FileContent) -> str:
    """Return the text that replaces a picture for a model without vision: `[picture: image/png,
    640 x 480, 12 KB]`, or `[picture: image/png, https://example.com/a.png]`. The size in pixels is
    left out if it cannot be read."""
    kind = one_line(image.mime_type, 80)
    if isinstance(image, FileContent):
        return f"[picture: {kind}, {one_line(image.name or image.url or image.file_id, 200)}]"
    size = pixels(image.data)
    shown_size = f"{size[0]} x {size[1]}, " if size else ""
    return f"[picture: {kind}, {shown_size}{byte_count(len(image.data))}]"


def sees(model: Any) -> bool | None:
    """Return True if a model accepts pictures, False if it does not, and None if this is unknown.

    A composite accepts pictures only if all its models do.
    """
    members = getattr(model, "models", None)
    if isinstance(members, Mapping):
        abilities = [sees(member) for member in cast("Mapping[str, Any]", members).values()]
        return False if False in abilities else None if None in abilities else True
    return cast("bool | None", getattr(model, "sees", None))


def with_vision(model: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's parameters, with `"images": False` added if the model is known to lack
    vision. For a composite, the same is done for each of its models."""
    members = getattr(model, "models", None)
    if isinstance(members, Mapping) and isinstance(parameters.get("routes"), dict):
        by_name = cast("Mapping[str, Any]", members)
        return _map_routes(parameters, lambda name, inner: with_vision(by_name.get(name), inner))
    blind = {IMAGES_PARAMETER: False} if sees(model) is False else {}
    return {**parameters, **blind}


def without_vision(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without the entries of `with_vision`. Once the journal has recorded
    which models have vision, the journal decides."""
    unmarked = {key: value for key, value in parameters.items() if key != IMAGES_PARAMETER}
    return _map_routes(unmarked, lambda _, inner: without_vision(inner))


def names_blind_model(parameters: Mapping[str, Any]) -> bool:
    """Return True if the parameters say of any model that it lacks vision."""
    if parameters.get(IMAGES_PARAMETER) is False:
        return True
    routes: Any = parameters.get("routes")
    entries = cast("dict[str, dict[str, Any]]", routes if isinstance(routes, dict) else {})
    return any(names_blind_model(entry.get("parameters") or {}) for entry in entries.values())


def _map_routes(
    parameters: Mapping[str, Any], change: Callable[[str, dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Return a composite's parameters with those of each of its models changed."""
    routes: Any = parameters.get("routes")
    if not isinstance(routes, dict):
        return dict(parameters)
    members = {
        name: {**entry, "parameters": change(name, entry.get("parameters") or {})}
        for name, entry in cast("dict[str, dict[str, Any]]", routes).items()
    }
    return {**parameters, "routes": members}


def hide_pictures(message: MessageT) -> MessageT:
    """Return a message or a result in the form for a model without vision."""
    return with_texts(message, _text_of_picture)


def _text_of_picture(block: Content) -> str:
    image = None if type(block) is TextContent else picture(block)
    return "" if image is None else placeholder(image)
