"""What an agent may name by module: policies, condensers, picks, hooks, tools."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast import ScriptedLLM, Tool, tool
from holdfast.agent.confirmation import Verdict
from holdfast.errors import RateLimited
from holdfast.tools import register_tool


class Never:
    def decide(self, call: Any, risk: Any) -> Verdict:
        return Verdict("deny", "never")


@dataclass
class Shortener:
    keep: int = 10
    api_key: str = ""
    seen: list[int] = field(default_factory=list, init=False)

    def condense(self, journal: Any, reason: Any, cancelled: Any) -> None:
        return None


class Strict(msgspec.Struct):
    names: list[str]

    def decide(self, call: Any, risk: Any) -> Verdict:
        return Verdict("ask" if call.name in self.names else "allow")


class Stateful:
    def __init__(self, what: object) -> None:
        self.what = what

    def decide(self, call: Any, risk: Any) -> Verdict:
        return Verdict("allow")

    def condense(self, journal: Any, reason: Any, cancelled: Any) -> None:
        return None


ready = Stateful(object())
answers = ScriptedLLM(lambda request: "Hello.", model="answers")


def pick(request: Any) -> str:
    return "large" if len(request.items) > 10 else "small"


def passing(error: Exception) -> bool:
    return isinstance(error, RateLimited)


def before(call: Any, context: Any) -> None:
    return None


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def make_greet(greeting: str = "Hello") -> Tool:
    def greet(name: str) -> str:
        """Greet somebody."""
        return f"{greeting}, {name}"

    return Tool.from_function(greet)


register_tool("greet", make_greet)


class Counted(Tool):
    def __init__(self) -> None:
        super().__init__(
            "counted",
            "Counts.",
            input_schema={"type": "object", "properties": {"n": {"type": "integer"}}},
        )

    def call(self, arguments: dict[str, Any], context: Any) -> Any:
        return arguments


register_tool("counted", Counted)


def plain(text: str) -> str:
    """A function that no one declares as a tool."""
    return text
