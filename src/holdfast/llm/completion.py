"""What a model call gives back: `Completion`, and `Delta` while it streams in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from holdfast.content import Data, ToolCall, Usage
from holdfast.events import Assistant
from holdfast.tools.callables import refuse_async

# The very object that `events.Assistant` has as its default: msgspec leaves a Raw out of the JSON only if it is that object,
# and writes an empty Raw that is not as no bytes at all, which is no JSON.
NO_NATIVE: msgspec.Raw = next(field.default for field in msgspec.structs.fields(Assistant) if field.name == "native")


class Completion(Data, frozen=True):
    """One answer of a model.

    What it says:

    - `text` and `reasoning`: what it wrote.
    - `calls`: what it asks for. Their `name` is canonical, their `id` empty (a conversation gives its own), their `provider_id` the
      provider's.
    - `stop_reason`: why it ended: `stop`, `tool_calls`, `length`, `content_filter`, `pause` (the provider wants to be asked again to go
      on), or the provider's own word where it is none of these.
    - `native`: the provider's own message, kept only where it says more than the fields here.

    Who said it, and what it took:

    - `model`: who the provider says answered; `wire` and `host`: over which protocol, and from where; `response_id`: the provider's id.
    - `route`: which of a composite's models it was.
    - `usage`: in tokens; `cost`: in US dollars, None where the price is not known; `duration`: in seconds, retries included.
    - `request_hash`: tells two requests apart.
    - `notes`: what of earlier answers the provider could not be told.
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


class Told:
    """Passes deltas on to whoever listens, if anybody does, and knows whether there were any since the last restart."""

    __slots__ = ("_on_delta", "_some")

    def __init__(self, on_delta: OnDelta | None) -> None:
        refuse_async("completion: on_delta", on_delta)
        self._on_delta = on_delta
        self._some = False

    def __call__(self, delta: Delta) -> None:
        self._some = delta.kind != "restart"
        if self._on_delta is not None:
            self._on_delta(delta)

    def whole(self) -> None:
        """The pieces so far are an answer."""
        self._some = False

    def restart(self, _: object = None) -> None:
        """Have the pieces so far forgotten, if there were any."""
        if self._some:
            self(Delta("restart"))
