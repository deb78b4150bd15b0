"""The data of a prompt: the parts of the system prompt, and messages before a model call, such as a
matching skill's text.

A contributor is a function that takes a `Situation` and returns `Addition` and `Remark` objects.
The driver calls each contributor before a model call, in order and with no lock held. Additions
become messages of the sender `holdfast`, so they appear in the journal, in the view and in every
replay. An addition is skipped while the model is still shown a message with the same `about`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from holdfast.content import Content, Data, Usage
from holdfast.events import AnyEvent
from holdfast.tools import Cancellation

if TYPE_CHECKING:
    from holdfast.agent.instructions import Instructions
    from holdfast.tools import Tool
    from holdfast.tools.skills import Skills


class Situation(msgspec.Struct, frozen=True):
    """The state of a conversation before a model call."""

    conversation_id: str
    # Events since the last model call, its answer included. On the driver's first call, all events
    # that are still needed.
    news: Sequence[AnyEvent]
    abouts: Mapping[str, int]  # the seqs of additions that the model is still shown, by `about`
    llm: Any  # the model that is called next
    runtime: object | None
    cancelled: Cancellation  # ends long work of a contributor
    seen: int = 0  # contributors have seen the events up to this seq before


class Addition(msgspec.Struct, frozen=True):
    """One message to add, with the use of the model call that produced its content, if any."""

    about: str  # the subject, `{kind}:{name}`; added once as long as the model is shown it
    content: tuple[Content, ...]
    usage: Usage = Usage()
    cost: float | None = 0.0  # US dollars; None if unknown
    model: str = ""


class Remark(msgspec.Struct, frozen=True):
    """A fact for the journal that the model is not shown, with the use of a model call, if any;
    written as a `NoteRecorded`."""

    about: str
    text: str
    details: dict[str, Any] = {}
    usage: Usage = Usage()
    cost: float | None = 0.0  # US dollars; None if unknown
    model: str = ""


Contributor = Callable[[Situation], Sequence[Addition | Remark]]


class PromptSection(Data, frozen=True):
    """A part of a system prompt. `source` is the origin of the text, such as a file; `of` is the
    argument of `Agent` that provided the part."""

    name: str
    text: str
    source: str = ""
    of: Literal[
        "system_prompt", "system_prompt_extensions", "microagents", "skills", "instructions"
    ] = "system_prompt"


class Knowledge(NamedTuple):
    """The parts of an agent's prompt, in order, and the knowledge that is shown only when it
    applies."""

    parts: tuple[PromptSection, ...]
    skills: Skills | None = None
    instructions: Instructions | None = None
    tools: tuple[Tool, ...] = ()
    contributors: tuple[Contributor, ...] = ()
