"""Accepted shapes and checks of what a user hands to a conversation: a message's content, and new
arguments for a call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from holdfast.content import Content, Message, TextContent, blocks
from holdfast.errors import ConfigurationError
from holdfast.nesting import MAX_DEPTH, too_deep
from holdfast.tools.results import clean


def content_of(message: Any) -> tuple[Content, ...]:
    """Return a message in any shape that `send_message` takes as content blocks. Raises
    `ConfigurationError`."""
    if isinstance(message, Message):
        if message.role != "user":
            raise ConfigurationError(
                f"send_message takes a message of role 'user', not {message.role!r}."
            )
        return message.content
    if isinstance(message, Mapping) and "role" in message:
        raise ConfigurationError(
            "send_message takes a str or content blocks, not a chat message as a dict: send its"
            " content."
        )
    if isinstance(message, list | tuple) and any(
        isinstance(item, Mapping) and "role" in item for item in cast("list[Any]", message)
    ):
        raise ConfigurationError(
            "send_message takes one message of the user, not a list of chat messages: send the"
            " content of the last one. The conversation keeps what was said before."
        )
    if isinstance(message, bytes | bytearray):
        raise ConfigurationError(
            "send_message takes a str or content blocks, not bytes: decode them first."
        )
    return blocks(cast("Any", message))


def checked_content(content: tuple[Content, ...]) -> tuple[Content, ...]:
    """Return the blocks that a user may send. Raise `ConfigurationError` if they are empty."""
    for block in content:
        if isinstance(block, TextContent) and not isinstance(block.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"TextContent: text takes a str, not {block.text!r}.")
    content = cleaned(content)
    if not any(not isinstance(block, TextContent) or block.text.strip() for block in content):
        raise ConfigurationError(
            "send_message takes a text or content blocks; it was given nothing."
        )
    return content


def cleaned(content: Sequence[Content]) -> tuple[Content, ...]:
    """Return the blocks with text that UTF-8 can hold."""
    return tuple(
        [TextContent(clean(one.text)) if type(one) is TextContent else one for one in content]
    )


def json_arguments(arguments: Any) -> dict[str, Any]:
    """Return a copy of new arguments for a call. Raises `ConfigurationError` unless they are a
    JSON object."""
    try:
        # fails for half of a surrogate pair, which has no UTF-8 bytes
        data = json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
        value = None if too_deep(data) else json.loads(data)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"approve: arguments must be valid JSON: {error}.") from error
    except RecursionError:
        value = None
    if value is None and isinstance(arguments, dict):
        raise ConfigurationError(f"approve: arguments are nested deeper than {MAX_DEPTH} levels.")
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"approve: arguments takes a dict, not a {type(arguments).__name__}."
        )
    return cast("dict[str, Any]", value)
