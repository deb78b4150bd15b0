"""What is added to a conversation before the model is asked: the text of a skill that fits, what a
hook has to say, what a picture shows.

Whoever adds is a contributor: a function of a `Situation` that returns `Addition`s (and `Remark`s).
The driver asks each before a model call, in their order and with no lock held, and writes what they
return as messages of the sender `holdfast`: so it is in the journal, in the view, and in every
replay. What is about the same as a message that the model is still shown is not added again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.content import Content, Usage
from holdfast.events import AnyEvent
from holdfast.tools import Cancellation


class Situation(msgspec.Struct, frozen=True):
    """Where a conversation stands before a model call.

    `news` are its events since the model was last asked, that answer included, or since the driver
    began (then all that are still needed). `abouts` has what the model is still shown of earlier
    additions, by `Message.about`. `llm` is the model that is to be asked, `runtime` the
    conversation's, `cancelled` ends what takes its time. Events up to `seen` were all there when
    contributors were asked before: `news` has such ones only where the driver has just begun.
    """

    conversation_id: str
    news: Sequence[AnyEvent]
    abouts: Mapping[str, int]
    llm: Any
    runtime: object | None
    cancelled: Cancellation
    seen: int = 0


class Addition(msgspec.Struct, frozen=True):
    """One message to add. `about` names what it is about, `{kind}:{name}`; it is added once as long
    as the model is shown it. `usage` and `cost` are those of the call of `model` that it took, if
    one did."""

    about: str
    content: tuple[Content, ...]
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""


class Remark(msgspec.Struct, frozen=True):
    """What is to be known of it and the model is not told: it becomes a `Note`."""

    about: str
    text: str
    details: dict[str, Any] = {}


Contributor = Callable[[Situation], Sequence[Addition | Remark]]
