"""The JSON and the exit codes of hook commands that were written for Claude Code or OpenHands.

| exit code | meaning in both |
|---|---|
| 0 | standard output may be a JSON object with a decision |
| 2 | denied; the reason is in the JSON or on standard error |
| up to 125 | the command failed, which stops nothing; a note says so |
| above | a shell found no command, or a signal ended it: denied, like any hook that fails |
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from holdfast import patches
from holdfast.content import TextContent, ToolResult
from holdfast.errors import RuntimeFault
from holdfast.nesting import MAX_DEPTH, too_deep
from holdfast.tools.context import ToolContext
from holdfast.tools.hook_answers import HookAnswer, HookFailed, HookPlace
from holdfast.tools.json_values import as_object
from holdfast.tools.results import clean

DENY_EXIT_CODE = 2  # failures of a shell or of Python have other codes
_NOT_RUN = 126  # from this exit code of a shell on, the command did not come to its own end
_MAX_TEXT_CHARS = 10_000  # of a text that a command gives for the model or the journal
_EDITOR = "str_replace_based_edit_tool"
_DENIALS = ("deny", "block")
_ASKS = ("ask", "defer")
_ALL = ("", "*")  # matchers that fit everything
_NAMES = re.compile(r"[A-Za-z0-9_|]+")
_DECISIONS = ("allow", "approve", *_DENIALS, *_ASKS)


class HookOutput(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: bytes
    err: bytes


class ForeignFormat(Protocol):
    """The form of input and output of another system's hook commands."""

    def requests(
        self, moment: dict[str, Any], folder: str, matcher: str
    ) -> Iterator[dict[str, Any]]:
        """Yield the command's inputs for Holdfast's description of a moment. There are none if that
        system runs no hook then, or if its `matcher` does not fit; several for a patch of several
        files. `folder` is the work folder."""
        ...

    def variables(self, request: dict[str, Any], folder: str) -> dict[str, str]:
        """Return the environment variables that the system sets for its commands."""
        ...

    def transcript(self, moment: dict[str, Any]) -> bytes:
        """Return the content of the file at `transcript_path`; b"" for no file."""
        ...

    def answer(
        self,
        ran: HookOutput,
        moment: dict[str, Any],
        place: HookPlace,
        context: ToolContext,
        name: str,
    ) -> HookAnswer | None:
        """Return the answer of a command that ended with 0 or `DENY_EXIT_CODE`. Raises
        `HookFailed`."""
        ...


EVENTS: Mapping[tuple[str, str], str] = {
    ("tool", "before"): "PreToolUse",
    ("tool", "after"): "PostToolUse",
    ("message", "before"): "UserPromptSubmit",
    ("stop", "before"): "Stop",
    ("condensation", "before"): "PreCompact",
    ("start", "before"): "SessionStart",
    ("end", "before"): "SessionEnd",
}


class _Name(NamedTuple):
    """Another system's name of a tool. `keys` are its names of arguments that have another name
    here. `more` are arguments of that system alone, `less` of Holdfast alone."""

    tool: str
    keys: Mapping[str, str] = {}
    more: Mapping[str, Any] = {}
    less: Mapping[str, Any] = {}

    def to_foreign(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the other system's arguments."""
        own = {key: value for key, value in arguments.items() if key not in self.less}
        return {**self.more, **{self.keys.get(key, key): value for key, value in own.items()}}

    def from_foreign(self, foreign: Mapping[str, Any]) -> dict[str, Any]:
        """Return Holdfast's arguments."""
        back = {theirs: ours for ours, theirs in self.keys.items()}
        own = {key: value for key, value in foreign.items() if key not in self.more}
        return {**self.less, **{back.get(key, key): value for key, value in own.items()}}


_FILE = {"path": "file_path"}
# By tool, and for `str_replace_based_edit_tool` by its command.
_CLAUDE_TOOLS: Mapping[str, _Name] = {
    "terminal": _Name("Bash"),
    "terminal_background": _Name("Bash", {}, {"run_in_background": True}),
    "terminal_input": _Name("Bash", {"text": "command"}),
    "terminal_collect": _Name("BashOutput", {"id": "bash_id"}),
    "read_file": _Name("Read", _FILE),
    "view_image": _Name("Read", _FILE),
    "write_file": _Name("Write", _FILE),
    "edit_file": _Name("Edit", {**_FILE, "old": "old_string", "new": "new_string"}),
    f"{_EDITOR} view": _Name("Read", _FILE, {}, {"command": "view"}),
    f"{_EDITOR} create": _Name(
        "Write", {**_FILE, "file_text": "content"}, {}, {"command": "create"}
    ),
    f"{_EDITOR} str_replace": _Name(
        "Edit",
        {**_FILE, "old_str": "old_string", "new_str": "new_string"},
        {},
        {"command": "str_replace"},
    ),
    f"{_EDITOR} insert": _Name(
        "Edit", {**_FILE, "insert_text": "new_string"}, {"old_string": ""}, {"command": "insert"}
    ),
    "glob": _Name("Glob"),
    "grep": _Name("Grep"),
    "plan": _Name("TodoWrite"),
    "delegate": _Name("Task", {"agent": "subagent_type", "task": "prompt"}),
}
_OPENHANDS_TOOLS: Mapping[str, _Name] = {
    "terminal_background": _Name("terminal"),
    "terminal_input": _Name("terminal", {"text": "command"}, {"is_input": True}),
    "read_file": _Name("file_editor", {}, {"command": "view"}),
    "write_file": _Name("file_editor", {"content": "file_text"}, {"command": "create"}),
    "edit_file": _Name(
        "file_editor", {"old": "old_str", "new": "new_str"}, {"command": "str_replace"}
    ),
    _EDITOR: _Name("file_editor"),
}


class ClaudeCode:
    """The hook commands of Claude Code."""

    def requests(
        self, moment: dict[str, Any], folder: str, matcher: str
    ) -> Iterator[dict[str, Any]]:
        """See `ForeignFormat.requests`."""
        event = EVENTS[moment["on"], moment["when"]]
        fields: dict[str, Any] = {
            "session_id": moment["conversation_id"],
            "transcript_path": "",
            "cwd": folder,
            "permission_mode": "default",
            "hook_event_name": event,
        }
        match moment["on"]:
            case "tool":
                call, result = moment["call"], cast("ToolResult | None", moment.get("result"))
                if result is not None and result.is_error:
                    return
                for name, arguments in _claude_calls(call["name"], call["arguments"], folder):
                    if not _fits(matcher, name):
                        continue
                    one = {"tool_name": name, "tool_input": arguments, "tool_use_id": call["id"]}
                    if result is not None:
                        one["tool_response"] = {
                            "success": True,
                            "content": result.content,
                            "stdout": result.text,
                            "stderr": "",
                            "interrupted": False,
                        }
                        if "file_path" in arguments:
                            one["tool_response"]["filePath"] = arguments["file_path"]
                    yield {**fields, **one}
                return
            case "message":
                fields["prompt"] = moment["text"]
            case "stop":
                fields["stop_hook_active"] = moment["denied"] > 0
                fields["last_assistant_message"] = moment["text"]
            case "condensation":
                fields["trigger"] = "manual" if "requested" in moment["reason"] else "auto"
                fields["custom_instructions"] = moment["instructions"]
            case "start":
                fields["source"] = "resume" if moment["reopened"] else "startup"
            case _:
                fields["reason"] = "other"
        kinds = [fields[key] for key in ("trigger", "source", "reason") if key in fields]
        if all(_fits(matcher, kind) for kind in kinds):
            yield fields

    def variables(self, request: dict[str, Any], folder: str) -> dict[str, str]:
        """See `ForeignFormat.variables`."""
        return {"CLAUDE_PROJECT_DIR": folder}

    def transcript(self, moment: dict[str, Any]) -> bytes:
        """Return the messages, calls and results at a stop, one a line."""
        lines: list[dict[str, Any]] = []
        for event in msgspec.json.decode(msgspec.json.encode(moment.get("events", ()))):
            role, content = "user", event.get("content", [])
            match event["type"]:
                case "message":
                    pass
                case "assistant":
                    role, text = "assistant", event.get("text", "")
                    content = [{"type": "text", "text": text}] if text else []
                    content += [_tool_use(call) for call in event.get("calls", ())]
                case "toolResult":
                    text = "\n".join(one.get("text", "") for one in event["result"]["content"])
                    content = [
                        {"type": "tool_result", "tool_use_id": event["callId"], "content": text}
                    ]
                case _:
                    continue
            message = {"role": role, "content": content}
            lines.append({"type": role, "message": message, "uuid": event["id"]})
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)

    def answer(
        self,
        ran: HookOutput,
        moment: dict[str, Any],
        place: HookPlace,
        context: ToolContext,
        name: str,
    ) -> HookAnswer | None:
        """See `ForeignFormat.answer`."""
        on = moment["on"]
        output = _output(ran)
        special = as_object(output.get("hookSpecificOutput"))
        if message := _text(output, "systemMessage"):
            context.note(f"hook:{name}", message, {"on": on})
        context_text = _text(special, "additionalContext") or _text(output, "additionalContext")
        is_text = not ran.out.lstrip().startswith(b"{")
        if is_text and ran.code == 0 and on in ("message", "start"):
            context_text = _as_text(ran.out)  # there a plain text is for the model
        reason = _text(special, "permissionDecisionReason") or _text(output, "reason")
        decision = _decision(special, "permissionDecision") or _decision(output, "decision")
        halts = _halts(ran, output)
        if halts and on == "stop":
            return None  # the run ends, whatever else the command says
        if halts or ran.code == DENY_EXIT_CODE:
            decision = "deny"
            reason = reason or _text(output, "stopReason") or _as_text(ran.err) or message
        if on == "stop" and context_text and decision not in _DENIALS:
            decision, reason = "deny", context_text  # feedback, after which the work continues
        if decision in _ASKS:
            decision = _ask_user(context, reason, moment)
        if decision in _DENIALS:
            return _denial(moment, reason or message, context_text, place)
        return HookAnswer(None, context_text * place.adds, _claude_change(moment, special))


class OpenHands:
    """The hook commands of OpenHands."""

    def requests(
        self, moment: dict[str, Any], folder: str, matcher: str
    ) -> Iterator[dict[str, Any]]:
        """See `ForeignFormat.requests`."""
        event = EVENTS[moment["on"], moment["when"]]
        fields: dict[str, Any] = {
            "event_type": event,
            "tool_name": None,
            "tool_input": None,
            "tool_response": None,
            "message": None,
            "session_id": moment["conversation_id"],
            "working_dir": folder,
            "metadata": {},
        }
        match moment["on"]:
            case "condensation":
                return
            case "tool":
                call, result = moment["call"], cast("ToolResult | None", moment.get("result"))
                if result is not None and result.is_error:
                    return
                name = _OPENHANDS_TOOLS.get(call["name"], _Name(call["name"]))
                arguments = name.to_foreign(call["arguments"])
                fields |= {"tool_name": name.tool, "tool_input": arguments}
                if result is not None:
                    fields["tool_response"] = {"content": result.content, "is_error": False}
            case "message":
                fields["message"] = moment["text"]
            case "stop":
                fields["metadata"] = {"reason": "finish"}
            case _:
                pass
        if matcher in _ALL or re.fullmatch(regex(matcher), fields["tool_name"] or ""):
            yield fields

    def variables(self, request: dict[str, Any], folder: str) -> dict[str, str]:
        """See `ForeignFormat.variables`."""
        variables = {
            "OPENHANDS_PROJECT_DIR": folder,
            "OPENHANDS_SESSION_ID": request["session_id"],
            "OPENHANDS_EVENT_TYPE": request["event_type"],
        }
        name = request["tool_name"]
        return {**variables, "OPENHANDS_TOOL_NAME": name} if name else variables

    def transcript(self, moment: dict[str, Any]) -> bytes:
        """Return b"": OpenHands has none."""
        return b""

    def answer(
        self,
        ran: HookOutput,
        moment: dict[str, Any],
        place: HookPlace,
        context: ToolContext,
        name: str,
    ) -> HookAnswer | None:
        """See `ForeignFormat.answer`."""
        output = _output(ran)
        added = _text(output, "additionalContext")
        reason = _text(output, "reason")
        denies = ran.code == DENY_EXIT_CODE or _halts(ran, output)
        decision = "deny" if denies else _decision(output, "decision")
        if decision in _ASKS:
            decision = _ask_user(context, reason, moment)
        if decision in _DENIALS:
            return _denial(moment, reason or _as_text(ran.err), added, place)
        return HookAnswer(None, added * place.adds)


def regex(matcher: str) -> str:
    """Return the regular expression of a matcher of OpenHands, which may stand between slashes."""
    bare = len(matcher) > 2 and matcher[0] == matcher[-1] == "/"
    return matcher[1:-1] if bare else matcher


def _fits(matcher: str, name: str) -> bool:
    """Return True if a matcher of Claude Code fits: names with `|`, or a regular expression for a
    part of the name."""
    if _NAMES.fullmatch(matcher):
        return name in matcher.split("|")
    return matcher in _ALL or re.search(matcher, name) is not None


FOREIGN: Mapping[str, ForeignFormat] = {"claude-code": ClaudeCode(), "openhands": OpenHands()}


def _denial(moment: dict[str, Any], reason: str, added: str, place: HookPlace) -> HookAnswer | None:
    """Return the answer of a command that denies. After a call it is too late to deny; the model is
    then shown the reason beside the result."""
    on, after = moment["on"], moment["when"] == "after"
    if after:
        return HookAnswer(None, "\n".join(text for text in (reason, added) if text))
    if not place.denies:
        return None
    if on == "stop":
        return HookAnswer(added or reason)
    return HookAnswer(reason, added * place.adds)


def note_failure(ran: HookOutput, context: ToolContext, name: str) -> None:
    """Note a command that failed, or raise `HookFailed` for one that was killed or not found."""
    if not 0 <= ran.code < _NOT_RUN:
        raise HookFailed(f"failed: the command ended with {ran.code}: {_as_text(ran.err)}")
    text = f"the command ended with exit code {ran.code}, which denies nothing"
    context.note(f"hook:{name}", f"{text}: {_as_text(ran.err)}", {"failed": True})


def _output(ran: HookOutput) -> dict[str, Any]:
    """Return the JSON object that a command printed; an empty one for a plain text. Raises
    `HookFailed` for a broken object and a list, unless the exit code speaks for itself."""
    out = ran.out.removeprefix(b"\xef\xbb\xbf").strip()  # some programs print a byte order mark
    if not out.startswith((b"{", b"[")) or (out[:1] == b"[" and not _is_json(out)):
        return {}
    try:
        if too_deep(out):
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
        return msgspec.json.decode(out, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        if ran.code == 0:
            raise HookFailed(f"failed: the command's output is not JSON: {error}") from error
        return {}


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except ValueError:
        return False
    except RecursionError:  # nested deeply, and no plain text
        pass
    return True


def _halts(ran: HookOutput, output: dict[str, Any]) -> bool:
    """Return whether a command's `continue` is false. Raises `HookFailed` for a value that is no
    boolean, unless the exit code speaks for itself."""
    value = output.get("continue")
    if value is not None and not isinstance(value, bool) and ran.code == 0:
        raise HookFailed("failed: the command printed a continue that is neither true nor false")
    return value is False


def _text(fields: dict[str, Any], key: str) -> str:
    value = fields.get(key)
    return "" if value is None else clean(str(value))[:_MAX_TEXT_CHARS]


def _as_text(data: bytes) -> str:
    return clean(data.decode("utf-8", "replace").strip())[:_MAX_TEXT_CHARS]


def _decision(fields: dict[str, Any], key: str) -> str:
    """Return a decision, "" if there is none. Raises `HookFailed` for an unknown one, which may
    have been meant as a denial."""
    value = fields.get(key)
    if value is None:
        return ""
    decision = str(value).lower()
    if decision not in _DECISIONS:
        raise HookFailed(f"failed: the command printed the {key} {decision[:80]!r}")
    return decision


def _ask_user(context: ToolContext, reason: str, moment: dict[str, Any]) -> str:
    """Ask the user about a call, and return the decision."""
    call = moment.get("call", {})
    arguments = msgspec.json.encode(call.get("arguments", {})).decode()[:2000]
    question = f"{reason or 'A hook asks for your approval.'}\n{call.get('name', '')} {arguments}"
    return "deny" if context.ask(question) is None else "allow"


def _claude_calls(
    name: str, arguments: dict[str, Any], folder: str
) -> list[tuple[str, dict[str, Any]]]:
    """Return a call with Claude Code's names of the tool and its arguments, paths absolute; one for
    each file of a patch. Raises `HookFailed` for a patch that cannot be read."""
    if name == "apply_patch" and isinstance(arguments.get("patch"), str):
        try:
            return [
                one for file in patches.parse(arguments["patch"]) for one in _edits(file, folder)
            ]
        except RuntimeFault as error:
            raise HookFailed(f"failed: {error}") from error
    foreign_name = _claude_name(name, arguments)
    if foreign_name is None:
        server, dot, tool = name.partition(".")
        return [(f"mcp__{server}__{tool}" if dot else name, arguments)]
    foreign_arguments = foreign_name.to_foreign(arguments)
    if isinstance(path := foreign_arguments.get("file_path"), str):
        foreign_arguments["file_path"] = _path(folder, path)
    return [(foreign_name.tool, foreign_arguments)]


def _tool_use(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call.get("arguments", {})
    foreign_name = _claude_name(call["name"], arguments) or _Name(call["name"])
    input = foreign_name.to_foreign(arguments)
    return {"type": "tool_use", "id": call["id"], "name": foreign_name.tool, "input": input}


def _path(folder: str, path: str) -> str:
    return os.path.normpath(os.path.join(folder, path))


def _claude_name(name: str, arguments: Mapping[str, Any]) -> _Name | None:
    return _CLAUDE_TOOLS.get(f"{name} {arguments.get('command')}" if name == _EDITOR else name)


def _edits(file: patches.FilePatch, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the change of one file as calls of `Write` and `Edit`."""
    old, new = ("\n".join(line for one in file.chunks for line in one.side(it)) for it in "-+")
    path = {"file_path": _path(folder, file.path)}
    if file.kind == "add":
        yield "Write", {**path, "content": new}
    else:
        yield "Edit", {**path, "old_string": old, "new_string": new}
    if file.move_to:
        yield "Write", {"file_path": _path(folder, file.move_to), "content": new}


def _claude_change(moment: dict[str, Any], special: dict[str, Any]) -> Any:
    """Return the changed arguments or result of a call; None for no change."""
    if moment["on"] != "tool":
        return None
    if moment["when"] == "after":
        output = special.get("updatedToolOutput")
        if output is None:
            return None
        text = output if isinstance(output, str) else msgspec.json.encode(output).decode()
        return ToolResult((TextContent(clean(text)),))
    updated_input: Any = special.get("updatedInput")
    if updated_input is None:
        return None
    if not isinstance(updated_input, dict):
        raise HookFailed("failed: the command printed an updatedInput that is not an object")
    call = moment["call"]
    if call["name"] == "apply_patch":
        raise HookFailed("failed: the command printed an updatedInput, and this is a patch")
    name = _claude_name(call["name"], call["arguments"]) or _Name(call["name"])
    return name.from_foreign(cast("dict[str, Any]", updated_input))
