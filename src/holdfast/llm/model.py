"""The seam between an agent and any model: the `Model` protocol, and what it is told of a tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.content import Usage
from holdfast.llm.completion import Completion, OnDelta

if TYPE_CHECKING:
    from holdfast.events import Agent
    from holdfast.llm.transcript import Messages
    from holdfast.tools.context import Cancellation


class ToolLike(Protocol):
    """What a model is told of a tool. `holdfast.Tool` and `events.ToolDefinition` both are this."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def input_schema(self) -> dict[str, Any]: ...


class Model(Protocol):
    """What an agent needs of a model: `LLM`, `ScriptedLLM` and `FallbackLLM` are this, and so may
    be anything of yours."""

    @property
    def model(self) -> str:
        """The model's name, for the journal."""
        ...

    def parameters(self) -> dict[str, Any]:
        """What else shapes its answers, as JSON values, without secrets; for the journal."""
        ...

    def completion(
        self,
        messages: Messages,
        tools: Sequence[ToolLike] = (),
        *,
        system: str | None = None,
        head: Agent | None = None,
        on_delta: OnDelta | None = None,
        cancelled: Cancellation | None = None,
    ) -> Completion:
        """One answer. With `head`, system prompt, tools and parameters are those of that event."""
        ...

    def cost(self, usage: Usage) -> float | None:
        """What `usage` costs in USD; None when not known."""
        ...

    def close(self) -> None:
        """Let go of idle connections. The model stays usable."""
        ...
