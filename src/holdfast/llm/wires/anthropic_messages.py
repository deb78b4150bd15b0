"""Anthropic's Messages wire.

`native` is an answer's `content` array, which is sent back verbatim. Parts that the API itself
refuses are left out; see `anthropic_input.assistant`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.llm.wires import anthropic_answers, anthropic_input, anthropic_settings, protocol
from holdfast.llm.wires.anthropic_input import ASSISTANT, DOCUMENT, REFERENCE, USER
from holdfast.llm.wires.anthropic_settings import DEFERRED, MessagesHead
from holdfast.llm.wires.failures import http_error
from holdfast.llm.wires.protocol import RequestHead

name = anthropic_answers.NAME
bound = False  # signatures are valid on all platforms
error = http_error
family = anthropic_settings.family
head = anthropic_settings.head
system = anthropic_input.system
user = anthropic_input.user
assistant = anthropic_input.assistant
results = anthropic_input.results
call_id = anthropic_input.call_id
unpaired = anthropic_input.unpaired
without_parts = anthropic_input.without_parts
without_thinking = anthropic_input.without_thinking
parse = anthropic_answers.parse
stream = anthropic_answers.MessagesStream

_json = msgspec.json.Encoder().encode

_OPENING_MESSAGE = USER + b'{"type":"text","text":"(what came before is not shown)"}]}'
_CITED_DOCUMENT = b'{"type":"document","citations":{"enabled":true},"source":'
# The number of messages in which `body` looks for user messages. Mostly they alternate with
# answers.
_SEARCHED_MESSAGES = 20


def path(model: str, stream: bool) -> str:
    return "/messages"


def headers(api_key: str) -> dict[str, str]:
    key = {"x-api-key": api_key} if api_key else {}
    return {**protocol.JSON_HEADERS, "anthropic-version": "2023-06-01", **key}


def body(head: RequestHead, fragments: Sequence[bytes], stream: bool) -> bytes:
    """Return a request, built with a single copy of its bytes.

    The cache is marked at the end of the last two user messages, and written at the last one. From
    a mark the API searches only 20 blocks back for an earlier cache entry. One answer with many
    calls and results can exceed that. So the last message of the previous request keeps its mark,
    and its entry is always found.
    """
    assert isinstance(head, MessagesHead)
    parts = list(fragments)
    if head.container and head.prefix_without_container:
        head = _in_container(head)
    if head.searches:
        head = _with_found_tools(head, parts)
    if head.cites:
        parts = [
            part.replace(DOCUMENT, _CITED_DOCUMENT) if part.startswith(USER) else part
            for part in parts
        ]
    if head.cache_mark:
        marks = 2
        for place in range(len(parts) - 1, max(-1, len(parts) - 1 - _SEARCHED_MESSAGES), -1):
            if parts[place].startswith(USER):
                parts[place] = b'%b,"cache_control":%b}]}' % (parts[place][:-3], head.cache_mark)
                marks -= 1
                if not marks:
                    break
    if parts and parts[0].startswith(ASSISTANT):  # the first message must be a user's
        parts.insert(0, _OPENING_MESSAGE)
    return protocol.join_body(head, parts, stream)


def _with_found_tools(head: MessagesHead, parts: list[bytes]) -> MessagesHead:
    """Match deferred tools and references to them, since the API refuses a reference to any other
    tool. A tool that no message refers to any more, because the history was shortened, is not
    deferred. A reference to a tool that is gone becomes text."""
    used_names: set[str] = set()

    def reference_or_text(reference: re.Match[bytes]) -> bytes:
        name = reference[1].decode()
        if name in head.deferred:
            used_names.add(name)
            return reference[0]
        return _json({"type": "text", "text": f"{name} (no longer available)"})

    for place, part in enumerate(parts):
        if part.startswith(USER):
            parts[place] = REFERENCE.sub(reference_or_text, part)
    prefix = head.prefix
    for name in sorted(head.deferred - used_names):
        json_name = _json(name)
        prefix = prefix.replace(DEFERRED % json_name, b'{"name":%b,' % json_name, 1)
    return msgspec.structs.replace(head, prefix=prefix)


def _in_container(head: MessagesHead) -> MessagesHead:
    """Return the head of a request that continues in the container of the last answer."""
    settings = head.container_settings
    container: Any = {"id": head.container, **settings} if settings else head.container
    end = b'],"container":%b' % _json(container)
    return msgspec.structs.replace(
        head,
        prefix=head.prefix_without_container,
        suffix=end + b"}",
        stream_suffix=end + b',"stream":true}',
    )
