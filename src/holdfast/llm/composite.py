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

ROUTE_SEPARATOR = " > "  # separates the names in a route through nested composites

# Errors that another model may avoid. All others are faults of the request and recur at any model.
FALLBACK_ERRORS: tuple[type[LLMError], ...] = (
    AuthenticationError,
    PermissionDenied,
    ModelNotFound,
    RateLimited,
    ServerError,
    LLMTimeout,
    LLMConnectionError,
    BadResponse,
)

FallbackOn = Iterable[type[LLMError]] | Callable[[LLMError], bool]


class _CompletionArguments(msgspec.Struct, frozen=True):
    """The arguments of `completion`, and the route to this composite."""

    transcript: Transcript
    tools: Sequence[ToolLike]
    system: str | None
    head: Agent | None
    on_delta: OnDelta | None
    cancelled: Cancellation | None
    outer_route: tuple[str, ...] = ()  # names of the enclosing composites, outermost first


class _Composite:
    """The base of both composites: named models, frozen, each called as if it were alone."""

    models: Mapping[str, Model]
    model: str

    def __init__(self, kind: str, models: Mapping[str, Any] | Iterable[Any]) -> None:
        by_name = _models_by_name(kind, models)
        object.__setattr__(self, "models", by_name)
        object.__setattr__(self, "model", f"{kind}({', '.join(by_name)})")

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
        costs = [model.cost(usage) for model in self.models.values()]
        return None if None in costs else max(cast("list[float]", costs))

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
            _CompletionArguments(as_transcript(messages), tools, system, head, on_delta, cancelled)
        )

    def _answer(self, arguments: _CompletionArguments) -> Completion:
        raise NotImplementedError

    def _ask(self, name: str, arguments: _CompletionArguments) -> Completion:
        head = (
            None if arguments.head is None else routed(arguments.head, name, arguments.transcript)
        )
        model = self.models[name]
        if isinstance(model, _Composite):
            answer = model._answer(
                msgspec.structs.replace(
                    arguments, head=head, outer_route=(*arguments.outer_route, name)
                )
            )
        else:
            answer = model.completion(
                arguments.transcript,
                arguments.tools,
                system=arguments.system,
                head=head,
                on_delta=arguments.on_delta,
                cancelled=arguments.cancelled,
            )
        return msgspec.structs.replace(
            answer, route=f"{name}{ROUTE_SEPARATOR}{answer.route}" if answer.route else name
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
        on: FallbackOn | None = None,
        sticky: bool = True,
    ) -> None:
        super().__init__("fallback", models)
        object.__setattr__(self, "sticky", sticky)
        condition = on if on is None or callable(on) or not isinstance(on, Iterable) else tuple(on)  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
        object.__setattr__(self, "on", condition)
        object.__setattr__(
            self, "_moves_on", _moves_on_test(FALLBACK_ERRORS if condition is None else condition)
        )

    on: tuple[type[LLMError], ...] | Callable[[LLMError], bool] | None
    _moves_on: Callable[[LLMError], bool]

    def parameters(self) -> dict[str, Any]:
        """Return each model's `model` and parameters under its name, and `sticky`."""
        return {**super().parameters(), "sticky": self.sticky}

    def _answer(self, arguments: _CompletionArguments) -> Completion:
        started = time.monotonic()
        deltas = Told(arguments.on_delta)
        arguments = msgspec.structs.replace(arguments, on_delta=deltas)
        names = self._order(arguments)
        failures: list[tuple[str, LLMError]] = []
        while True:
            name = names[len(failures)]
            try:
                answer = self._ask(name, arguments)
            except LLMError as error:
                final = isinstance(error, Cancelled) or arguments.cancelled or name == names[-1]
                if final or not self._moves_on(error):
                    for before, earlier in failures:
                        error.add_note(
                            f"Before that {before} failed: {type(earlier).__name__}: {earlier}"
                        )
                    raise
                _log.warning("%s failed: %s", name, error)
                failures.append((name, error))
                deltas.restart()
            else:
                return (
                    msgspec.structs.replace(answer, duration=time.monotonic() - started)
                    if failures
                    else answer
                )

    def _order(self, arguments: _CompletionArguments) -> list[str]:
        names = list(self.models)
        last = (
            last_route(arguments.transcript, self.models, arguments.outer_route)
            if self.sticky
            else ""
        )
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

    def _answer(self, arguments: _CompletionArguments) -> Completion:
        head = arguments.head
        tools = (
            tuple([definition(tool) for tool in arguments.tools]) if head is None else head.tools
        )
        prompt = (arguments.system or "") if head is None else head.system_prompt
        last = last_route(arguments.transcript, self.models, arguments.outer_route)
        name = self.pick(RouterRequest(arguments.transcript.items, tools, prompt, last))
        if name not in self.models:
            raise ConfigurationError(
                f"RouterLLM: pick returns one of {', '.join(self.models)}, not {name!r}."
            )
        return self._ask(name, arguments)


def last_route(
    transcript: Transcript, models: Container[str], outer_route: tuple[str, ...] = ()
) -> str:
    """Return the name of the composite's model that answered last, or "" if none did. `outer_route`
    is the composite's own route."""
    answer = transcript.last_answer
    route = () if answer is None else tuple(answer.route.split(ROUTE_SEPARATOR))
    if route[: len(outer_route)] != outer_route:
        return ""
    return next((name for name in route[len(outer_route) :] if name in models), "")


def routed(head: Agent, route: str, transcript: Transcript) -> Agent:
    """Return the `Agent` event for the model behind `route`: with that model's name and
    parameters instead of the composite's. An event of a plain model is returned unchanged."""
    for name in route.split(ROUTE_SEPARATOR) if route else ():
        routes: Any = head.parameters.get("routes")
        entry: Any = cast("dict[str, Any]", routes).get(name) if isinstance(routes, dict) else None
        if not entry:
            return head
        outer = head
        head = transcript.cached(
            f"{outer.model} {name}",
            outer,
            lambda outer=outer, entry=entry: msgspec.structs.replace(
                outer, model=entry["model"], parameters=entry["parameters"]
            ),
        )
    return head


def _models_by_name(kind: str, models: Any) -> dict[str, Model]:
    class_name = "FallbackLLM" if kind == "fallback" else "RouterLLM"
    takes = f"{class_name}: models takes a mapping of names to models" + (
        " or a list of models" if kind == "fallback" else ""
    )
    if isinstance(models, Mapping):
        pairs = [(name, model) for name, model in cast("Mapping[Any, Any]", models).items()]
    elif (
        isinstance(models, Iterable) and not isinstance(models, str | bytes) and kind == "fallback"
    ):
        pairs = [(getattr(model, "model", None), model) for model in cast("Iterable[Any]", models)]
    else:
        raise ConfigurationError(f"{takes}, not {models!r}.")
    by_name: dict[str, Model] = {}
    for name, model in pairs:
        if (
            isinstance(model, type)
            or not callable(getattr(model, "completion", None))
            or not isinstance(name, str)
        ):
            raise ConfigurationError(f"{takes} (LLM, ScriptedLLM, ...), not {model!r}.")
        if not name or ROUTE_SEPARATOR in name:
            raise ConfigurationError(f"{takes}; {name!r} is not a valid name.")
        number = 2
        unique = name
        while unique in by_name:  # the same model again, with another key or other settings
            unique, number = f"{name}#{number}", number + 1
        by_name[unique] = model
    if not by_name:
        raise ConfigurationError(f"{takes}, at least one.")
    return by_name


def _moves_on_test(on: Any) -> Callable[[LLMError], bool]:
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
