"""All prompt text: the default system prompt, and how it is put together with extensions and microagents."""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT = """\
You are an agent. You work on the user's task with the tools you are given, until it is done.

- Look before you act: read what is there, then change it. Do not guess what a tool can tell you.
- Call tools to do things; do not describe what you would do. Independent calls can go in one answer.
- When a call fails, read its error: it says what to do instead. Do not repeat a call that failed unchanged.
- Check your work with the means at hand, such as running the tests, before you say that it is done.
- When it is done, answer without a tool call: say in a few sentences what you did and what is left.\
"""

EMPTY_ANSWER = (
    "Your last answer was empty: it had no text and called no tool. Call a tool to go on, or, if the task is done, say what you did."
)
CUT_ANSWER = "Your last answer was cut off at the output limit. Go on in smaller steps: a shorter answer, or a call with less in it."


def compose(system_prompt: str | None, extensions: Sequence[str], microagents: Sequence[tuple[str, str]]) -> str:
    """The whole system prompt: base (None: the default), extensions, then each microagent's text under its name."""
    parts = [DEFAULT if system_prompt is None else system_prompt, *extensions]
    parts += [f"# {name}\n\n{text.strip()}" for name, text in microagents]
    return "\n\n".join(part.strip() for part in parts if part.strip())
