"""`FallbackLLM` and `RouterLLM`: several models used as one.

An answer's `route` names the model that gave it. The route is in the journal too, so a resumed
conversation continues with the same model, and a composite keeps no state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast import errors
from holdfast.content import Usage
from holdfast.error_text import describe_error
from holdfast.events import AgentConfigured, ToolDefinition
from holdfast.llm.background import begun_answers, member_record
from holdfast.llm.base import CompletionCall, FrozenModel
from holdfast.llm.completion import Completion, DeltaListener
from holdfast.llm.model import Model
from holdfast.llm.request import definition
from holdfast.llm.transcript import Item, Messages, Transcript, as_transcript

if TYPE_CHECKING:
    from holdfast.llm.wires.protocol import Wire
    from holdfast.tools.context import Cancellation

_log = logging.getLogger("holdfast.llm")

ROUTE_SEPARATOR = " > "  # separates the names in a route through nested composites

# Errors that another model may avoid. All others are faults of the request and recur at any model.
FALLBACK_ERRORS: tuple[type[errors.LLMError], ...] = (
    errors.AuthenticationError,
    errors.PermissionDenied,
    errors.ModelNotFound,
    errors.RateLimited,
    errors.ServerError,
    errors.LLMTimeout,
    errors.LLMConnectionError,
    errors.BadResponse,
)

FallbackOn = Iterable[type[errors.LLMError]] | Callable[[errors.LLMError], bool]


class _Composite(FrozenModel):
    """The base of both composites: named models, frozen, each called as if it were alone."""

    models: Mapping[str, Model]
    model: str

    def __init__(self, kind: str, models: Any) -> None:
        by_name: dict[str, Model] = {}
        takes = f"{type(self).__name__}: models takes a mapping of names to models"
        if kind == "fallback":
            takes += " or a list of models"
        pairs: Iterable[tuple[Any, Any]]
        if isinstance(models, Mapping):
            pairs = cast("Mapping[Any, Any]", models).items()
        elif (
            kind == "fallback"
            and isinstance(models, Iterable)
            and not isinstance(models, str | bytes)
        ):
            items = cast("Iterable[Any]", models)
            pairs = [(getattr(model, "model", None), model) for model in items]
        else:
            raise errors.ConfigurationError(f"{takes}, not {models!r}.")
        for name, model in pairs:
            is_model = callable(getattr(model, "completion", None)) and not isinstance(model, type)
            if not is_model or not isinstance(name, str):
                raise errors.ConfigurationError(f"{takes} (LLM, ScriptedLLM, ...), not {model!r}.")
            if not name or ROUTE_SEPARATOR in name:
                raise errors.ConfigurationError(f"{takes}; {name!r} is not a valid name.")
            unique, number = name, 2
            while unique in by_name:  # the same model again, with another key or other settings
                unique, number = f"{name}#{number}", number + 1
            by_name[unique] = cast(Model, model)
        if not by_name:
            raise errors.ConfigurationError(f"{takes}, at least one.")
        self._set(models=by_name, model=f"{kind}({', '.join(by_name)})")

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
        """Close idle connections."""
        for model in self.models.values():
            model.close()

    def count(self, call: CompletionCall) -> int:
        """Return the input tokens of a call, as the first model's provider counts them."""
        name, model = next(iter(self.models.items()))
        head = None if call.head is None else head_of_route(call.head, name, call.transcript)
        count_tokens: Any = getattr(model, "count_tokens", None)
        if not callable(count_tokens):
            raise errors.ConfigurationError(f"count_tokens: {name} cannot count tokens.")
        return cast(int, count_tokens(call.transcript, call.tools, system=call.system, head=head))

    def compact(
        self,
        messages: Messages,
        *,
        system: str | None = None,
        head: AgentConfigured | None = None,
        instructions: str = "",
        cancelled: Cancellation | None = None,
    ) -> Completion:
        """Return a compaction by the provider of the model that answered last, or of the first one;
        see `LLM.compact`. Raises `ConfigurationError` if that model has none."""
        transcript = as_transcript(messages)
        name = last_route(transcript, self.models) or next(iter(self.models))
        compact: Any = getattr(self.models[name], "compact", None)
        if not callable(compact):
            raise errors.ConfigurationError(f"compact: {name} has no compaction by its provider.")
        routed_head = None if head is None else head_of_route(head, name, transcript)
        more = {"system": system, "head": routed_head, "instructions": instructions}
        return cast(Completion, compact(transcript, **more, cancelled=cancelled))

    def _ask(self, name: str, call: CompletionCall) -> Completion:
        with member_record(name):
            return self._member_answer(name, call)

    def _member_answer(self, name: str, call: CompletionCall) -> Completion:
        head = None if call.head is None else head_of_route(call.head, name, call.transcript)
        model = self.models[name]
        if isinstance(model, _Composite):
            outer = (*call.outer_route, name)
            answer = model.complete(msgspec.structs.replace(call, head=head, outer_route=outer))
        else:
            answer = model.completion(
                call.transcript,
                call.tools,
                system=call.system,
                head=head,
                on_delta=call.on_delta,
                cancelled=call.cancelled,
            )
        route = f"{name}{ROUTE_SEPARATOR}{answer.route}" if answer.route else name
        return msgspec.structs.replace(answer, route=route)

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
    answer and another is called, `on_delta` receives a `restart`. An answer that the model still
    makes in the background is cancelled.

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
        is_function = callable(on) and not isinstance(on, type)
        kinds: Any = FALLBACK_ERRORS if on is None else on
        if not is_function and isinstance(kinds, Iterable):
            kinds = tuple(cast("Iterable[Any]", kinds))
            on = None if on is None else kinds
        classes = cast(
            "tuple[type[errors.LLMError], ...]", kinds if isinstance(kinds, tuple) else (kinds,)
        )
        if not is_function and not (classes and all(map(_is_error_class, classes))):
            raise errors.ConfigurationError(
                "FallbackLLM: on takes classes of LLMError or a function of the error, not"
                f" {kinds!r}."
            )
        self._set(sticky=sticky, on=on, _moves_on=on if is_function else classes)

    on: tuple[type[errors.LLMError], ...] | Callable[[errors.LLMError], bool] | None
    _moves_on: tuple[type[errors.LLMError], ...] | Callable[[errors.LLMError], bool]

    def parameters(self) -> dict[str, Any]:
        """Return each model's `model` and parameters under its name, and `sticky`."""
        return {**super().parameters(), "sticky": self.sticky}

    def complete(self, call: CompletionCall) -> Completion:
        """Return the answer of the first model that does not fail."""
        started = time.monotonic()
        deltas = DeltaListener(call.on_delta)
        call = msgspec.structs.replace(call, on_delta=deltas)
        names = list(self.models)
        last = last_route(call.transcript, self.models, call.outer_route) if self.sticky else ""
        start = names.index(last) if last in self.models else 0
        names = names[start:] + names[:start]
        failures: list[tuple[str, errors.LLMError]] = []
        with begun_answers() as background_answers:
            for name in names:
                try:
                    answer = self._ask(name, call)
                except errors.LLMError as error:
                    if name == names[-1] or call.cancelled or not self._does_move_on(error):
                        for before, earlier in failures:
                            why = describe_error(earlier)
                            error.add_note(f"Before that {before} failed: {why}")
                        raise
                    _log.warning("%s failed: %s", name, error)
                    failures.append((name, error))
                    while background_answers:  # the provider may still be making the answer
                        background_answers.pop().cancel()
                    deltas.restart()
                    continue
                if failures:
                    duration = time.monotonic() - started
                    answer = msgspec.structs.replace(answer, duration=duration)
                return answer
        raise AssertionError("the last model answers or raises")

    def _does_move_on(self, error: errors.LLMError) -> bool:
        """Return True for a failure that the next model may avoid. A function of the user's is
        asked only about an error that decides something."""
        if isinstance(error, errors.Cancelled):
            return False
        on = self._moves_on
        return isinstance(error, on) if isinstance(on, tuple) else on(error)


class RouterRequest(msgspec.Struct, frozen=True):
    """The input of a `RouterLLM`'s function. `items` are the conversation's items (do not change
    them), `last` is the model that answered last ("" for none)."""

    items: Sequence[Item]
    tools: Sequence[ToolDefinition]
    system: str
    last: str


class RouterLLM(_Composite):
    """A choice of models, from which a function picks one for each request.

    `pick` receives a `RouterRequest` and returns a name of `models`, the same for the same journal.
    A replay does not call it, because the journal records the model that answered. `completion`
    raises `ConfigurationError` if `pick` returns an unknown name.

        RouterLLM(
            lambda request: "small" if len(request.items) < 20 else "large",
            {"small": LLM(...), "large": LLM(...)},
        )
    """

    pick: Callable[[RouterRequest], str]

    def __init__(self, pick: Callable[[RouterRequest], str], models: Mapping[str, Model]) -> None:
        super().__init__("router", models)
        if not callable(pick):
            raise errors.ConfigurationError(
                f"RouterLLM: pick takes a function of a RouterRequest, not {pick!r}."
            )
        self._set(pick=pick)

    def complete(self, call: CompletionCall) -> Completion:
        """Return the answer of the model that the function picks."""
        if call.head is not None:
            prompt, tools = call.head.system_prompt, call.head.tools
        else:
            prompt, tools = call.system or "", tuple(map(definition, call.tools))
        last = last_route(call.transcript, self.models, call.outer_route)
        name = self.pick(RouterRequest(call.transcript.items, tools, prompt, last))
        if name not in self.models:
            raise errors.ConfigurationError(
                f"RouterLLM: pick returns one of {', '.join(self.models)}, not {name!r}."
            )
        return self._ask(name, call)


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


def head_of_route(head: AgentConfigured, route: str, transcript: Transcript) -> AgentConfigured:
    """Return the `AgentConfigured` event for the model behind `route`: with that model's name and
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


def wires_of(model: object) -> Mapping[str, Wire]:
    """Return the wires that a model and its members speak, by name."""
    if isinstance(model, _Composite):
        return {name: one for each in model.models.values() for name, one in wires_of(each).items()}
    wire: Wire | None = getattr(model, "wire", None)
    return {} if wire is None else {wire.name: wire}


def _is_error_class(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, errors.LLMError)
