"""An agent as one tool, `ask_{name}`, for MCP clients: `ToolServer` serves it like any other.

A call is a turn of a conversation. Approvals and questions are asked of the client's user, where
the client can; otherwise the result says what waits. The conversation's id continues it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.content import TextContent, ToolResult
from holdfast.conversation.rests import (
    ApprovalRequest,
    PendingItem,
    QuestionRequest,
    Rest,
    TurnCommand,
)
from holdfast.conversation.turns import CallProgress, TurnItem
from holdfast.errors import ConversationNotFound, ToolValidationError
from holdfast.serve.door import LocalDoor, LocalSession
from holdfast.serve.elicitation import McpQuestions
from holdfast.tools.context import ToolContext
from holdfast.tools.policy import ToolAnnotations
from holdfast.tools.running import start_thread
from holdfast.tools.tool import Tool

APPROVAL = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Let the agent do this"},
        "reason": {"type": "string", "title": "Reason, if not"},
    },
    "required": ["approve"],
}
_SCHEMA = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "What the agent is to do or to answer."},
        "conversation_id": {
            "type": "string",
            "description": "Continues the conversation of an earlier call. Alone, without a"
            " message, it continues unfinished work, after a crash for example.",
        },
    },
    "additionalProperties": False,
}


def tag_of(name: str) -> str:
    """Return the tag of the conversations that clients have begun with an agent of this name."""
    return f"mcp={name}"[:100]


def agent_tool(door: LocalDoor, name: str, description: str = "") -> Tool:
    """Return the tool `ask_{name}` that asks the agent of a door. `name` is shortened to letters,
    digits and `_-`."""
    tag = tag_of(name)

    def ask(context: ToolContext, message: str = "", conversation_id: str = "") -> ToolResult:
        session = session_of(door, message, conversation_id, tag)
        # The first message, so that a client can go on if the call's result never comes.
        context.report_progress(f"conversation_id: {session.id}")
        commands = [cmd.Send((TextContent(message),))] if message.strip() else []
        return outcome(session, _turns(session, commands, context))

    return Tool(
        f"ask_{re.sub(r'[^A-Za-z0-9_-]+', '_', name)[:100]}",
        description or f"Ask the agent {name}. It works on its own and answers when it is done.",
        ask,
        _SCHEMA,
        annotations=ToolAnnotations(open_world=True),
    )


def session_of(door: LocalDoor, message: str, id: str, tag: str) -> LocalSession:
    """Return the conversation of a call, a new one without an id. Raises `ToolValidationError`."""
    if not id:
        if not message.strip():
            raise ToolValidationError("message is missing.")
        return door.begin(tags=[tag])
    try:
        session = door.find(id)
    except ConversationNotFound as error:
        raise ToolValidationError(str(error)) from None
    if tag not in session.state().tags:
        raise ToolValidationError(f"There is no conversation {id[:100]!r} of this agent.")
    return session


def _turns(session: LocalSession, commands: Sequence[TurnCommand], context: ToolContext) -> Rest:
    """Run turns until the agent is done, or waits for an item without an answer."""
    cursor = session.conversation.state.last_seq

    def interrupt() -> None:
        start_thread(lambda: session.execute(cmd.Interrupt()), "holdfast-interrupt")

    forget = context.cancelled.add_callback(interrupt)
    try:
        while True:
            context.cancelled.raise_if_set()
            rest = _rest_of(session.turn(cursor, *commands), context)
            answers = [
                answer for one in rest.pending if (answer := _ask_user(one, session, context))
            ]
            if not answers:
                return rest
            cursor, commands = rest.seq, answers
    finally:
        forget()


def _rest_of(items: Iterable[TurnItem], context: ToolContext) -> Rest:
    """Report the progress of a turn, and return its end."""
    for item in items:
        match item:
            case CallProgress():
                context.report_progress(item.message)
            case ev.AssistantReplied(calls=calls) if calls:
                context.report_progress(f"calls {', '.join(call.name for call in calls)}")
            case Rest():
                return item
            case _:
                pass
    raise AssertionError("a turn ends with a rest")


def _ask_user(item: PendingItem, session: LocalSession, context: ToolContext) -> TurnCommand | None:
    """Ask the client's user about one thing. Return the command, or None without an answer."""
    if not context.reachable:
        return None
    if isinstance(item, ApprovalRequest):
        values = context.ask(describe(item), APPROVAL)
        if values is None:  # a form that was dismissed, or timed out, decides nothing
            asks = context.asks
            declined = isinstance(asks, McpQuestions) and asks.declined
            return item.reject("The user declined.") if declined else None
        if values.get("approve") is True:
            return item.approve()
        return item.reject(str(values.get("reason") or ""))
    if isinstance(item, QuestionRequest):
        question = item.question
        values = context.ask(question.message, question.schema, url=question.url)
        return item.decline() if values is None else item.answer(values or True)
    return None


def describe(item: PendingItem) -> str:
    """Return what waits for the user, in words."""
    if isinstance(item, QuestionRequest):
        return item.question.message
    arguments = json.dumps(item.call.arguments, ensure_ascii=False)
    return f"The agent wants to call {item.call.name} with {arguments}."


def outcome(session: LocalSession, rest: Rest) -> ToolResult:
    """Return the result of a call: the answer, and how to go on."""
    text = rest.answer if rest.output is None else json.dumps(rest.output, ensure_ascii=False)
    if rest.pending:
        waits = "\n".join(describe(item) for item in rest.pending)
        text = (
            f"{waits}\nNobody has decided yet. Call this tool again with conversation_id"
            f" {session.id!r} alone to ask the user again."
        )
    elif rest.reason != "finished":
        text = f"The run ended: {rest.reason if rest.error is None else rest.error.message}"
    data: dict[str, Any] = {"conversationId": session.id, "status": rest.status.value}
    data["answer"] = text
    if rest.output is not None:
        data["output"] = rest.output
    failed = rest.reason in ("error", "stuck")
    content = (TextContent(text or "(no text)"), TextContent(f"conversation_id: {session.id}"))
    return ToolResult(content, structured_content=data, is_error=failed)
