"""The bases of Holdfast's own models: one `completion` for all of them, and one request with its
retries for models of a provider."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import msgspec

from holdfast.content import Usage
from holdfast.errors import ConfigurationError, LLMError
from holdfast.llm import prices
from holdfast.llm.completion import Completion, DeltaListener, OnDelta
from holdfast.llm.model import ToolLike
from holdfast.llm.request import ModelRequest, Prompt, RequestTarget, make_request
from holdfast.llm.retry import retrying
from holdfast.llm.transcript import THINKING_REFUSED, Messages, Transcript, as_transcript

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
            head: The conversation's `AgentConfigured` event, in place of prompt, tools and
                parameters.
            on_delta: Receives the pieces of a streamed answer, on this thread.
            cancelled: Raising this flag ends the call with `Cancelled`.

        Transient failures are retried, and Retry-After is honoured. Raises the last `LLMError` if
        no attempt succeeds.
        """
        if not isinstance(messages, Transcript):
            messages = as_transcript(messages)
        return self.complete(CompletionCall(messages, tools, system, head, on_delta, cancelled))

    def complete(self, call: CompletionCall) -> Completion:
        """Return one answer."""
        raise NotImplementedError

    def count_tokens(
        self,
        messages: Messages,
        tools: Sequence[ToolLike] = (),
        *,
        system: str | None = None,
        head: AgentConfigured | None = None,
    ) -> int:
        """Return the input tokens of the request that `completion` would send with these
        arguments, as the provider counts them.

        Sends one request to the provider, which costs nothing at Anthropic, Google and OpenAI.
        Raises `ConfigurationError` if the API has no such request, as Chat Completions does not,
        and otherwise the errors of `completion`.
        """
        return self.count(CompletionCall(as_transcript(messages), tools, system, head))

    def count(self, call: CompletionCall) -> int:
        """Return the input tokens of a call."""
        raise ConfigurationError(f"count_tokens: {type(self).__name__} cannot count tokens.")


class FrozenModel(BaseModel):
    """A model whose attributes cannot change after construction."""

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen; make a new one to change {name!r}.")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen.")


_CONTAINER_GONE = (
    "The container %s of an earlier answer was refused; its files are not in the new one."
)
_SOUND_GONE = "The sound of an earlier answer was refused; its transcript was sent."


def _refuses_thinking(error: LLMError) -> bool:
    """Return True if signed thinking in a request was refused. Newer Claude models bind it to the
    history before it, which a condensation or another system prompt changes: "Invalid `signature`
    in `thinking` block. The block is bound to a different conversation."
    """
    text = str(error).lower()
    return error.status == 400 and "thinking" in text and "signature" in text


def _may_miss_something(error: LLMError) -> bool:
    """Return True if a request may have failed because its container or a sound is gone. Anthropic
    says so in a 400 or 404, but has also answered with a bare 500. OpenAI: "Assistant audio
    audio_... not found"."""
    text = f"{error.code} {error}".lower()
    refused = error.status in (400, 404) and ("container" in text or "audio" in text)
    return error.status == 500 or refused


class ProviderModel(FrozenModel):
    """A model of a provider, asked with retries. The price of an answer is the one that the
    provider states, else the one by the table of list prices."""

    model: str
    stream: bool
    _unpicklable: ClassVar[str]  # the message for an attempt to pickle the keys
    _price_key: tuple[str, str]  # the model's name at the provider, and the base URL

    def _answer(
        self,
        call: CompletionCall,
        target: RequestTarget,
        attempt: Callable[[ModelRequest, DeltaListener], Completion],
        host: str,
        max_retries: int,
        deadline: float | None = None,
    ) -> Completion:
        """Return the answer of the first attempt that succeeds. If the container or the sound of
        an earlier answer is gone, or its thinking is refused, the request is repeated without it.
        """
        started = time.monotonic()
        request = make_request(target, call, self.stream)
        deltas = DeltaListener(call.on_delta)
        notes: tuple[str, ...] = ()
        answer, failed = None, None
        try:
            answer = attempt(request, deltas)
        except LLMError as error:
            failed = error
        if answer is None:  # nearly every call ends without what retries need
            ask = partial(
                retrying,
                max_retries=max_retries,
                deadline=deadline,
                cancelled=call.cancelled,
                on_wait=partial(deltas.retry, max_retries),
                before_retry=deltas.restart,
            )
            try:
                answer = ask(partial(attempt, request, deltas), failed=failed)
            except LLMError as error:
                fresh, note = self._without_refused(error, request, target, call)
                if fresh is None:
                    raise
                deltas.restart()
                answer = ask(partial(attempt, fresh, deltas))
                notes = (note,)
        details = answer.details
        if details is None:
            cost = self.cost(answer.usage)
        else:
            cost = self._list_cost(answer)
            if details.provider_cost is not None:
                details = msgspec.structs.replace(details, list_cost=cost)
                cost = details.provider_cost
        return request.with_canonical_names(
            answer,
            duration=time.monotonic() - started,
            cost=cost,
            details=details,
            notes=(*call.transcript.notes(request.frame.recipient), *notes),
            host=host,
        )

    def _without_refused(
        self, error: LLMError, request: ModelRequest, target: RequestTarget, call: CompletionCall
    ) -> tuple[ModelRequest | None, str]:
        """Return a request without the refused part of an earlier answer, and a note on it. Return
        None if the provider refused no such part."""
        transcript = call.transcript
        if _refuses_thinking(error) and transcript.leave_out_thinking(request.frame.recipient):
            return make_request(target, call, self.stream), THINKING_REFUSED
        fresh = make_request(target, call, self.stream, resume=False)
        note = _CONTAINER_GONE % request.container if request.container else _SOUND_GONE
        same = fresh.body == request.body
        return (None if same or not _may_miss_something(error) else fresh), note

    def _list_cost(self, answer: Completion) -> float | None:
        """Return the cost of an answer by list prices. Each model run has its own: its size selects
        the price of long requests. A run of an unknown model is estimated with this one's prices.
        """
        costs: list[float | None] = []
        for run in answer.runs:
            other = prices.cost(run.usage, run.model, self._price_key[1]) if run.model else None
            costs.append(self.cost(run.usage) if other is None else other)
        if not costs:
            return self.cost(answer.usage)
        return None if None in costs else sum(cast("list[float]", costs))

    def cost(self, usage: Usage) -> float | None:
        """Return the cost of `usage` in USD by a table of list prices, or None if the table
        lacks the model. Does not use the network."""
        return prices.cost(usage, *self._price_key)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{self._unpicklable}. Send its arguments and create it again.")
