"""What a model call gives back: `Completion`, and `Delta` while it streams in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from holdfast.content import Data, ToolCall, Usage
from holdfast.events import Assistant

# The very object that `events.Assistant` has as its default: msgspec leaves a Raw out of the JSON only if it is that object,
# and writes an empty Raw that is not as no bytes at all, which is no JSON.
NO_NATIVE: msgspec.Raw = next(field.default for field in msgspec.structs.fields(Assistant) if field.name == "native")


class Completion(Data, frozen=True):
    """One answer of a model.

    `text` and `reasoning` are what it wrote, `calls` what it asks for: their `name` is canonical, their `id` empty (a conversation
    gives its own), their `provider_id` the provider's. `stop_reason` is `stop`, `tool_calls`, `length`, `content_filter`, `pause`
    (the provider wants to be asked again to go on), or the provider's own word where it is none of these. `native` is the provider's own message, kept only where it says more than
    the fields here. `model` is what the provider says answered. `duration` is in seconds, retries included. `request_hash` tells two requests apart.
    `host` is where it came from. `cost` is in US dollars, None where the price is not known.
    `route` names which of a composite's models answered, `notes` say what of earlier answers its provider could not be told.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    stop_reason: str = "stop"
    model: str = ""
    wire: str = ""
    native: msgspec.Raw = NO_NATIVE
    response_id: str = ""
    duration: float = 0.0
    request_hash: str = ""
    route: str = ""
    notes: tuple[str, ...] = ()
    cost: float | None = None
    host: str = ""


class Delta(msgspec.Struct, frozen=True):
    """A piece of an answer while it streams in.

    `text` and `reasoning` carry text to append. `tool` carries a piece of the arguments of call number `index`; its first has
    the tool's `name`. `restart` says that the answer broke off and is being asked for again: forget the pieces so far.
    """

    kind: Literal["text", "reasoning", "tool", "restart"]
    text: str = ""
    index: int = 0
    name: str = ""


OnDelta = Callable[[Delta], object]
