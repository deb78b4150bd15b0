"""`ask_user`: a tool with which a model asks the user and waits a limited time for the answer."""

from __future__ import annotations

import time
from typing import Any

from holdfast.content import TextContent, ToolResult
from holdfast.errors import ToolValidationError
from holdfast.tools.context import ToolContext
from holdfast.tools.policy import LOCAL_READ
from holdfast.tools.registry import ToolRegistry, register_preset, register_tool
from holdfast.tools.tool import Tool

_MIN_TIMEOUT_SECONDS, _MAX_TIMEOUT_SECONDS = 1.0, 86_400.0
_MAX_OPTIONS = 20  # people do not read more
_MAX_OPTION_CHARS = 200

ANSWER = "answer"  # the only field of the form


def ask_user(
    question: str, context: ToolContext, options: list[str] | None = None, timeout: float = 600.0
) -> ToolResult:
    """Ask the user a question and wait for the answer. Use it when you cannot continue well without
    something that only the user knows or may decide. Do not use it for facts that you can find out
    yourself, or to report your work.

    Args:
        question: One question, with everything that the user needs to answer it.
        options: The answers to choose from, if there are few. Without options the user answers
            freely.
        timeout: Seconds to wait, from 1 to 86400. Afterwards the result says that there was no
            answer, and you continue without one.
    """
    _check(question, options, timeout)
    if not context.reachable:
        return _unanswered(
            "unreachable",
            "Nobody can be asked here: this conversation has no user who answers. Continue by your"
            " own judgement and state your assumptions in your answer. If you cannot continue,"
            " state what you need to know and stop.",
        )
    started = time.monotonic()
    values = context.ask(question, _form(options), timeout=timeout)
    if values is not None:
        answer = str(values.get(ANSWER, "")).strip()
        text = f"The user answers: {answer}" if answer else "The user gave an empty answer."
        data = {"answered": True, "answer": answer}
        return ToolResult((TextContent(text),), structured_content=data)
    if time.monotonic() - started >= timeout:
        return _unanswered(
            "timeout",
            f"No answer came within {timeout:g} s. Continue by your own judgement if you can, and"
            " state your assumptions in your answer.",
        )
    return _unanswered(
        "declined",
        "The user does not want to answer this. Do not ask again; continue by your own judgement or"
        " stop.",
    )


def _unanswered(why: str, text: str) -> ToolResult:
    data = {"answered": False, "why": why}
    return ToolResult((TextContent(text),), structured_content=data)


def _check(question: str, options: list[str] | None, timeout: float) -> None:
    if not question.strip():
        raise ToolValidationError("question is empty; write what you want to know.")
    if not _MIN_TIMEOUT_SECONDS <= timeout <= _MAX_TIMEOUT_SECONDS:
        raise ToolValidationError(
            f"timeout takes {_MIN_TIMEOUT_SECONDS:g} to {_MAX_TIMEOUT_SECONDS:g} seconds, not"
            f" {timeout:g}."
        )
    if options is None:
        return
    if not 2 <= len(options) <= _MAX_OPTIONS:
        raise ToolValidationError(
            f"options takes 2 to {_MAX_OPTIONS} answers to choose from, not {len(options)}; omit it"
            " to let the user answer freely."
        )
    if any(not one.strip() or len(one) > _MAX_OPTION_CHARS for one in options):
        raise ToolValidationError(
            f"each option takes 1 to {_MAX_OPTION_CHARS} characters; the question itself may be"
            " longer."
        )
    if len(set(options)) < len(options):
        raise ToolValidationError("options contains the same answer twice.")


def _form(options: list[str] | None) -> dict[str, Any]:
    field: dict[str, Any] = {"type": "string", "title": "Answer"}
    if options:
        field["enum"] = list(options)
    else:
        field["minLength"] = 1
    return {"type": "object", "properties": {ANSWER: field}, "required": [ANSWER]}


def make_ask_user() -> Tool:
    """Return the tool `ask_user`."""
    # A question changes nothing, so it may be asked again after a crash.
    return Tool.from_function(ask_user, annotations=LOCAL_READ, category="asking")


def register_asking_tools(registry: ToolRegistry | None = None) -> list[Tool]:
    """Return the asking tools, for `Agent(tools=...)`. With a `registry`, register them there
    too."""
    return register_preset(__name__, registry)


register_tool("ask_user", make_ask_user)
