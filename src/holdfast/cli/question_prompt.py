"""Prompts for the questions of a running call: the question, and its form field by field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from holdfast.cli.dialog import Dialog
from holdfast.cli.render import as_json
from holdfast.cli.signals import PromptWithdrawn
from holdfast.cli.text import GAP, clip, one_line, plain, plain_line, styled
from holdfast.errors import ConfigurationError, Conflict
from holdfast.events import Question
from holdfast.tools.question_forms import HIDDEN, complete_answer, form_fields, is_secret

if TYPE_CHECKING:
    from holdfast.cli.dialog import AnyConversation

_DECLINE = "/decline"
_KINDS = {
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
    dialog: Dialog,
    conversation: AnyConversation,
    question: Question,
    interrupt: Callable[[], None],
    heading: str = "",
) -> None:
    """Ask a waiting question, below a heading. Ctrl-D declines, Ctrl-C calls `interrupt`."""
    dialog.catch_up()
    form = _Form(dialog, conversation, question, plain_line(question.asker) or "a tool")
    if form.is_withdrawn():
        return
    if heading:
        dialog.console.notice(heading, "dim")
    dialog.console.forget_typed()  # input typed before the question appeared is not its answer
    try:
        form.settle(form.ask())
    except (EOFError, _Declined):
        dialog.console.notice("declined.", "dim")
        form.settle(None)
    except KeyboardInterrupt:
        dialog.console.notice("")
        interrupt()
    except PromptWithdrawn:
        dialog.console.notice("")
        dialog.console.forget_typed()
        dialog.console.notice("The question no longer waits for an answer.", "dim")


class _Form(NamedTuple):
    """One question, from its first line to its answer."""

    dialog: Dialog
    conversation: AnyConversation
    question: Question
    asker: str

    def ask(self) -> dict[str, Any]:
        """Show the question and return the answer. Raises `_Declined`."""
        question, asker, console = self.question, self.asker, self.dialog.console
        message = plain(question.message).replace("\n", "\n  ")
        console.show([GAP, *styled("call", f"{asker} asks: {message}")])
        if question.url:
            console.line(f"  {plain_line(question.url)}")
            trust = f"Open this address yourself if you trust {asker}, which gave it"
            console.notice(f"{trust}; Holdfast does not open it.", "dim")
            return self._yes("Done? [y,n] ")
        if not form_fields(question.schema):
            return self._yes("[y,n] ")
        console.notice(
            f"{asker} receives the values that you fill in. Enter takes the value in [ ];"
            f" {_DECLINE} or Ctrl-D declines.",
            "dim",
        )
        return self._values()

    def _values(self) -> dict[str, Any]:
        """Return the values that the user filled in and confirmed."""
        console, fields = self.dialog.console, form_fields(self.question.schema)
        while True:
            read = {name: self._field(name, field) for name, field in fields.items()}
            values = {name: value for name, value in read.items() if value is not None}
            try:
                complete_answer("The answer", self.question.schema, values)
            except ConfigurationError as error:
                console.notice(one_line(str(error)), "error")
                continue
            secret = dict.fromkeys([key for key in values if is_secret(fields[key])], HIDDEN)
            console.line(f"  {as_json({**values, **secret})}")
            answer = self._choice(
                f"Send this to {self.asker}? [y,n,e] ",
                "yne",
                "[y] send it, [n] decline, [e] fill it in again",
            )
            if answer == "n":
                raise _Declined
            if answer == "y":
                return values

    def settle(self, values: dict[str, Any] | None) -> None:
        """Give the answer; None declines."""
        try:
            self.conversation.answer(self.question.id, values)
        except (ConfigurationError, Conflict) as error:
            self.dialog.console.notice(one_line(str(error)), "error")

    def _yes(self, prompt: str) -> dict[str, Any]:
        if self._choice(prompt, "yn", "[y] yes, [n] decline") == "n":
            raise _Declined
        return {}

    def _choice(self, prompt: str, letters: str, options: str) -> str:
        while True:
            answer = self._line(prompt).strip().lower()
            if answer and (answer in letters or answer in ("yes", "no")):
                return answer[0]
            self.dialog.console.notice(options, "dim")

    def _line(self, prompt: str, secret: bool = False) -> str:
        line = self.dialog.ask(prompt, self.is_withdrawn, hidden=secret)
        if line.strip() == _DECLINE:
            raise _Declined
        return line

    def is_withdrawn(self) -> bool:
        """Return True if the question no longer waits."""
        waiting = self.conversation.state.pending_questions
        return all(question.id != self.question.id for _, question in waiting)

    def _field(self, name: str, field: Mapping[str, Any]) -> Any:
        """Return the value of one field, None for a field that is left out."""
        console, label = self.dialog.console, plain_line(str(field.get("title") or name))
        about = str(field.get("description") or "")
        if about:
            console.show(styled("dim", plain(about), "  "))
        choices = _choices(field)
        for number, (value, title) in enumerate(choices, 1):
            exact = f" ({as_json(value)})" if title != value else ""
            console.line(f"  {number}  {plain_line(title)}{exact}")
        default = field.get("default")
        needed = name in ((self.question.schema or {}).get("required") or ())
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
    if not isinstance(place, dict):
        return []
    place = cast("dict[str, Any]", place)
    titled: Any = place.get("oneOf") or place.get("anyOf")
    if isinstance(titled, list):
        alternatives = cast("list[Any]", titled)
        choices: list[dict[str, Any]] = [
            one for one in alternatives if isinstance(one, dict) and "const" in one
        ]
        return [(one["const"], str(one.get("title") or one["const"])) for one in choices]
    values: Any = place.get("enum")
    if not isinstance(values, list):
        return []
    values = cast("list[Any]", values)
    titles: Any = place.get("enumNames")
    fit = isinstance(titles, list) and len(cast("list[Any]", titles)) == len(values)
    titles = cast("list[Any]", titles) if fit else values
    return [(value, str(title)) for value, title in zip(values, titles, strict=True)]


def _kind(field: Mapping[str, Any], choices: list[tuple[Any, str]]) -> str:
    kind = str(field.get("type") or "text")
    if choices:
        return "several, separated by commas" if kind == "array" else "one of these"
    if is_secret(field):
        return "secret"
    return str(field.get("format") or "") or _KINDS.get(kind, kind)


def _read(line: str, field: Mapping[str, Any], choices: list[tuple[Any, str]]) -> Any:
    """Convert the typed line to the field's type. Raises `ValueError`."""
    word, kind = line.strip(), field.get("type")
    if choices and kind == "array":
        return [_chosen(one.strip(), choices) for one in word.split(",") if one.strip()]
    if choices:
        return _chosen(word, choices)
    match kind:
        case "boolean":
            answer = _BOOLEANS.get(word.lower())
            if answer is None:
                raise ValueError("Type y or n.")
            return answer
        case "integer" | "number":
            try:
                value = int(word) if kind == "integer" else float(word)
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                whole = "whole " if kind == "integer" else ""
                raise ValueError(f"That is not a {whole}number.")
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
