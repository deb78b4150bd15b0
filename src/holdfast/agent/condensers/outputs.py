"""`ToolOutputCondenser`, which trims long tool outputs, and `read_output`, which reads them
whole."""

from __future__ import annotations

import msgspec

from holdfast.agent import tokens
from holdfast.agent.condenser import Condensed, check_begin
from holdfast.agent.condensers.condenser_input import CondenserInput
from holdfast.agent.view import text_of_result
from holdfast.content import Content, TextContent, ToolResult
from holdfast.errors import ToolError
from holdfast.tools import Tool, ToolAnnotations, ToolContext
from holdfast.tools.arguments import is_whole, wrong

PAGE_CHARS = 10_000  # characters of an output that `read_output` returns at once


class ToolOutputCondenser(msgspec.Struct, frozen=True):
    """A condenser that trims long tool outputs, old and large ones first.

    Outputs that the model has not answered yet are trimmed only if the request is still too long
    without that. The journal keeps whole outputs; the agent's tool `read_output` reads them.

    Args:
        keep: The number of characters that stay of an output.
        over: Outputs of more characters are trimmed.
        at, to: See `WindowCondenser`.
    """

    keep: int = 400
    over: int = 1500
    at: int | float | None = 0.8
    to: float = 0.5

    def __post_init__(self) -> None:
        check_begin("ToolOutputCondenser", self.at, self.to)
        if not is_whole(self.keep, 0):
            raise wrong("ToolOutputCondenser: keep", "a number of characters from 0", self.keep)
        if not is_whole(self.over, self.keep + 300):
            raise wrong("ToolOutputCondenser: over", "at least keep + 300 characters", self.over)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools that the agent gets with this condenser."""
        return (read_output,)

    def shorten(self, work: CondenserInput) -> Condensed | None:
        """Return the results to trim, or None. See `Condenser`."""
        last = max((piece.seq for piece in work.pieces if piece.is_answer), default=0)
        candidates: list[tuple[bool, int, str, int]] = []
        small = tokens.of_trimmed(self.keep)
        for age, piece in enumerate(reversed(work.pieces), 1):
            for (call, result), size in zip(piece.results, piece.sizes, strict=True):
                # Compare tokens, because a picture is large too; characters are counted only if
                # necessary.
                if (
                    size * 4 > self.over
                    and size > small
                    and (len(text_of_result(result)) > self.over or size > self.over)
                ):
                    candidates.append(
                        (piece.seq == last, -age * (size - small), call.id, size - small)
                    )
        candidates.sort()
        trimmed: dict[str, int] = {}
        total = work.tokens
        for open, _, call_id, saved in candidates:
            if total <= (work.limit if open else work.target):
                break
            trimmed[call_id] = self.keep
            total -= saved
        return Condensed(trimmed=trimmed) if trimmed else None


def _read(call_id: str, offset: int = 0, *, context: ToolContext) -> ToolResult:
    """Read what an earlier tool call returned, where a part of it was left out.

    Args:
        call_id: the call's id, as the note in its place gives it, such as "12.0"
        offset: the character to begin at; 10,000 are returned
    """
    whole = context.output(call_id)
    text = text_of_result(whole)
    if offset < 0 or (offset and offset >= len(text)):
        form = f"a number from 0 to {max(0, len(text) - 1)}"
        raise ToolError(
            f"offset takes {form}: the output has {len(text):,} characters.", retryable=False
        )
    page = text[offset : offset + PAGE_CHARS]
    end = offset + len(page)
    content: list[Content] = [TextContent(page or "(no text)")]
    if end < len(text):
        more = f"[{len(text) - end:,} characters more; go on with offset={end}]"
        content.append(TextContent(more))
    if not offset:
        content += [block for block in whole.content if not isinstance(block, TextContent)]
    return ToolResult(tuple(content))


_READS = ToolAnnotations(read_only=True, idempotent=True, open_world=False)
read_output = Tool.from_function(_read, name="read_output", annotations=_READS)
"""The tool that reads a call's whole output. An agent gets it with a `ToolOutputCondenser`."""
