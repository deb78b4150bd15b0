"""Prompt text: the default system prompt, and the ordered parts of a system prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.agent.additions import Knowledge, PromptSection

DEFAULT = """\
You are an agent. You work on the user's task with the tools you are given, until it is done.

- Look before you act: read what is there, then change it. Do not guess what a tool can tell you.
- Call tools to do things; do not describe what you would do. Independent calls can go in one \
answer.
- When a call fails, read its error: it says what to do instead. Do not repeat a call that failed \
unchanged.
- Check your work with the means at hand, such as running the tests, before you say that it is done.
- When it is done, answer without a tool call: say in a few sentences what you did and what is \
left.\
"""

EMPTY_ANSWER = (
    "Your last answer was empty: it had no text and called no tool. Call a tool to go on, or, if"
    " the task is done, say what you did."
)
CUT_ANSWER = (
    "Your last answer was cut off at the output limit. Go on in smaller steps: a shorter answer, or"
    " a call with less in it."
)

_BETWEEN = "\n\n"
SECRETS = "secrets"  # the part of a prompt that names the conversation's secrets


def knowledge(
    system_prompt: str | None,
    extensions: Sequence[str],
    microagents: Any,
    skills: Any,
    instructions: Any,
) -> Knowledge:
    """Assemble a system prompt from its parts. The order is: base (None for the default),
    extensions, microagents as texts, always shown skills, instructions, and the list of the other
    skills. Empty parts are left out. Raises `ConfigurationError`."""
    base, source = (DEFAULT, "the default") if system_prompt is None else (system_prompt, "")
    sections = [PromptSection("system_prompt", base, source)]
    sections += [
        PromptSection(f"system_prompt_extensions[{n}]", text, of="system_prompt_extensions")
        for n, text in enumerate(extensions)
    ]
    result = Knowledge(())
    if microagents or skills is not None or instructions is not None:
        from holdfast.agent.skills import read_knowledge  # few agents have skills

        notes, result = read_knowledge(microagents, skills, instructions)
        for n, text in enumerate(notes):
            text = with_heading(f"Note {n + 1}", text)
            sections.append(PromptSection(f"microagents[{n}]", text, of="microagents"))
        for one, text in () if result.skills is None else result.skills.always():
            text = with_heading(one.name, text)
            sections.append(PromptSection(f"skill {one.name}", text, one.path, "skills"))
        for path, text in () if result.instructions is None else result.instructions.in_prompt():
            sections.append(PromptSection(path, text, path, "instructions"))
        if result.skills is not None:
            sections.append(PromptSection("skills", result.skills.prompt(), of="skills"))
    stripped = [msgspec.structs.replace(part, text=part.text.strip()) for part in sections]
    return result._replace(parts=tuple([part for part in stripped if part.text]))


def with_heading(name: str, text: str) -> str:
    """Return a text with a heading."""
    return f"# {name}\n\n{text.strip()}"


def without_heading(text: str) -> str:
    """Return a text without its heading; the inverse of `with_heading`. The text must have a
    heading."""
    return text.partition("\n\n")[2]


def with_lines(base: str | None, extensions: Sequence[str], lines: str) -> Sequence[str]:
    """Append lines to the extensions of a system prompt. A prompt that already has the lines, such
    as one from a serial form, stays unchanged."""
    has_lines = any(lines in text for text in (base or "", *extensions))
    return extensions if has_lines else (*extensions, lines)


def join_parts(parts: Iterable[PromptSection]) -> str:
    """Return the system prompt that consists of these parts."""
    return _BETWEEN.join([part.text for part in parts])


def part_lengths(parts: Sequence[PromptSection]) -> tuple[ev.PromptPart, ...]:
    """Return the names and lengths of the parts for an `AgentConfigured` event; empty if there is
    only the system prompt itself."""
    if len(parts) <= 1 and not any(part.name == SECRETS for part in parts):
        return ()
    return tuple([ev.PromptPart(part.name, len(part.text)) for part in parts])


def without_secrets(head: ev.AgentConfigured) -> str:
    """Return a journaled system prompt without the part about the conversation's secrets."""
    return _BETWEEN.join([text for name, text in split_parts(head) if name != SECRETS])


def split_parts(head: ev.AgentConfigured) -> list[tuple[str, str]]:
    """Return the parts of a journaled system prompt as (name, text) pairs; the inverse of
    `part_lengths`."""
    if not head.prompt_parts:
        return [("system_prompt", head.system_prompt)]
    parts: list[tuple[str, str]] = []
    at = 0
    for part in head.prompt_parts:
        parts.append((part.name, head.system_prompt[at : at + part.characters]))
        at += part.characters + len(_BETWEEN)
    return parts
