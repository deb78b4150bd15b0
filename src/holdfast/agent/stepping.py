"""The model request that follows from a conversation's state, for `Agent.step(state)`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from holdfast import events as ev
from holdfast.agent.view import View
from holdfast.errors import ConfigurationError
from holdfast.llm.transcript import Transcript
from holdfast.llm.vision import with_vision

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent


class HasEvents(Protocol):
    """An object with a journal's events in order, such as a `ConversationState`."""

    @property
    def events(self) -> Sequence[ev.AnyEvent]:
        """The events."""
        ...


def request_of(agent: Agent, state: HasEvents) -> tuple[Transcript, ev.AgentConfigured]:
    """Return the transcript that the state shows a model, and the agent's prompt, tools and
    parameters.

    Raises `ConfigurationError` if there is no message, or if a call has no result.
    """
    view = View.of(state.events)
    if view.open_calls:
        raise ConfigurationError(
            f"Agent.step: the calls {', '.join(view.open_calls)} have no result yet; run them"
            " first."
        )
    transcript = view.ready()
    if not len(transcript):
        raise ConfigurationError(
            "Agent.step: the state has no message that the agent could answer."
        )
    last = next(
        (event for event in reversed(state.events) if type(event) is ev.AgentConfigured), None
    )
    parameters = agent.llm.parameters()
    head = ev.AgentConfigured(
        seq=state.events[-1].seq + 1,
        id="",
        timestamp=datetime.now(UTC),
        system_prompt=agent.system_prompt,
        tools=agent.definitions(last),
        model=agent.llm.model,
        parameters=with_vision(agent.llm, parameters) if transcript.pictures else parameters,
    )
    return transcript, head
