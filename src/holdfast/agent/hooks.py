"""The hooks of an agent: the subjects of all events but tool calls, and the hooks of each event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.additions import Addition, Situation
from holdfast.content import Content, TextContent, ToolCall, text_of
from holdfast.error_text import describe_error
from holdfast.errors import HookDenied, ToolError
from holdfast.llm.client import LLM
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.secrets import argument_secrets, redact, worth_hiding
from holdfast.tools import ToolContext
from holdfast.tools.hook_answers import NOTHING, HookAnswer, HookFailed
from holdfast.tools.hooks import BoundHook, Hook, Hooks, ask, bind, check
from holdfast.tools.results import clean


class Incoming(msgspec.Struct, frozen=True):
    """An incoming message. `sender` is `user`, or the id of the sending conversation."""

    content: tuple[Content, ...]
    sender: str = "user"

    @property
    def text(self) -> str:
        """The text of all blocks."""
        return text_of(self.content)


class Stopping(msgspec.Struct, frozen=True):
    """A run that is about to be FINISHED. `text` is the last answer's text; `denied` is how often
    in a row hooks denied the end."""

    text: str
    denied: int = 0
    _events: Callable[[], Sequence[ev.AnyEvent]] = tuple

    @property
    def events(self) -> Sequence[ev.AnyEvent]:
        """All events of the conversation so far, in order."""
        return self._events()


def describe_stop(stopping: Stopping) -> dict[str, Any]:
    """Return a `Stopping` in the form that a hook command receives."""
    events = [msgspec.Raw(ev.encode(event)) for event in stopping.events]
    return {"text": stopping.text, "denied": stopping.denied, "events": events}


class Condensing(msgspec.Struct, frozen=True):
    """A condensation that is about to begin. `tokens` are those of the request to shorten; 0 if not
    counted."""

    reason: str
    instructions: str = ""
    tokens: int = 0


class Starting(msgspec.Struct, frozen=True):
    """A conversation that this process is about to drive. `reopened` is true if its model was
    called before."""

    reopened: bool


class Ending(msgspec.Struct, frozen=True):
    """A conversation that is being closed, with its status."""

    status: str


class AgentHooks:
    """The hooks of an agent by event, in the order in which they are called. `tools` are the
    agent's hooks of tool calls around those of its manager; None without hooks of the agent.
    `models` are the models that hooks ask besides the agent's."""

    def __init__(self, hooks: Sequence[Hook], inner: Sequence[Hook], llm: Any) -> None:
        check(hooks, "Agent: ")
        self.models = tuple([hook.llm for hook in hooks if hook.llm is not None])
        self._hidden = _secrets(hooks, llm)
        own = [hook for hook in hooks if hook.on == "tool"]
        self.tools = Hooks([*own, *inner], self.blot) if own else None
        self.before_model = bind(hooks, "model", "before")
        self.after_model = bind(hooks, "model", "after")
        self.message = bind(hooks, "message", "before")
        self.stop = bind(hooks, "stop", "before")
        self.condensation = bind(hooks, "condensation", "before")
        self.start = bind(hooks, "start", "before")
        self.end = bind(hooks, "end", "before")

    def blot(self, text: str) -> str:
        """Return a text without the secrets of the agent."""
        return redact(text, self._hidden)

    def ask(
        self,
        bound: BoundHook,
        context: ToolContext,
        describe: Callable[[Any], dict[str, Any]],
        fits: Callable[[Any], bool],
        subject: object,
        what: str,
    ) -> HookAnswer:
        """Return a hook's answer with secrets redacted. Raises `HookDenied`, whose message begins
        with `what`, if the hook fails."""
        try:
            answer = ask(bound, context, describe, fits, subject)
        except (HookFailed, ToolError) as error:
            why = error if isinstance(error, HookFailed) else f"failed: {describe_error(error)}"
            text = clean(self.blot(f"{what}: its hook {bound.name} {why}"))
            raise HookDenied(text, bound.name, bound.on, True) from error
        if answer is not NOTHING and (answer.deny or answer.add):
            answer = HookAnswer(
                answer.deny and self.blot(answer.deny), self.blot(answer.add), answer.change
            )
        return answer

    @staticmethod
    def denied(bound: BoundHook, answer: HookAnswer, what: str) -> HookDenied:
        """Return the error for a hook that denied."""
        why = f": {answer.deny}" if answer.deny else ""
        return HookDenied(f"{what}: its hook {bound.name} denied it{why}", bound.name, bound.on)

    def additions(
        self, situation: Situation, context: ToolContext, answered: int
    ) -> list[Addition]:
        """Return the messages that hooks add before a model call. Raises `HookDenied`. `answered`
        is the seq of the model's last answer."""
        messages: list[Addition] = []
        what = "The model was not asked"
        for bound in self.before_model:
            answer = self.ask(bound, context, describe_model_call, lambda _: False, situation, what)
            if answer.deny is not None:
                raise self.denied(bound, answer, what)
            if answer.add and not was_added_since(bound.name, situation, answered):
                messages.append(addition(bound.name, answer.add))
        return messages


def addition(name: str, text: str) -> Addition:
    """Return the addition of a hook; its `about` names the hook and the hash of the text."""
    from hashlib import sha256  # rarely needed, and takes 3 ms to import

    return Addition(f"hook:{name}#{sha256(text.encode()).hexdigest()[:8]}", (TextContent(text),))


def was_added_since(name: str, situation: Situation, answered: int) -> bool:
    """Return True if this hook has added a message since the last answer. In that case the process
    crashed between that message and the next answer."""
    mine = f"hook:{name}#"
    return any(seq > answered for about, seq in situation.abouts.items() if about.startswith(mine))


def describe_model_call(situation: Situation) -> dict[str, Any]:
    """Return a model call in the form that a hook command receives."""
    news = situation.news
    answers = (n for n in reversed(range(len(news))) if type(news[n]) is ev.AssistantReplied)
    since = [msgspec.Raw(ev.encode(event)) for event in news[next(answers, 0) :]]
    return {"model": situation.llm.model, "news": since}


def describe_answer(answer: Completion) -> dict[str, Any]:
    """Return a model's answer in the form that a hook command receives."""
    calls = [{"name": call.name, "arguments": call.arguments} for call in answer.calls]
    return {
        "answer": {
            "text": answer.text,
            "reasoning": answer.reasoning,
            "calls": calls,
            "stop_reason": answer.stop_reason,
            "model": answer.model,
        }
    }


def changed_answer(answer: Completion, change: Any) -> tuple[Completion, list[str]]:
    """Return the answer with a hook's changes, and the names of the changed fields. The provider's
    native data of the original answer are dropped. Raises `HookFailed`."""
    # A hook cannot change the token counts and the request.
    changes: dict[str, Any] = {}
    if isinstance(change, Completion):
        if not all(isinstance(call, ToolCall) for call in cast("Sequence[Any]", change.calls)):
            raise HookFailed("returned a Completion whose calls are not ToolCall objects")
        changes = {"text": change.text, "reasoning": change.reasoning, "calls": change.calls}
    else:
        fields = cast("dict[str, Any]", {"text": change} if isinstance(change, str) else change)
        if not fields.keys() & {"text", "calls"}:
            raise HookFailed("returned a dict without text and calls")
        if "text" in fields:
            changes["text"] = fields["text"]
        if "calls" in fields:
            changes["calls"] = _calls(fields["calls"], answer.calls)
    for name in changes.keys() & {"text", "reasoning"}:
        if not isinstance(changes[name], str):
            raise HookFailed(f"returned an answer whose {name} is no str")
        changes[name] = clean(changes[name])
    names = [name for name, value in changes.items() if value != getattr(answer, name)]
    if not names:
        return answer, names
    changes["calls"] = calls = tuple(changes.get("calls", answer.calls))
    reason = "tool_calls" if calls else "stop" if answer.calls else answer.stop_reason
    replacement = msgspec.structs.replace(
        answer, **changes, stop_reason=reason, native=NO_NATIVE, response_id=""
    )
    return replacement, names


class _CallChange(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    arguments: dict[Any, Any] = {}


def _calls(value: Any, before: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    try:
        changes = msgspec.convert(value, list[_CallChange])
    except msgspec.ValidationError:
        form = "a list of objects with name and arguments"
        raise HookFailed(f"failed: calls takes {form}") from None
    calls = [ToolCall("", call.name, call.arguments) for call in changes]
    for n, (call, old) in enumerate(zip(changes, before, strict=False)):
        if (old.name, old.arguments) == (call.name, call.arguments):
            calls[n] = old
    return tuple(calls)


def _secrets(hooks: Sequence[Hook], llm: Any) -> tuple[str, ...]:
    """Return the secrets of an agent that must be redacted in what its hooks return."""
    from holdfast.tools.hook_commands import secrets_of  # loads subprocess, for hooks alone

    env_secrets = [value for hook in hooks for value in secrets_of(hook.env)]
    keys = _model_secrets(llm).union(*[_model_secrets(hook.llm) for hook in hooks])
    return tuple(sorted({*worth_hiding(env_secrets), *keys}, key=len, reverse=True))


def _model_secrets(llm: Any) -> set[str]:
    models = getattr(llm, "models", None)
    if isinstance(models, Mapping):
        return set[str]().union(*map(_model_secrets, cast("Mapping[str, Any]", models).values()))
    return set(argument_secrets(llm.arguments())) if isinstance(llm, LLM) else set()
