"""Limits of one run, after which the run stops by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from holdfast.content import Usage
from holdfast.errors import ConfigurationError
from holdfast.tools.arguments import is_number, wrong

# The maximum of each limit. The cost has a millionth of it, since a store counts billionths of a
# dollar.
_MAX_LIMIT = 1_000_000_000_000_000


class Limits(msgspec.Struct, frozen=True):
    """Limits of one run, which lasts from a message until the agent rests. None means no limit.

    Raises `ConfigurationError` for a limit that is not a number above 0 or that exceeds the range
    of a store.

    Attributes:
        steps: Model calls.
        tokens: Input and output tokens together.
        cost: US dollars.
        seconds: Seconds of work; pauses and waits for a decision do not count.
    """

    steps: int | None = 500
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None:
                continue
            if not (is_number(value) and value > 0):
                raise wrong(f"Limits: {name}", "a number above 0 or None", value)
            most = _MAX_LIMIT // 1_000_000 if name == "cost" else _MAX_LIMIT
            if value > most:
                raise ConfigurationError(
                    f"Limits: {name} takes at most {most:,}, not {value!r}; None means no limit."
                )


def most_output(llm: Any) -> int | None:
    """Return the maximum number of output tokens of one answer of a model; None if unknown. For a
    composite the maximum over all its models is returned."""
    models = getattr(llm, "models", None)
    if isinstance(models, Mapping):
        maxima = [most_output(model) for model in cast("Mapping[str, Any]", models).values()]
        return None if None in maxima else max(cast("list[int]", maxima), default=None)
    parameter: Any = llm.parameters().get("max_output_tokens")
    if parameter:
        return int(parameter)
    info = getattr(llm, "info", None)
    return None if info is None else info.max_output_tokens


def check_tree(who: str, llm: Any, tokens: bool, cost: bool) -> None:
    """Raise `ConfigurationError` if a limit applies whose use cannot be bounded before a model
    call. A token limit needs a known maximum length of an answer. A cost limit needs a known price
    too."""
    if (tokens or cost) and most_output(llm) is None:
        what = "tokens" if tokens else "a cost"
        raise ConfigurationError(
            f"{who} {what}, but the maximum length of an answer of {llm.model!r} is not known;"
            " give it max_output_tokens."
        )
    if cost:
        check_price(who, llm)


def check_models(models: Iterable[Any], limits: Limits, tree: Limits) -> None:
    """Raise `ConfigurationError` if an agent's limits of a run or of a tree apply to a model whose
    use they cannot count."""
    for model in models:
        if limits.cost is not None:
            check_price("Agent: limits has", model)
        counted = (tree.tokens is not None, tree.cost is not None)
        check_tree("Agent: tree_limits has", model, *counted)


def check_price(who: str, llm: Any) -> None:
    """Raise `ConfigurationError` if the price of a model is not known."""
    if llm.cost(Usage(1, 1)) is None:
        raise ConfigurationError(
            f"{who} a cost, but the price of {llm.model!r} is not known; use steps or tokens."
        )
