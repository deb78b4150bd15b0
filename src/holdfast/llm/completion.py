"""The result of a model call (`Completion`), and the pieces of one that is still streaming
(`Delta`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from holdfast.answer import AnswerDetails, HasDetails
from holdfast.content import Data, ToolCall, Usage
from holdfast.error_text import describe_error
from holdfast.errors import LLMError
from holdfast.events import AssistantReplied
from holdfast.tools.arguments import refuse_async

_REASON_CHARACTERS = 300  # of the failure in a `retry` delta

# This must be the identical object that `events.AssistantReplied` has as its default. msgspec omits
# only that object. Any other empty Raw is written as no bytes, which is invalid JSON.
NO_NATIVE: msgspec.Raw = next(
    field.default for field in msgspec.structs.fields(AssistantReplied) if field.name == "native"
)


class Completion(Data, HasDetails, frozen=True):
    """One answer of a model.

    Content:

    - `text` and `reasoning`: the text that the model wrote.
    - `calls`: the tool calls that it requests. Their `name` is canonical, their `id` is empty (a
      conversation assigns its own), and their `provider_id` is the provider's.
    - `stop_reason`: the reason for the end: `stop`, `tool_calls`, `length`, `content_filter`,
      `pause` (a further request continues), or the provider's own word for another reason.
    - `native`: the provider's own message, kept only if it holds more than these fields.
    - `details`: citations, refusals, generated pictures and other parts that only some answers
      have. Each is an attribute of the completion, too: `completion.citations`.

    Origin and cost:

    - `model`: the model that answered, according to the provider.
    - `wire` and `host`: the protocol and the server.
    - `response_id`: the provider's id of the answer.
    - `route`: the name of the composite's member that answered.
    - `usage`: in tokens.
    - `cost`: in USD: the price that the provider states, else the one by list prices; None if
      both are unknown. `provider_cost` and `list_cost` are the two.
    - `duration`: in seconds, retries included.
    - `request_hash`: identifies the request's content.
    - `notes`: the parts of earlier answers that could not be sent to this provider.
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
    details: AnswerDetails | None = None


class Delta(msgspec.Struct, frozen=True):
    """A piece of an answer that is still streaming.

    `text` and `reasoning` deltas carry text to append. A `tool` delta carries a piece of the
    arguments of call number `index`; the first one of a call also has the tool's `name`. A
    `restart` delta says that the answer broke off and is requested again: discard all earlier
    pieces. A `retry` delta says that a request failed for a `reason` and is repeated in `seconds`.
    Its `index` counts the retries from 1, of at most `most`.
    """

    kind: Literal["text", "reasoning", "tool", "restart", "retry"]
    text: str = ""
    index: int = 0
    name: str = ""
    reason: str = ""
    seconds: float = 0.0
    most: int = 0


OnDelta = Callable[[Delta], object]


class DeltaListener:
    """A forwarder of deltas to an optional listener, with a record of whether any delta came since
    the last restart."""

    __slots__ = ("_on_delta", "_sent_any")

    def __init__(self, on_delta: OnDelta | None) -> None:
        if on_delta is not None:
            refuse_async("completion: on_delta", on_delta)
        self._on_delta = on_delta
        self._sent_any = False

    def __call__(self, delta: Delta) -> None:
        if delta.kind != "retry":
            self._sent_any = delta.kind != "restart"
        if self._on_delta is not None:
            self._on_delta(delta)

    def retry(self, most: int, error: LLMError, number: int, seconds: float) -> None:
        """Tell the listener that a request failed and is repeated in `seconds`."""
        reason = describe_error(error)[:_REASON_CHARACTERS]
        wait = round(seconds, 1)
        self(Delta("retry", index=number, reason=reason, seconds=wait, most=most))

    def whole(self) -> None:
        """Accept the pieces so far as a complete answer."""
        self._sent_any = False

    def restart(self, _: object = None) -> None:
        """Tell the listener to discard the pieces so far, if there were any."""
        if self._sent_any:
            self(Delta("restart"))
