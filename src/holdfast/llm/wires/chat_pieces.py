"""Puts the fields of a streamed chat message together from their pieces."""

from __future__ import annotations

from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Mapping
from typing import Any, cast

from holdfast.llm.wires.answers import as_dict, as_list

# Strings that each delta repeats in full. All others arrive in pieces.
_REPEATED_KEYS = {
    *("role", "id", "type", "format", "name", "channel", "reasoning_opaque"),
    *("signature", "encrypted_content", "thought_signature"),
}
# Lists whose items arrive whole; an item with the `index` of an earlier one replaces it.
WHOLE_ITEMS = {"annotations", "images", "executed_tools"}


def merge_others(into: dict[str, Any], piece: Mapping[str, Any], known_keys: set[str]) -> None:
    """Merge the fields of a piece, except for those of `known_keys`."""
    for key, value in piece.items():
        if value and key not in known_keys:
            merge(into, key, value)


def add_thinking(blocks: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    """Add a piece of LiteLLM's thinking blocks. The signature ends a block."""
    last = blocks[-1] if blocks else {}
    if piece.get("type") != "thinking" or last.get("type") != "thinking" or last.get("signature"):
        blocks.append(dict(piece))
        return
    for key, value in piece.items():
        if value and key == "thinking":
            last[key] = f"{last.get(key) or ''}{value}"
        elif value:
            last[key] = value


def add_items(into: dict[str, Any], key: str, new: Any) -> None:
    """Add items that arrive whole to a list. An item that is sent again is not doubled."""
    items: list[Any] = into.setdefault(key, [])
    for value in as_list(new):
        index = as_dict(value).get("index")
        old = [as_dict(item) for item in items if as_dict(item).get("index") == index]
        if index is not None and old and old[-1].get("type") == as_dict(value).get("type"):
            old[-1].update({name: one for name, one in value.items() if one is not None})
        elif value not in items:
            items.append(value)


def merge(into: dict[str, Any], key: str, new: Any) -> None:
    """Add a piece to a key of a streamed object, in place: strings are joined, objects are
    merged, and lists are merged by `index`."""
    old = into.get(key)
    if type(old) is not type(new):
        if new is not None:
            into[key] = new
    elif isinstance(old, str) and key not in _REPEATED_KEYS:
        # Drop the second reference to the text; otherwise each piece copies all of it.
        into[key] = None
        old += new
        into[key] = old
    elif isinstance(old, dict):
        for name, value in cast("dict[str, Any]", new).items():
            merge(cast("dict[str, Any]", old), name, value)
    elif isinstance(old, list):
        items = cast("list[Any]", old)
        for value in cast("list[Any]", new):
            item = _continued_item(items, value)
            if item is None:
                items.append(value)
            else:
                for name, inner in value.items():
                    merge(item, name, inner)
    else:
        into[key] = new


def _continued_item(items: list[Any], value: Any) -> dict[str, Any] | None:
    """Return the last item with the same index and type as a piece, if any."""
    piece = as_dict(value)
    if "index" not in piece:
        return None
    for item in map(as_dict, reversed(items)):
        if item and item.get("index") == piece["index"] and item.get("type") == piece.get("type"):
            return item
    return None


def join_base64(pieces: list[str]) -> str:
    """Return base64 in pieces, each padded or cut anywhere, as one text."""
    if any(piece.endswith("=") for piece in pieces[:-1]):
        try:
            return b2a_base64(b"".join(map(a2b_base64, pieces)), newline=False).decode()
        except (Error, ValueError):
            pass
    return "".join(pieces)
