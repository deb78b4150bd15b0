"""The builtin tool `find_tools`, by which a model adds tools of lazy services."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.content import TextContent, ToolResult
from holdfast.tools.names import FOUND_TOOLS
from holdfast.tools.tool import Tool, ToolAnnotations

if TYPE_CHECKING:
    from holdfast.tools.manager import ToolManager

_WORD = re.compile(r"[a-z0-9]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def find_tools(manager: ToolManager) -> Tool:
    """Return the builtin tool that searches a manager's lazy services."""

    def find_tools(query: str, limit: int = 10) -> ToolResult:
        """Find more tools. You see only some of the available tools; search the others by their
        purpose. You can call the tools that were found from your next answer on.

        Args:
            query: A few words for what you want to do, or a part of a tool's name.
            limit: How many tools to add at most.
        """
        tools = manager.search(query, max(1, min(limit, 50)))
        lines = [
            f"- {tool.name}: {tool.description.strip().partition(chr(10))[0][:200]}"
            for tool in tools
        ]
        # The descriptions of unapproved tools are not searched.
        query_words, part = _words(query), query.strip().lower()
        held_names = [
            name for name in manager.held if query_words & _words(name) or part in name.lower()
        ]
        notes = [
            f"- {name}: held back until somebody approves it; it cannot be called."
            for name in held_names[:10]
        ]
        notes += [f"(not searched: {error})" for error in manager.errors.values()]
        if not lines and not notes:
            return ToolResult((TextContent(f"No tool matches {query!r}. Try other words."),))
        # The first block describes the tools that were found: a definition may replace it.
        content = [TextContent("\n".join(part)) for part in (lines, notes) if part]
        names = {FOUND_TOOLS: [tool.name for tool in tools]} if tools else {}
        return ToolResult(tuple(content), meta=names)

    reads = ToolAnnotations(read_only=True, destructive=False, idempotent=True)
    return Tool.from_function(find_tools, annotations=reads, category="builtin")


def best_matches(words: str, tools: Sequence[Tool], limit: int) -> list[Tool]:
    """Return the best matches for `words`, the best first. A word counts more in a name than in a
    description, and more as a whole word than as a part of one."""
    query_words = _words(words)
    scored: list[tuple[float, int, Tool]] = []
    for place, tool in enumerate(tools):
        name, description = _words(tool.name), _words(tool.description)
        score = 0.0
        for word in query_words:
            score += 4 * (word in name) + 2 * (word in description)
            score += 1.5 * any(
                word in other or (len(other) > 3 and other in word) for other in name - {word}
            )
            score += 0.5 * any(word in other for other in description - {word})
        if words.strip() and words.strip().lower() in tool.name.lower():
            score += 8
        if score:
            scored.append((-score, place, tool))
    return [tool for _, _, tool in sorted(scored, key=lambda entry: entry[:2])[:limit]]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(_CAMEL.sub(" ", text).lower()))
