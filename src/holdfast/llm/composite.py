"""`FallbackLLM` and `RouterLLM`: several models used as one.

An answer's `route` names the model that gave it. The route is in the journal too, so a resumed
conversation continues with the same model, and a composite keeps no state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import msgspec

from holdfast.content import Usage
from holdfast.errors import (
    AuthenticationError,
    BadResponse,
    Cancelled,
    ConfigurationError,
    LLMConnectionError,
    LLMError,
    LLMTimeout,
    ModelNotFound,
    PermissionDenied,
    RateLimited,
    ServerError,
)
from holdfast.events import Agent, ToolDefinition
from holdfast.llm.completion import Completion, OnDelta, Told
from holdfast.llm.model import Model, ToolLike
from holdfast.llm.request import definition
from holdfast.llm.transcript import Item, Messages, Transcript, as_transcript

if TYPE_CHECKING:
    from holdfast.tools.context import Cancellation

_log = logging.getLogger("holdfast.llm")

WITHIN = " > "  # separates the names in a route through nested composites

# Errors that another model may avoid. All others are faults of the request and recur at any model.
PASSING: tuple[type[LLMError], ...] = (
    AuthenticationError,
    PermissionDenied,
    ModelNotFound,
    RateLimited,
    ServerError,
    LLMTimeout,
    LLMConnectionError,
    BadResponse,
)

On = Iterable[type[LLMError]] | Callable[[LLMError], bool]


class _Asked(msgspec.Struct, frozen=True):
    """The arguments of `completion`, and the route to this composite."""

    transcript: Transcript
    tools: Sequence[ToolLike]
    system: str | None
    head: Agent | None
    on_delta: OnDelta | None
    cancelled: Cancellation | None
    within: tuple[str, ...] = ()  # names of the enclosing composites, outermost first


class _Composite:
    """The base of both composites: named models, frozen, each called as if it were alone."""

    models: Mapping[str, Model]
    model: str

    def __init__(self, kind: str, models: Mapping[str, Any] | Iterable[Any]) -> None:
        found = _named(kind, models)
        object.__setattr__(self, "models", found)
        object.__setattr__(self, "model", f"{kind}({', '.join(found)})")

    def parameters(self) -> dict[str, Any]:
        """Return each model's `model` and parameters under its name."""
        return {
            "routes": {
                name: {"model": model.model, "parameters": model.parameters()}
                for name, model in self.models.items()
            }
        }

    def cost(self, usage: Usage) -> float | None:
        """Return the highest cost of `usage` by any of the models, or None if any price is
        unknown. An answer's own `cost` is exact."""
        found = [model.cost(usage) for model in self.models.values()]
        return None if None in found else max(cast("list[float]", found))

    def close(self) -> None:
        """Close idle connections of all models."""
        for model in self.models.values():
            model.close()

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
        """Return the answer of one of the models. Takes the same arguments as `LLM.completion`."""
        return self._answer(
            _Asked(as_transcript(messages), tools, system, head, on_delta, cancelled)
        )

    def _answer(self, asked: _Asked) -> Completion:
        raise NotImplementedError

    def _ask(self, name: str, asked: _Asked) -> Completion:
        head = None if asked.head is None else routed(asked.head, name, asked.transcript)
        model = self.models[name]
        if isinstance(model, _Composite):
            answer = model._answer(
                msgspec.structs.replace(asked, head=head, within=(*asked.within, name))
            )
        else:
            answer = model.completion(
                asked.transcript,
                asked.tools,
                system=asked.system,
                head=head,
                on_delta=asked.on_delta,
                cancelled=asked.cancelled,
            )
        return msgspec.structs.replace(
            answer, route=f"{name}{WITHIN}{answer.route}" if answer.route else name
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen; make a new one to change {name!r}.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self.models)!r})"


class FallbackLLM(_Composite):
    """Models in an order. Each one is called if the model before it failed, after that model's own
    retries.

    - `models`: one or more models, as a list (each is known by its `model`) or as a mapping of
      names to models.
    - `on`: the failures that move on to the next model: classes of `LLMError`, or a function of
      the error. None means all except requests that are wrong themselves. A cancellation never
      moves on.
    - `sticky`: True to keep a conversation on the model that answered last, whose cache holds
      its beginning. Otherwise each request starts with the first model.

    Give the models few `max_retries`; otherwise the next model has to wait long. `completion`
    raises the last error, with the earlier ones as notes. If a model fails in the middle of its
    answer and another is called, `on_delta` receives a `restart`.

        FallbackLLM([LLM("claude-sonnet-4-5", key), LLM("gpt-5", other_key)])
    """

    sticky: bool

    def __init__(
        self,
        models: Mapping[str, Model] | Iterable[Model],
        *,
        on: On | None = None,
        sticky: bool = True,
    ) -> None:
        super().__init__("fallback", models)
        object.__setattr__(self, "sticky", sticky)
        given = on if on is None or callable(on) or not isinstance(on, Iterable) else tuple(on)  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
        object.__setattr__(self, "on", given)
        object.__setattr__(self, "_moves_on", _condition(PASSING if given is None else given))

    on: tuple[type[LLMError], ...] | Callable[[LLMError], bool] | None
    _moves_on: Callable[[LLMError], bool]

    def parameters(self) -> dict[str, Any]:
        """Return each model's `model` and parameters under its name, and `sticky`."""
        return {**super().parameters(), "sticky": self.sticky}

    def _answer(self, asked: _Asked) -> Completion:
        began = time.monotonic()
        told = Told(asked.on_delta)
        asked = msgspec.structs.replace(asked, on_delta=told)
        names = self._order(asked)
        failed: list[tuple[str, LLMError]] = []
        while True:
            name = names[len(failed)]
            try:
                answer = self._ask(name, asked)
            except LLMError as error:
                over = isinstance(error, Cancelled) or asked.cancelled or name == names[-1]
                if over or not self._moves_on(error):
                    for before, earlier in failed:
                        error.add_note(
                            f"Before that {before} failed: {type(earlier).__name__}: {earlier}"
                        )
                    raise
                _log.warning("%s failed: %s", name, error)
                failed.append((name, error))
                told.restart()
            else:
                return (
                    msgspec.structs.replace(answer, duration=time.monotonic() - began)
                    if failed
                    else answer
                )

    def _order(self, asked: _Asked) -> list[str]:
        names = list(self.models)
        last = last_route(asked.transcript, self.models, asked.within) if self.sticky else ""
        start = names.index(last) if last in self.models else 0
        return names[start:] + names[:start]


class RouterRequest(msgspec.Struct, frozen=True):
    """The input of a `RouterLLM`'s function: the conversation's `items` (do not change them),
    the tools, the system prompt, and the `last` model that answered ("" for none)."""

    items: Sequence[Item]
    tools: Sequence[ToolDefinition]
    system: str
    last: str


class RouterLLM(_Composite):
    """Models of which a function picks one for each request.

    `pick` receives a `RouterRequest` and returns a name of `models`. It should return the same name
    for the same journal. A replay does not call it, because the journal records the model that
    answered. `completion` raises `ConfigurationError` if `pick` returns an unknown name.

        RouterLLM(
            lambda request: "small" if len(request.items) < 20 else "large",
            {"small": LLM(...), "large": LLM(...)},
        )
    """

    pick: Callable[[RouterRequest], str]

    def __init__(self, pick: Callable[[RouterRequest], str], models: Mapping[str, Model]) -> None:
        super().__init__("router", models)
        if not callable(pick):
            raise ConfigurationError(
                f"RouterLLM: pick takes a function of a RouterRequest, not {pick!r}."
            )
        object.__setattr__(self, "pick", pick)

    def _answer(self, asked: _Asked) -> Completion:
        head = asked.head
        tools = tuple([definition(tool) for tool in asked.tools]) if head is None else head.tools
        prompt = (asked.system or "") if head is None else head.system_prompt
        last = last_route(asked.transcript, self.models, asked.within)
        name = self.pick(RouterRequest(asked.transcript.items, tools, prompt, last))
        if name not in self.models:
            raise ConfigurationError(
                f"RouterLLM: pick returns one of {', '.join(self.models)}, not {name!r}."
            )
        return self._ask(name, asked)


def last_route(transcript: Transcript, models: Container[str], within: tuple[str, ...] = ()) -> str:
    """Return the name of the composite's model that answered last, or "" if none did. `within`
    is the composite's own route."""
    answer = transcript.last_answer
    route = () if answer is None else tuple(answer.route.split(WITHIN))
    if route[: len(within)] != within:
        return ""
    return next((name for name in route[len(within) :] if name in models), "")


def routed(head: Agent, route: str, transcript: Transcript) -> Agent:
    """Return the `Agent` event for the model behind `route`: with that model's name and
    parameters instead of the composite's. An event of a plain model is returned unchanged."""
    for name in route.split(WITHIN) if route else ():
        found: Any = head.parameters.get("routes")
        entry: Any = cast("dict[str, Any]", found).get(name) if isinstance(found, dict) else None
        if not entry:
            return head
        outer = head
        head = transcript.once(
            f"{outer.model} {name}",
            outer,
            lambda outer=outer, entry=entry: msgspec.structs.replace(
                outer, model=entry["model"], parameters=entry["parameters"]
            ),
        )
    return head


def _named(kind: str, models: Any) -> dict[str, Model]:
    who = "FallbackLLM" if kind == "fallback" else "RouterLLM"
    takes = f"{who}: models takes a mapping of names to models" + (
        " or a list of models" if kind == "fallback" else ""
    )
    if isinstance(models, Mapping):
        given = [(name, model) for name, model in cast("Mapping[Any, Any]", models).items()]
    elif (
        isinstance(models, Iterable) and not isinstance(models, str | bytes) and kind == "fallback"
    ):
        given = [(getattr(model, "model", None), model) for model in cast("Iterable[Any]", models)]
    else:
        raise ConfigurationError(f"{takes}, not {models!r}.")
    found: dict[str, Model] = {}
    for name, model in given:
        if (
            isinstance(model, type)
            or not callable(getattr(model, "completion", None))
            or not isinstance(name, str)
        ):
            raise ConfigurationError(f"{takes} (LLM, ScriptedLLM, ...), not {model!r}.")
        if not name or WITHIN in name:
            raise ConfigurationError(f"{takes}; {name!r} is not a valid name.")
        number = 2
        unique = name
        while unique in found:  # the same model again, with another key or other settings
            unique, number = f"{name}#{number}", number + 1
        found[unique] = model
    if not found:
        raise ConfigurationError(f"{takes}, at least one.")
    return found


def _condition(on: Any) -> Callable[[LLMError], bool]:
    if callable(on) and not isinstance(on, type):
        return cast("Callable[[LLMError], bool]", on)
    kinds = (
        (on,)
        if isinstance(on, type)
        else tuple(cast("Iterable[Any]", on))
        if isinstance(on, Iterable)
        else ()
    )
    if not kinds or not all(
        isinstance(kind, type) and issubclass(kind, LLMError)
        for kind in cast("tuple[Any, ...]", kinds)
    ):
        raise ConfigurationError(
            f"FallbackLLM: on takes classes of LLMError or a function of the error, not {on!r}."
        )
    return lambda error: isinstance(error, cast("tuple[type[LLMError], ...]", kinds))
