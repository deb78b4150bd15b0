"""Prompts for the questions of a running call: the question with its asker, the form field by
field, and the effect of an answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.cli.dialog import Dialog, edit_lines, forget_typed, without_echo
from holdfast.cli.render import as_json
from holdfast.cli.signals import PromptWithdrawn
from holdfast.cli.text import GAP, clip, one_line, plain, styled
from holdfast.errors import ConfigurationError, Conflict
from holdfast.events import Question
from holdfast.tools.question_forms import HIDDEN, complete_answer, form_fields, is_secret

if TYPE_CHECKING:
    from holdfast.cli.dialog import AnyConversation

_DECLINE = "/decline"
_WORDS = {
    "string": "text",
    "integer": "whole number",
    "boolean": "y or n",
    "array": "JSON",
    "object": "JSON",
}
_BOOLEANS = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


class _Declined(Exception):
    """The user declines to answer."""


def ask_question(
    dialog: Dialog, conversation: AnyConversation, interrupt: Callable[[], None]
) -> None:
    """Ask the first waiting question and pass on the answer. Ctrl-D declines, Ctrl-C calls
    `interrupt`. Raises `EndRequested`."""
    dialog.catch_up()
    waiting = conversation.state.pending_questions
    if not waiting:
        return
    form = _Form(dialog, conversation, waiting[0][1])
    forget_typed()  # input typed before the question appeared is not its answer
    edit_lines()
    try:
        form.ask()
    except (EOFError, _Declined):
        dialog.console.notice("declined.", "dim")
        form.settle(None)
    except KeyboardInterrupt:
        dialog.console.notice("")
        interrupt()
    except PromptWithdrawn:
        dialog.console.notice("")
        forget_typed()
        dialog.console.notice("The question no longer waits for an answer.", "dim")


class _Form:
    """One question, from its first line to its answer."""

    def __init__(self, dialog: Dialog, conversation: AnyConversation, question: Question) -> None:
        self._dialog = dialog
        self._console = dialog.console
        self._conversation = conversation
        self._question = question
        self._asker = plain(one_line(question.asker)) or "a tool"

    def ask(self) -> None:
        """Show the question, read the answer, pass it on. Raises `_Declined`, and the errors of
        `Dialog.ask`."""
        question, console = self._question, self._console
        message = plain(question.message).replace("\n", "\n  ")
        console.show([GAP, *styled("call", f"{self._asker} asks: {message}")])
        if question.url:
            console.line(f"  {plain(one_line(question.url))}")
            console.notice(
                f"Open this address yourself if you trust {self._asker}, which gave it; Holdfast"
                " does not open it.",
                "dim",
            )
            self._yes("Done? [y,n] ")
            return
        if not form_fields(question.schema):
            self._yes("[y,n] ")
            return
        console.notice(
            f"{self._asker} receives the values that you fill in. Enter takes the value in [ ];"
            f" {_DECLINE} or Ctrl-D declines.",
            "dim",
        )
        while True:
            values = {
                name: value
                for name, field in form_fields(question.schema).items()
                if (value := self._field(name, field)) is not None
            }
            shown = {
                name: HIDDEN if is_secret(field) else values[name]
                for name, field in form_fields(question.schema).items()
                if name in values
            }
            try:
                complete_answer("The answer", question.schema, values)
            except ConfigurationError as error:
                console.notice(one_line(str(error)), "error")
                continue
            console.line(f"  {as_json(shown)}")
            answer = self._choice(
                f"Send this to {self._asker}? [y,n,e] ",
                "yne",
                "[y] send it, [n] decline, [e] fill it in again",
            )
            if answer == "n":
                raise _Declined
            if answer == "y":
                self.settle(values)
                return

    def settle(self, values: dict[str, Any] | None) -> None:
        """Give the answer; None declines."""
        try:
            self._conversation.answer(self._question.id, values)
        except (ConfigurationError, Conflict) as error:
            self._console.notice(one_line(str(error)), "error")

    def _yes(self, prompt: str) -> None:
        if self._choice(prompt, "yn", "[y] yes, [n] decline") == "n":
            raise _Declined
        self.settle({})

    def _choice(self, prompt: str, letters: str, options: str) -> str:
        while True:
            answer = self._line(prompt).strip().lower()
            if answer and (answer in letters or answer in ("yes", "no")):
                return answer[0]
            self._console.notice(options, "dim")

    def _line(self, prompt: str, secret: bool = False) -> str:
        with without_echo() if secret else nullcontext():
            line = self._dialog.ask(prompt, self._gone)
        if secret:
            self._console.notice("")  # the Enter was not echoed either
        if line.strip() == _DECLINE:
            raise _Declined
        return line

    def _gone(self) -> bool:
        return all(
            question.id != self._question.id
            for _, question in self._conversation.state.pending_questions
        )

    def _field(self, name: str, field: Mapping[str, Any]) -> Any:
        """Return the value of one field, None for a field that is left out."""
        console, label = self._console, plain(one_line(str(field.get("title") or name)))
        about = str(field.get("description") or "")
        if about:
            console.show(styled("dim", plain(about), "  "))
        choices = _choices(field)
        for number, (value, title) in enumerate(choices, 1):
            exact = f" ({as_json(value)})" if title != value else ""
            console.line(f"  {number}  {plain(one_line(title))}{exact}")
        default = field.get("default")
        needed = name in ((self._question.schema or {}).get("required") or ())
        hint = "" if needed else " [optional]"
        if default is not None and not is_secret(field):
            hint = f" [{as_json(default)}]"
        prompt = f"  {clip(label, 60)} ({_kind(field, choices)}){hint}: "
        while True:
            line = self._line(prompt, is_secret(field))
            if not line.strip():
                if default is not None or not needed:
                    return default
                console.notice(f"{label} is required; {_DECLINE} declines.", "dim")
                continue
            try:
                value = _read(line, field, choices)
                form = {"type": "object", "properties": {name: dict(field)}}
                return cast("dict[str, Any]", complete_answer(label, form, {name: value}))[name]
            except (ConfigurationError, ValueError) as error:
                console.notice(one_line(str(error)), "error")


# --- field types of MCP forms (2025-11-25, Elicitation, Requested Schema) ---


def _choices(field: Mapping[str, Any]) -> list[tuple[Any, str]]:
    """Return the choices of a field, each with its title."""
    place: Any = field.get("items") if field.get("type") == "array" else field
    if not isinstance(place, Mapping):
        return []
    place = cast("Mapping[str, Any]", place)
    titled: Any = place.get("oneOf") or place.get("anyOf")
    if isinstance(titled, list):
        found = [
            cast("Mapping[str, Any]", one)
            for one in cast("list[Any]", titled)
            if isinstance(one, Mapping) and "const" in one
        ]
        return [(one["const"], str(one.get("title") or one["const"])) for one in found]
    values: Any = place.get("enum")
    if not isinstance(values, list):
        return []
    listed, names = cast("list[Any]", values), place.get("enumNames")
    titles = (
        cast("list[Any]", names)
        if isinstance(names, list) and len(cast("list[Any]", names)) == len(listed)
        else listed
    )
    return [(value, str(title)) for value, title in zip(listed, titles, strict=True)]


def _kind(field: Mapping[str, Any], choices: list[tuple[Any, str]]) -> str:
    kind = str(field.get("type") or "text")
    if choices:
        return "several, separated by commas" if kind == "array" else "one of these"
    return (
        "secret" if is_secret(field) else str(field.get("format") or "") or _WORDS.get(kind, kind)
    )


def _read(line: str, field: Mapping[str, Any], choices: list[tuple[Any, str]]) -> Any:
    """Convert the typed line to the field's type. Raises `ValueError`."""
    word, kind = line.strip(), field.get("type")
    if choices:
        return (
            [_chosen(one.strip(), choices) for one in word.split(",") if one.strip()]
            if kind == "array"
            else _chosen(word, choices)
        )
    match kind:
        case "boolean":
            found = _BOOLEANS.get(word.lower())
            if found is None:
                raise ValueError("Type y or n.")
            return found
        case "integer" | "number":
            reads: Callable[[str], Any] = int if kind == "integer" else float
            try:
                value = reads(word)
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise ValueError(
                    "That is not a whole number." if kind == "integer" else "That is not a number."
                )
            return value
        case "array" | "object":
            try:
                return msgspec.json.decode(word)
            except ValueError as error:
                raise ValueError(f"That is not JSON: {error}.") from error
        case _:
            return line


def _chosen(word: str, choices: list[tuple[Any, str]]) -> Any:
    for value, title in choices:
        if word in (title, str(value)):
            return value
    if word.isdigit() and 1 <= int(word) <= len(choices):
        return choices[int(word) - 1][0]
    raise ValueError(f"{word!r} is not one of the choices; type a number from 1 to {len(choices)}.")
