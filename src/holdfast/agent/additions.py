"""What is added to a conversation before the model is asked: the text of a skill that fits, what a hook has to say, what a picture shows.

Whoever adds is a contributor: a function of a `Situation` that returns `Addition`s. The driver asks each before a model call, in their
order and with no lock held, and writes what they return as messages of the sender `holdfast`: so it is in the journal, in the view, and
in every replay. What is about the same as a message that the model is still shown is not added again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.content import Content
from holdfast.events import AnyEvent
from holdfast.tools import Cancellation


class Situation(msgspec.Struct, frozen=True):
    """Where a conversation stands before a model call.

    `news` are its events since the model was last asked, that answer included, or since the driver began (then all that are still needed). `abouts` has
    what the model is still shown of earlier additions, by `Message.about`. `llm` is the model that is to be asked, `runtime` the
    conversation's, `cancelled` ends what takes its time.
    """

    conversation_id: str
    news: Sequence[AnyEvent]
    abouts: Mapping[str, int]
    llm: Any
    runtime: object | None
    cancelled: Cancellation


class Addition(msgspec.Struct, frozen=True):
    """One message to add. `about` names what it is about, `{kind}:{name}`; it is added once as long as the model is shown it."""

    about: str
    content: tuple[Content, ...]


Contributor = Callable[[Situation], Sequence[Addition]]
