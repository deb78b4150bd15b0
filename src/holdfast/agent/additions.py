"""Messages that are added to a conversation before a model call, such as the text of a matching
skill.

A contributor is a function that takes a `Situation` and returns `Addition` and `Remark` objects.
The driver calls each contributor before a model call, in order and with no lock held. Additions
become messages of the sender `holdfast`, so they appear in the journal, in the view and in every
replay. An addition is skipped while the model is still shown a message with the same `about`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.content import Content, Usage
from holdfast.events import AnyEvent
from holdfast.tools import Cancellation


class Situation(msgspec.Struct, frozen=True):
    """The state of a conversation before a model call.

    Attributes:
        conversation_id: The conversation's id.
        news: Events since the last model call, its answer included. On the driver's first call,
            all events that are still needed.
        abouts: The earlier additions that the model is still shown, by `Message.about`.
        llm: The model that is called next.
        runtime: The conversation's runtime.
        cancelled: Ends long work of a contributor.
        seen: The seq up to which contributors have already seen all events. `news` contains such
            events only on the driver's first call.
    """

    conversation_id: str
    news: Sequence[AnyEvent]
    abouts: Mapping[str, int]
    llm: Any
    runtime: object | None
    cancelled: Cancellation
    seen: int = 0


class Addition(msgspec.Struct, frozen=True):
    """One message to add.

    Attributes:
        about: The subject, `{kind}:{name}`; a subject is added once as long as the model is
            shown it.
        content: The content of the message.
        usage: Tokens of the model call that produced the content, if there was one.
        cost: US dollars of that call; None if unknown.
        model: The model of that call.
    """

    about: str
    content: tuple[Content, ...]
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""


class Remark(msgspec.Struct, frozen=True):
    """A fact for the journal that the model is not shown; written as a `NoteRecorded`."""

    about: str
    text: str
    details: dict[str, Any] = {}


Contributor = Callable[[Situation], Sequence[Addition | Remark]]
