"""The interface between an agent and a model: the `Model` protocol, and the tool description
that a model receives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.content import Usage
from holdfast.llm.completion import Completion, OnDelta

if TYPE_CHECKING:
    from holdfast.events import AgentConfigured
    from holdfast.llm.transcript import Messages
    from holdfast.tools.context import Cancellation


class ToolLike(Protocol):
    """The description of a tool that a model receives. `holdfast.Tool` and
    `events.ToolDefinition` both satisfy this protocol."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def input_schema(self) -> dict[str, Any]: ...


class Model(Protocol):
    """The interface that an agent needs from a model. `LLM`, `ScriptedLLM` and `FallbackLLM`
    satisfy it, and so may any class of yours."""

    @property
    def model(self) -> str:
        """The model's name, for the journal."""
        ...

    def parameters(self) -> dict[str, Any]:
        """Return the settings that shape answers, as JSON values without secrets, for the
        journal."""
        ...

    def completion(
        self,
        messages: Messages,
        tools: Sequence[ToolLike] = (),
        *,
        system: str | None = None,
        head: AgentConfigured | None = None,
        on_delta: OnDelta | None = None,
        cancelled: Cancellation | None = None,
    ) -> Completion:
        """Return one answer. With `head`, the system prompt, tools and parameters come from that
        event."""
        ...

    def cost(self, usage: Usage) -> float | None:
        """Return the cost of `usage` in USD, or None if it is unknown."""
        ...

    def close(self) -> None:
        """Close idle connections. The model stays usable."""
        ...
