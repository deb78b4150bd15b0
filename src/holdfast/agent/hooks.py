"""The hooks of an agent: the subjects of all events but tool calls, and the hooks of each event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.additions import Addition, Situation
from holdfast.content import Content, TextContent, ToolCall, text_of
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
    """A run that is about to be FINISHED.

    `text` is the last answer's text; `denied` is how often in a row hooks denied the end.
    """

    text: str
    denied: int = 0


class Condensing(msgspec.Struct, frozen=True):
    """A condensation that is about to begin.

    `tokens` are those of the request to shorten; 0 if not counted.
    """

    reason: str
    instructions: str = ""
    tokens: int = 0


class Starting(msgspec.Struct, frozen=True):
    """A conversation that this process is about to drive.

    `reopened` is true if its model was called before.
    """

    reopened: bool


class Ending(msgspec.Struct, frozen=True):
    """A conversation that is being closed, with its status."""

    status: str


class AgentHooks:
    """The hooks of an agent by event, in the order in which they are called.

    `tools` are the agent's hooks of tool calls, with those of its manager inside; None if the
    agent has none of its own.
    """

    __slots__ = (
        "after_model",
        "before_model",
        "blot",
        "condensation",
        "end",
        "message",
        "start",
        "stop",
        "tools",
    )

    def __init__(self, hooks: Sequence[Hook], inner: Sequence[Hook], llm: Any) -> None:
        check(hooks, "Agent: ")
        hidden = _secrets(hooks, llm)

        def without(text: str) -> str:
            return redact(text, hidden)

        self.blot: Callable[[str], str] = without
        own = [hook for hook in hooks if hook.on == "tool"]
        self.tools = Hooks([*own, *inner], without) if own else None
        self.before_model = bind(hooks, "model", "before")
        self.after_model = bind(hooks, "model", "after")
        self.message = bind(hooks, "message", "before")
        self.stop = bind(hooks, "stop", "before")
        self.condensation = bind(hooks, "condensation", "before")
        self.start = bind(hooks, "start", "before")
        self.end = bind(hooks, "end", "before")

    def ask(
        self,
        bound: BoundHook,
        context: ToolContext,
        told: Callable[[Any], dict[str, Any]],
        fits: Callable[[Any], bool],
        subject: object,
        what: str,
    ) -> HookAnswer:
        """Return a hook's answer with secrets redacted.

        Raises `HookDenied`, whose message begins with `what`, if the hook fails.
        """
        try:
            said = ask(bound, context, told, fits, subject)
        except (HookFailed, ToolError) as error:
            how = (
                str(error)
                if isinstance(error, HookFailed)
                else f"failed: {type(error).__name__}: {error}"
            )
            raise HookDenied(
                clean(self.blot(f"{what}: its hook {bound.name} {how}")), bound.name, bound.on, True
            ) from error
        if said is not NOTHING and (said.deny or said.add):
            said = HookAnswer(said.deny and self.blot(said.deny), self.blot(said.add), said.change)
        return said

    @staticmethod
    def denied(bound: BoundHook, said: HookAnswer, what: str) -> HookDenied:
        """Return the error for a hook that denied."""
        return HookDenied(
            f"{what}: its hook {bound.name} denied it{f': {said.deny}' if said.deny else ''}",
            bound.name,
            bound.on,
        )

    def additions(
        self, situation: Situation, context: ToolContext, answered: int
    ) -> list[Addition]:
        """Return the messages that hooks add before a model call. Raises `HookDenied`.

        `answered` is the seq of the model's last answer.
        """
        found: list[Addition] = []
        for bound in self.before_model:
            said = self.ask(
                bound, context, _model_subject, _accepts_no_change, situation, _MODEL_NOT_CALLED
            )
            if said is NOTHING:
                continue
            if said.deny is not None:
                raise self.denied(bound, said, _MODEL_NOT_CALLED)
            if said.add and not told_since(bound.name, situation, answered):
                found.append(addition(bound.name, said.add))
        return found


_MODEL_NOT_CALLED = "The model was not asked"


def _accepts_no_change(found: Any) -> bool:
    return False


def addition(name: str, text: str) -> Addition:
    """Return the addition of a hook; its `about` names the hook and the hash of the text."""
    return Addition(f"hook:{name}#{sha256(text.encode()).hexdigest()[:8]}", (TextContent(text),))


def told_since(name: str, situation: Situation, answered: int) -> bool:
    """Return True if this hook has added a message since the last answer.

    In that case the process crashed between that message and the next answer.
    """
    mine = f"hook:{name}#"
    return any(seq > answered for about, seq in situation.abouts.items() if about.startswith(mine))


def _model_subject(situation: Situation) -> dict[str, Any]:
    news = situation.news
    last = next(
        (
            index
            for index in range(len(news) - 1, -1, -1)
            if type(news[index]) is ev.AssistantReplied
        ),
        0,
    )
    return {
        "model": situation.llm.model,
        "news": [msgspec.Raw(ev.encode(event)) for event in news[last:]],
    }


def answer_told(answer: Completion) -> dict[str, Any]:
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
    """Return the answer with a hook's changes, and the names of the changed fields.

    The provider's native data of the original answer are dropped. Raises `Failed`.
    """
    if isinstance(change, str):
        wanted = msgspec.structs.replace(answer, text=clean(change))
    elif isinstance(change, Completion):
        wanted = change
    else:
        given = cast("dict[str, Any]", change)
        wanted = answer
        if "text" in given:
            wanted = msgspec.structs.replace(wanted, text=clean(given["text"]))
        if "calls" in given:
            wanted = msgspec.structs.replace(wanted, calls=_calls(given["calls"], answer.calls))
    if not all(isinstance(call, ToolCall) for call in cast("Sequence[Any]", wanted.calls)):
        raise HookFailed("returned a Completion whose calls are not ToolCall objects")
    names = [
        name
        for name in ("text", "reasoning", "calls")
        if getattr(wanted, name) != getattr(answer, name)
    ]
    # A hook cannot change the token counts and the request.
    found = msgspec.structs.replace(
        answer,
        text=wanted.text,
        reasoning=wanted.reasoning,
        calls=tuple(wanted.calls),
        stop_reason=(
            "tool_calls" if wanted.calls else "stop" if answer.calls else answer.stop_reason
        ),
        native=NO_NATIVE,
        response_id="",
    )
    return (found, names) if names else (answer, names)


def _calls(given: Any, before: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    found: list[ToolCall] = []
    if not isinstance(given, list):
        raise HookFailed("failed: calls takes a list of objects with name and arguments")
    for index, one in enumerate(cast("list[Any]", given)):
        call = cast("dict[str, Any]", one) if isinstance(one, dict) else {}
        name, arguments = call.get("name"), call.get("arguments", {})
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            raise HookFailed("failed: calls takes a list of objects with name and arguments")
        same = (
            before[index]
            if index < len(before)
            and before[index].name == name
            and before[index].arguments == arguments
            else None
        )
        found.append(same or ToolCall("", name, cast("dict[str, Any]", arguments)))
    return tuple(found)


def _secrets(hooks: Sequence[Hook], llm: Any) -> tuple[str, ...]:
    """Return the secrets of an agent that must be redacted in what its hooks return."""
    from holdfast.tools.hook_commands import secrets_of  # loads subprocess, for hooks alone

    held = [value for hook in hooks for value in secrets_of(hook.env)]
    return tuple(sorted({*worth_hiding(held), *_model_secrets(llm)}, key=len, reverse=True))


def _model_secrets(llm: Any) -> set[str]:
    models = getattr(llm, "models", None)
    if isinstance(models, Mapping):
        return {
            secret
            for model in cast("Mapping[str, Any]", models).values()
            for secret in _model_secrets(model)
        }
    return set(argument_secrets(llm.arguments())) if isinstance(llm, LLM) else set()
