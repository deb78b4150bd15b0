"""Commands over HTTP. Each route is a row of a table: its path, the command that it gives to the
conversation, and its description. One endpoint decodes and executes all of them."""

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast import commands as cmd
from holdfast.errors import ConfigurationError, NotPending
from holdfast.server import bodies
from holdfast.server.guard import refused
from holdfast.server.host import Host
from holdfast.server.intake import SMALL_BODY_BYTES
from holdfast.server.routes import CallId, Client, Id, Key, RouteTable


class CommandRoute(NamedTuple):
    """One route. The command's fields are those of the body. On a route with `{call_id}`, the
    call's id comes from the path and the `runner` from the client's header.

    With `state_error` a `ConfigurationError` is a conflict with the conversation's state, because
    the request itself is seldom wrong.
    """

    path: str
    command: type[cmd.Command]
    name: str
    summary: str
    description: str
    takes: type[msgspec.Struct] | None = None
    example: Any = None
    largest: int | None = SMALL_BODY_BYTES
    takes_key: bool = True
    state_error: bool = True


CALLS = (
    CommandRoute(
        "approve",
        cmd.Approve,
        "approve_call",
        "Approve a waiting call",
        """Approves the named call, or all calls that wait. `arguments` replaces a call's
        arguments. The approval is bound to the hash of the arguments.""",
        bodies.ApproveRequest,
        {"callId": "3.0"},
    ),
    CommandRoute(
        "reject",
        cmd.Reject,
        "reject_call",
        "Reject a waiting call",
        "The model receives the reason.",
        bodies.RejectRequest,
        {"reason": "Not on main."},
    ),
    CommandRoute(
        "answer",
        cmd.Answer,
        "answer_question",
        "Answer a call's question",
        "Null values decline the question.",
        bodies.AnswerRequest,
        {"questionId": "3.0?1", "values": {"city": "Ghent"}},
    ),
    CommandRoute(
        "calls/{call_id}/claim",
        cmd.Claim,
        "claim_call",
        "Claim an offered call",
        """Only one of the clients that claim a call gets it and runs it. A repeated claim by the
        same client succeeds.""",
        takes_key=False,
    ),
    CommandRoute(
        "calls/{call_id}/result",
        cmd.Return,
        "return_call",
        "Send the result of a claimed call",
        "Only the client that claimed the call may send its result.",
        bodies.ResultRequest,
        {
            "result": {"content": [{"type": "text", "text": "21 degrees"}], "isError": False},
            "duration": 0.4,
        },
        largest=None,
    ),
)
RUNS = (
    CommandRoute(
        "pause",
        cmd.Pause,
        "pause_conversation",
        "Pause after the running step",
        "Stops the conversation after the running step.",
    ),
    CommandRoute(
        "resume",
        cmd.Resume,
        "resume_conversation",
        "Resume after a pause or an error",
        "Like `Conversation.resume`.",
    ),
    CommandRoute(
        "interrupt",
        cmd.Interrupt,
        "interrupt_conversation",
        "Pause at once",
        "Cancels running work.",
    ),
    CommandRoute(
        "condense",
        cmd.Condense,
        "condense_conversation",
        "Condense a conversation",
        "Like `Conversation.condense`. A `condensation` event reports the outcome.",
        bodies.CondenseRequest,
        {"instructions": "Keep the ticket numbers."},
    ),
    CommandRoute(
        "labels",
        cmd.Label,
        "label_conversation",
        "Set the title, add and remove tags",
        "Like `Conversation.rename`, `tag` and `untag`.",
        bodies.LabelRequest,
        {"title": "Dates that fail", "add": ["bug", "customer=acme"]},
    ),
    CommandRoute(
        "ask",
        cmd.Ask,
        "ask_conversation",
        "Ask the model a question aside",
        """Like `Conversation.ask`. An `asideAnswered` event with the same `aside` reports the
        outcome.""",
        bodies.AskRequest,
        {"question": "What are you doing?", "aside": "a1"},
    ),
)
TIMERS = (
    CommandRoute(
        "timers",
        cmd.Schedule,
        "schedule_message",
        "Send a message later",
        """Sets a timer, like `Conversation.schedule`. When it is due, the server runs the
        conversation, unless it is paused.""",
        bodies.ScheduleRequest,
        {"text": "Write the report.", "cron": "0 9 * * mon-fri", "timezone": "Europe/Berlin"},
        largest=None,
        state_error=False,
    ),
    CommandRoute(
        "timers/cancel",
        cmd.CancelTimer,
        "cancel_timer",
        "Cancel a timer",
        "Like `Conversation.cancel_timer`.",
        bodies.CancelTimerRequest,
        {"timer": "report"},
    ),
)


def table(rows: Sequence[CommandRoute], tag: str) -> RouteTable:
    """Return the routes of rows."""
    routes = RouteTable("/api/conversations/{id}/", tag)
    for row in rows:
        routes.post(
            row.path,
            row.summary,
            example=row.example,
            largest=row.largest,
            answer_example={"status": "running"},
            conflicts=True,
            state_error=row.state_error,
            client="{call_id}" not in row.path,
        )(_endpoint(row))
    return routes


def _endpoint(row: CommandRoute) -> Any:
    def execute(
        host: Host, tenant: str, id: str, body: Any = None, key: str | None = None, **fields: Any
    ) -> bodies.StatusReply:
        if isinstance(body, bodies.ApproveRequest | bodies.RejectRequest) and body.call_id == "":
            raise NotPending("Call '' does not wait for a decision.")
        if isinstance(body, bodies.ScheduleRequest):
            host.execute(tenant, id, body.command(host.now()), key)
            return bodies.StatusReply(host.status(tenant, id))
        for name, value in ({} if body is None else msgspec.structs.asdict(body)).items():
            # A decision that names no call is about all, one without a hash about the present one.
            fields[name] = "" if value is None and name in ("call_id", "arguments_hash") else value
        try:
            command = row.command(**fields)
        except ConfigurationError as error:  # wrong in any state
            raise refused(422, str(error)) from error
        host.execute(tenant, id, command, key)
        return bodies.StatusReply(host.status(tenant, id))

    types: dict[str, Any] = {"host": Host, "tenant": str, "id": Id}
    types |= {"call_id": CallId, "runner": Client} if "{call_id}" in row.path else {}
    types |= {"body": row.takes} if row.takes is not None else {}
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind, annotation=type) for name, type in types.items()]
    if row.takes_key:
        parameters.append(inspect.Parameter("key", kind, annotation=Key, default=None))
    endpoint: Any = execute
    endpoint.__name__, endpoint.__doc__ = row.name, row.description
    endpoint.__signature__ = inspect.Signature(parameters, return_annotation=bodies.StatusReply)
    return endpoint
