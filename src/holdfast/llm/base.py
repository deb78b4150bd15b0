"""The base of Holdfast's own models: one `completion` for all of them, which checks its arguments
and hands them on as a struct."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.llm.completion import Completion, OnDelta
from holdfast.llm.model import ToolLike
from holdfast.llm.request import Prompt
from holdfast.llm.transcript import Messages, as_transcript

if TYPE_CHECKING:
    from holdfast.events import AgentConfigured
    from holdfast.tools.context import Cancellation


class CompletionCall(Prompt, frozen=True):
    """The arguments of `completion`."""

    on_delta: OnDelta | None = None
    cancelled: Cancellation | None = None
    outer_route: tuple[str, ...] = ()  # names of the enclosing composites, outermost first


class BaseModel:
    """A model that answers a `CompletionCall`."""

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
        """Return one answer of the model to `messages`.

        Args:
            messages: A str, a list of `Message`, or a `Transcript`. A transcript costs only its
                new messages.
            tools: The tools that the model may call. Calls are returned; nothing is run.
            system: The system prompt.
            head: The conversation's `AgentConfigured` event. It replaces prompt, tools and
            parameters. on_delta: Receives the pieces of a streamed answer, on this thread.
            cancelled: Raising this flag ends the call with `Cancelled`.

        Transient failures are retried, and Retry-After is honoured. Raises the last `LLMError` if
        no attempt succeeds.
        """
        transcript = as_transcript(messages)
        return self.complete(CompletionCall(transcript, tools, system, head, on_delta, cancelled))

    def complete(self, call: CompletionCall) -> Completion:
        """Return one answer."""
        raise NotImplementedError


class FrozenModel(BaseModel):
    """A model whose attributes cannot change after construction."""

    def _set(self, **values: Any) -> None:
        """Set attributes, in the constructor."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen; make a new one to change {name!r}.")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen.")
