"""The updates of an ACP session: what a client is shown of the items of a conversation's turns."""

from __future__ import annotations

import os
import re
from base64 import b64decode, b64encode
from binascii import Error as InvalidBase64
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

from acp import helpers
from acp.helpers import SessionUpdate, ToolCallContentVariant
from acp.schema import (
    PlanEntryStatus,
    SessionInfoUpdate,
    ToolCallLocation,
    ToolCallUpdate,
    ToolKind,
)

from holdfast import events as ev
from holdfast.agent.planning import APPROVAL
from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    FileContent,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolCall,
    ToolResult,
)
from holdfast.conversation.rests import ApprovalRequest, QuestionRequest
from holdfast.conversation.turns import AnswerPieces, CallProgress, TurnItem
from holdfast.errors import ConfigurationError, RuntimeFault
from holdfast.tools.plans import plan_of, read_steps, render_plan

TERMINAL = "acp/terminal"  # the key in a result's meta of the client's terminal that showed it

_KINDS: dict[str, ToolKind] = {
    **dict.fromkeys(("read_file", "view_image", "read_skill"), "read"),
    **dict.fromkeys(("write_file", "edit_file", "apply_patch"), "edit"),
    **dict.fromkeys(("glob", "grep", "find_tools"), "search"),
    **dict.fromkeys(("plan", "ask_user"), "think"),
    "str_replace_based_edit_tool": "edit",
}
_NAMING = ("command", "path", "pattern", "query", "url", "question", "task", "name")
_STATES: dict[str, PlanEntryStatus] = {"in_progress": "in_progress", "done": "completed"}
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_MAX_TITLE_CHARS = 120
_MAX_HUNKS = 50  # of one result; an editor shows each as a text of its own


class TextChange(NamedTuple):
    """A changed piece of a file: its path, and the text before (None: a new file) and after."""

    path: str
    before: str | None
    after: str


class SessionUpdates:
    """Translates the items of one conversation's turns. `workdir` and `visible` are its folder, as
    the client and as the agent name it."""

    def __init__(self, workdir: str, visible: str) -> None:
        self._folders = workdir, visible
        self._text, self._thought = AnswerPieces(), AnswerPieces("reasoning")

    def take(self, item: TurnItem, *, live: bool = True, own: str = "") -> Iterator[SessionUpdate]:
        """Yield the updates for an item. `live`: it happens now, and is not replayed. `own` is the
        id of the message event that the client knows, because it sent it."""
        thought, text = self._thought.take(item)[0], self._text.take(item)[0]
        if thought:
            yield helpers.update_agent_thought_text(thought)
        if text:
            yield helpers.update_agent_message_text(text)
        match item:
            case ev.MessageAdded(sender="user") if item.id != own:
                for block in item.content:
                    yield helpers.update_user_message(_block(block))
            case ev.AssistantReplied() | ev.CodeCallsMade():
                for call in item.calls:
                    yield self._start_update(call)
            case ev.DecisionMade(question=ev.Question() as question):
                yield helpers.update_agent_message_text(
                    f"{question.message} {question.url}".strip()
                )
            case ev.DecisionMade(decision="approve", question_id=""):
                if item.arguments is not None:
                    yield helpers.update_tool_call(item.call_id, raw_input=item.arguments)
            case ev.DecisionMade(decision="approve", arguments=dict() as values) if not live:
                text = ", ".join(map(str, values.values()))
                yield helpers.update_user_message_text(text)
            case ev.ToolCallStarted():
                yield helpers.update_tool_call(item.call_id, status="in_progress")
            case CallProgress():
                yield helpers.update_tool_call(item.call_id, content=_texts(item.message))
            case ev.ToolCallFinished():
                yield from self._result_updates(item.call_id, item.result, live)
            case ev.ConversationLabelled(title=str() as title):
                yield SessionInfoUpdate(session_update="session_info_update", title=title)
            case _:
                pass

    def permission(
        self, item: ApprovalRequest, read: Callable[[str], str] | None
    ) -> ToolCallUpdate:
        """Return what a client shows of a call that waits. `read` returns a file's text."""
        call = item.call
        content: list[ToolCallContentVariant] = []
        if item.reason in APPROVAL:
            content = _texts(render_plan(read_steps(call.arguments)))
        elif change := _change_of(call, read):
            content = [self._diff(change)]
        elif text := call.arguments.get("command") or call.arguments.get("patch"):
            content = _texts(_fence(str(text)))
        if item.reason and item.reason not in APPROVAL:
            content += _texts(item.reason)
        return ToolCallUpdate(
            tool_call_id=item.key,
            title=title_of(call),
            kind=kind_of(call),
            status="pending",
            content=content,
            locations=self._locations(_paths_of(call.arguments)),
            raw_input=call.arguments,
        )

    def question(self, item: QuestionRequest) -> ToolCallUpdate:
        """Return what a client without forms shows of a question."""
        text = item.question.message
        return ToolCallUpdate(tool_call_id=item.key, title=text, content=_texts(text))

    def _start_update(self, call: ToolCall) -> SessionUpdate:
        line = call.arguments.get("offset")
        return helpers.start_tool_call(
            call.id,
            title_of(call),
            kind=kind_of(call),
            status="pending",
            locations=self._locations(
                _paths_of(call.arguments), line if isinstance(line, int) and line > 0 else None
            ),
            raw_input=call.arguments,
        )

    def _result_updates(
        self, call_id: str, result: ToolResult, live: bool
    ) -> Iterator[SessionUpdate]:
        if steps := plan_of(result, {}):
            yield helpers.update_plan(
                helpers.plan_entry(step.step, status=_STATES.get(step.state, "pending"))
                for step in steps
                if step.state != "dropped"
            )
        meta, terminal = result.meta, result.meta.get(TERMINAL)
        paths = [path for path in [meta.get("path"), *meta.get("paths", ())] if path]
        content: list[ToolCallContentVariant] = []
        if terminal and live:  # of a process that lives; else its text is shown
            content = [helpers.tool_terminal_ref(terminal)]
        elif isinstance(diff := meta.get("diff"), str) and diff:
            changes = changes_in(diff, created=meta.get("created") is True)
            content = [self._diff(change) for change in changes[:_MAX_HUNKS]]
        if not content:
            as_text = _fence if "exitCode" in meta else str
            content = [
                helpers.tool_content(
                    helpers.text_block(as_text(block.text))
                    if isinstance(block, TextContent)
                    else _block(block)
                )
                for block in result.content
            ]
        yield helpers.update_tool_call(
            call_id,
            status="failed" if result.is_error else "completed",
            content=content,
            locations=self._locations(paths) or None,
            raw_output=result.structured_content,
        )

    def _diff(self, change: TextChange) -> ToolCallContentVariant:
        path = self._place(change.path)
        return helpers.tool_diff_content(path, change.after, change.before)

    def _locations(self, paths: Sequence[str], line: int | None = None) -> list[ToolCallLocation]:
        return [ToolCallLocation(path=self._place(path), line=line) for path in paths]

    def _place(self, path: str) -> str:
        """Return the client's path of a file: an absolute one."""
        workdir, visible = self._folders
        if workdir != visible and path.startswith(f"{visible}/"):
            path = path[len(visible) + 1 :]
        return os.path.normpath(os.path.join(workdir, path))


def title_of(call: ToolCall) -> str:
    """Return one line that names a call: a command, or the tool and its main argument."""
    main = next((it for key in _NAMING if isinstance(it := call.arguments.get(key), str)), "")
    line = " ".join(main.strip().split("\n", 1)[0].split())[:_MAX_TITLE_CHARS]
    if not line:
        return call.name
    return f"`{line}`" if call.name.startswith("terminal") else f"{call.name}: {line}"


def kind_of(call: ToolCall) -> ToolKind:
    """Return the kind by which a client chooses the icon of a call."""
    if call.arguments.get("command") == "view":
        return "read"
    return "execute" if call.name.startswith("terminal") else _KINDS.get(call.name, "other")


def changes_in(diff: str, created: bool = False) -> list[TextChange]:
    """Return the changed pieces of a unified diff, one for each of its hunks."""
    changes: list[TextChange] = []
    # Not `splitlines`, which also splits at form feeds. A line that begins with a backslash says
    # that the one before it has no end.
    raw = re.findall(r"[^\n]*\n|[^\n]+", diff)
    path, lines = (
        "",
        iter(
            line.removesuffix("\n") if after.startswith("\\") else line
            for line, after in pairwise([*raw, ""])
            if not line.startswith("\\")
        ),
    )
    for line in lines:
        if line.startswith("+++ "):
            path = line[4:].rstrip("\n")
        elif header := _HUNK.match(line):
            counts = [1 if count is None else int(count) for count in header.groups()]
            texts: tuple[list[str], list[str]] = [], []
            while any(count > 0 for count in counts) and (line := next(lines, "")):
                for side, sign in enumerate("-+"):
                    if line[0] in (sign, " "):
                        counts[side] -= 1
                        texts[side].append(line[1:])
            before, after = map("".join, texts)
            changes.append(TextChange(path, None if created else before, after))
    return changes


def content_of(prompt: Sequence[Any]) -> tuple[Content, ...]:
    """Return the message of a prompt's blocks. Raises `ConfigurationError`."""
    return tuple(_content(block) for block in prompt)


def _content(block: Any) -> Content:
    match block.type:
        case "text":
            return TextContent(block.text)
        case "image":
            return ImageContent(_bytes(block.data), block.mime_type)
        case "audio":
            return AudioContent(_bytes(block.data), block.mime_type)
        case "resource_link":
            return TextContent(f"[{block.title or block.name}]({block.uri})")
        case _:
            resource = block.resource
            if hasattr(resource, "text"):
                text = f"{resource.uri}:\n{_fence(resource.text)}"
                return TextContent(text)
            kind = resource.mime_type or "application/octet-stream"
            name = os.path.basename(resource.uri)
            return FileContent(_bytes(resource.blob), kind, name=name)


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except InvalidBase64 as error:
        raise ConfigurationError(f"prompt: data is not base64: {error}.") from None


def _block(block: Content) -> helpers.ContentBlock:
    """Return a block of a message or a result as the client takes it."""
    match block:
        case TextContent():
            return helpers.text_block(block.text)
        case ImageContent():
            return helpers.image_block(b64encode(block.data).decode(), block.mime_type)
        case AudioContent():
            return helpers.audio_block(b64encode(block.data).decode(), block.mime_type)
        case ResourceLink():
            return helpers.resource_link_block(block.name or block.uri, block.uri)
        case EmbeddedResource():
            resource = block.resource
            return helpers.text_block(str(resource.get("text") or resource.get("uri", "")))
        case FileContent():
            return helpers.text_block(f"[{block.name or block.url or block.mime_type}]")


def _texts(text: str) -> list[ToolCallContentVariant]:
    return [helpers.tool_content(helpers.text_block(text))]


def _fence(text: str) -> str:
    """Return a text as a block of code in Markdown."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.rstrip()}\n{fence}"


def _paths_of(arguments: dict[str, Any]) -> list[str]:
    path = arguments.get("path")
    return [path] if isinstance(path, str) and path else []


def _change_of(call: ToolCall, read: Callable[[str], str] | None) -> TextChange | None:
    """Return the change that a call would make, if its arguments say it."""
    fields = call.arguments
    path = fields.get("path")
    old, new = fields.get("old", fields.get("old_str")), fields.get("new", fields.get("new_str"))
    text = fields.get("content", fields.get("file_text"))
    if not isinstance(path, str) or kind_of(call) != "edit":
        return None
    if isinstance(old, str):
        return TextChange(path, old, cast("str", new or ""))
    if not isinstance(text, str):
        return None
    before = None
    if read is not None:
        try:
            before = read(path)
        except (RuntimeFault, ValueError):
            pass  # a new file, or no text
    return TextChange(path, before, text)
