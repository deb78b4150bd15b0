"""The data of a system prompt: its parts, and the knowledge that is shown only when it applies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.content import Data

if TYPE_CHECKING:
    from holdfast.agent.additions import Contributor
    from holdfast.agent.instructions import Instructions
    from holdfast.tools import Tool
    from holdfast.tools.skills import Skills


class PromptSection(Data, frozen=True):
    """A part of a system prompt.

    Attributes:
        name: The name of the part.
        text: The text of the part.
        source: The origin of the text, such as a file.
        of: The argument of `Agent` that provided the part.
    """

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
