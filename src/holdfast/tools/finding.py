"""`find_tools`: how a model brings in tools of services that are not asked until somebody needs
them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from holdfast.tools.tool import Tool, ToolAnnotations

if TYPE_CHECKING:
    from holdfast.tools.manager import ToolManager

_WORD = re.compile(r"[a-z0-9]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def find_tools(manager: ToolManager) -> Tool:
    """The builtin tool over a manager's lazy services."""

    def find_tools(query: str, limit: int = 10) -> str:
        """Find more tools. Only a part of the tools there are is shown to you; search the rest by
        what they do. What is found can be called from your next answer on.

        Args:
            query: A few words for what you want to do, or a part of a tool's name.
            limit: How many tools to bring in at most.
        """
        found = manager.search(query, max(1, min(limit, 50)))
        lines = [
            f"- {tool.name}: {tool.description.strip().partition(chr(10))[0][:200]}"
            for tool in found
        ]
        lines += [
            f"- {name}: held back until somebody approves it; it cannot be called."
            for name in _fitting(query, manager.held)
        ]
        lines += [f"(not searched: {error})" for error in manager.errors.values()]
        return "\n".join(lines) if lines else f"No tool fits {query!r}. Try other words."

    reads = ToolAnnotations(read_only=True, destructive=False, idempotent=True)
    return Tool.from_function(find_tools, annotations=reads, category="builtin")


def best(words: str, tools: Sequence[Tool], limit: int) -> list[Tool]:
    """The tools that fit best: each word counts where it stands, in a name more than in a
    description, a whole word more than a part of one."""
    wanted = _words(words)
    scored: list[tuple[float, int, Tool]] = []
    for place, tool in enumerate(tools):
        name, told = _words(tool.name), _words(tool.description)
        score = 0.0
        for word in wanted:
            score += 4 * (word in name) + 2 * (word in told)
            score += 1.5 * any(
                word in other or (len(other) > 3 and other in word) for other in name - {word}
            )
            score += 0.5 * any(word in other for other in told - {word})
        if words.strip() and words.strip().lower() in tool.name.lower():
            score += 8
        if score:
            scored.append((-score, place, tool))
    return [tool for _, _, tool in sorted(scored, key=lambda found: found[:2])[:limit]]


def _fitting(words: str, names: Iterable[str]) -> list[str]:
    """Of names that are told without their descriptions, which nobody has approved, those that fit;
    at most ten."""
    wanted = _words(words)
    return [
        name for name in names if wanted & _words(name) or words.strip().lower() in name.lower()
    ][:10]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(_CAMEL.sub(" ", text).lower()))
