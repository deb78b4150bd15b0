"""`ask_user`: a tool with which a model asks the user and waits for the answer, for so long and no
longer."""

from __future__ import annotations

import time
from typing import Any

from holdfast.content import TextContent, ToolResult
from holdfast.errors import ToolValidationError
from holdfast.tools.context import ToolContext
from holdfast.tools.registry import ToolRegistry, register_tool
from holdfast.tools.tool import Tool, ToolAnnotations

_LEAST, _MOST = 1.0, 86_400.0  # seconds
_OPTIONS = 20  # more are no choice that anybody reads
_LONGEST = 200  # characters of an option

ANSWER = "answer"  # the form's one field


def ask_user(
    question: str, context: ToolContext, options: list[str] | None = None, timeout: float = 600.0
) -> ToolResult:
    """Ask the user something and wait for the answer. Use it when you cannot go on well without
    what only the user knows or may decide: not for what you can find out by yourself, nor to report
    what you have done.

    Args:
        question: What you want to know, with all that is needed to answer it; one question.
        options: The answers to choose from, if there are few. Without them the user answers in
        words. timeout: How many seconds to wait, from 1 to 86400. After that you are told that
        there was no answer, and go on without.
    """
    _check(question, options, timeout)
    if not context.reachable:
        return _result(
            "Nobody can be asked here: this conversation runs without a user who answers. Go on by"
            " your own judgement and say in your answer what you assumed; if that cannot be, say"
            " what you need to know and stop.",
            {"answered": False, "why": "unreachable"},
        )
    began = time.monotonic()
    given = context.ask(question, _form(options), timeout=timeout)
    if given is not None:
        answer = str(given.get(ANSWER, "")).strip()
        return _result(
            f"The user answers: {answer}" if answer else "The user answers with nothing.",
            {"answered": True, "answer": answer},
        )
    if time.monotonic() - began >= timeout:
        return _result(
            f"No answer came within {timeout:g} s. Go on by your own judgement if you can, and say"
            " in your answer what you assumed.",
            {"answered": False, "why": "timeout"},
        )
    return _result(
        "The user does not want to answer this. Do not ask it again; go on by your own judgement or"
        " stop.",
        {"answered": False, "why": "declined"},
    )


def _result(text: str, data: dict[str, Any]) -> ToolResult:
    return ToolResult((TextContent(text),), structured_content=data)


def _check(question: str, options: list[str] | None, timeout: float) -> None:
    if not question.strip():
        raise ToolValidationError("question is empty; say what you want to know.")
    if not _LEAST <= timeout <= _MOST:
        raise ToolValidationError(
            f"timeout takes {_LEAST:g} to {_MOST:g} seconds, not {timeout:g}."
        )
    if options is None:
        return
    if not 2 <= len(options) <= _OPTIONS:
        raise ToolValidationError(
            f"options takes 2 to {_OPTIONS} answers to choose from, not {len(options)}; leave it"
            " out for an answer in words."
        )
    if any(not one.strip() or len(one) > _LONGEST for one in options):
        raise ToolValidationError(
            f"each of options takes 1 to {_LONGEST} characters; the question itself may be longer."
        )
    if len(set(options)) < len(options):
        raise ToolValidationError("options has the same answer twice.")


def _form(options: list[str] | None) -> dict[str, Any]:
    field: dict[str, Any] = {"type": "string", "title": "Answer"}
    if options:
        field["enum"] = list(options)
    else:
        field["minLength"] = 1
    return {"type": "object", "properties": {ANSWER: field}, "required": [ANSWER]}


def make_ask_user() -> Tool:
    """The tool `ask_user`."""
    # Asked again after a crash, as any question is: nothing is changed by it.
    reads = ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False)
    return Tool.from_function(ask_user, annotations=reads, category="asking")


def register_asking_tools(registry: ToolRegistry | None = None) -> list[Tool]:
    """The asking tools, for `Agent(tools=...)`; with a `registry`, they are registered there
    too."""
    register_tool("ask_user", make_ask_user)
    found = ToolRegistry() if registry is None else registry
    return found.import_module(__name__)


register_tool("ask_user", make_ask_user)
