"""The commands of a store's inbox, for conversations that another process drives, and their JSON
form.

`store.post(conversation_id, Send("..."))` leaves a command. The owner of the conversation's lease
carries commands out in the order of posting, each once. A command of a newer version stays in the
inbox. A known command that cannot be decoded is read as `UnreadableCommand`. The conversation drops
it, so that no inbox keeps it for ever.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, cast

import msgspec

from holdfast.content import Content, ToolResult, blocks
from holdfast.errors import ConfigurationError
from holdfast.labels import check_tags, check_title
from holdfast.nesting import MAX_STORED_DEPTH, decode_json
from holdfast.timers import Timer, make_rule


class _Command(
    msgspec.Struct,
    frozen=True,
    rename="camel",
    omit_defaults=True,
    tag_field="command",
):
    """The base of all commands."""


def check_sender(where: str, sender: object) -> None:
    """Raise `ConfigurationError` unless `sender` may send messages. The sender `holdfast` is the
    loop itself."""
    if not isinstance(sender, str) or not sender.strip() or sender == "holdfast":
        raise ConfigurationError(
            f"{where}: sender takes 'user' or the id of a conversation, not {sender!r}."
        )


class Send(_Command, frozen=True, tag="send"):
    """A message, as with `Conversation.send_message`: a str, a content block or a list of blocks.

    `event_id` becomes the id of the `Message` event, by which its sender recognizes it; a new
    one if empty. `sender` is the id of the sending conversation, or "user".
    """

    content: tuple[Content, ...]
    event_id: str = ""
    sender: str = "user"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "content", blocks(self.content))
        if not self.content:
            raise ConfigurationError("Send takes a text or content blocks; it was given nothing.")
        check_sender("Send", self.sender)


class Approve(_Command, frozen=True, tag="approve"):
    """An approval of the call `call_id`, as with `Conversation.approve`, with other `arguments` if
    given.

    `arguments_hash` is that of the arguments that the approver reviewed
    (`ConversationState.pending_confirmations`); it must match.
    """

    call_id: str
    arguments_hash: str
    arguments: dict[str, Any] | None = None
    by: str = "user"
    reason: str = ""


class Reject(_Command, frozen=True, tag="reject"):
    """A rejection of the call `call_id`, as with `Conversation.reject`: the call does not run, and
    the model is shown the reason."""

    call_id: str
    reason: str = ""
    by: str = "user"


class Answer(_Command, frozen=True, tag="answer"):
    """An answer to the question `question_id`, as with `Conversation.answer`.

    `values` are those of its form; True says yes or takes the form's defaults. None or False
    declines, with the `reason` if one is given. Secret values of a posted answer stay in the
    inbox until it is carried out.
    """

    question_id: str
    values: dict[str, Any] | bool | None = True
    reason: str = ""
    by: str = "user"


class Claim(_Command, frozen=True, tag="claim"):
    """The client `runner` begins to run the call `call_id` of a tool whose `executor` is "client".

    Only the first claim is accepted; the same runner may repeat its own. A call cannot be
    claimed while it waits for a decision, or while the conversation is paused.
    """

    call_id: str
    runner: str

    def __post_init__(self) -> None:
        if not self.runner:
            raise ConfigurationError("Claim: runner takes the name of the client; it is empty.")


class Return(_Command, frozen=True, tag="return"):
    """The `result` of a call that `runner` claimed, `duration` seconds later. Accepted also
    while the conversation is paused."""

    call_id: str
    runner: str
    result: ToolResult
    duration: float = 0.0


class Settle(_Command, frozen=True, tag="settle"):
    """The server's result for a call that no client will answer any more. The model is shown the
    `reason`.

    The outcome of a claimed call is unknown, and its error has the type `kind`. An unclaimed
    call was not run, which is `cancelled`. With `runner` the call is settled only while that
    client has the claim ("": while no client has it).
    """

    call_id: str
    reason: str
    kind: Literal["unknown", "timeout", "cancelled"] = "unknown"
    runner: str | None = None


class Pause(_Command, frozen=True, tag="pause"):
    """A pause, as with `Conversation.pause`."""


class Resume(_Command, frozen=True, tag="resume"):
    """A resumption, as with `Conversation.resume`."""


class Interrupt(_Command, frozen=True, tag="interrupt"):
    """An interrupt, as with `Conversation.interrupt`."""


class Condense(_Command, frozen=True, tag="condense"):
    """A request for a condensation, as with `Conversation.condense`."""

    instructions: str = ""


class Ask(_Command, frozen=True, tag="ask"):
    """A question aside, as with `Conversation.ask`.

    `aside` is its id, by which the asker recognizes the `AsideAnswered` event; a new one if
    empty.
    """

    question: str
    aside: str = ""

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise ConfigurationError("Ask takes a question; it was given an empty text.")


class Use(_Command, frozen=True, tag="use"):
    """The agent or model that answers from the next step on, as with `Conversation.use`. `agent` is
    a name of `handoffs`, `main` for the conversation's own agent, or `#` and a name of
    `Agent(models=)`."""

    agent: str
    by: str = "user"

    def __post_init__(self) -> None:
        if not self.agent.strip():
            raise ConfigurationError(
                "Use: agent takes the name of an agent or a model; it is empty."
            )


class Schedule(_Command, frozen=True, tag="schedule"):
    """A timer that sends a message `at` a time, `every` so many seconds, or by a `cron`
    expression, as with `Conversation.schedule`.

    `timer` is its id, a new one if empty; a timer of that id is replaced. An `at` without a zone is
    the wall clock's of `timezone`. An `at` that is past when the command is carried out is a missed
    occurrence.
    """

    content: tuple[Content, ...]
    timer: str = ""
    at: datetime | None = None
    every: float | None = None
    cron: str | None = None
    timezone: str = ""
    misfire: Literal["once", "skip", "all"] = "once"
    sender: str = "user"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "content", blocks(self.content))
        check_sender("Schedule", self.sender)
        _ = self.rule

    @property
    def rule(self) -> Timer:
        """The timer that the command asks for; see `timers.make_rule`."""
        return make_rule(
            self.content,
            id=self.timer,
            at=self.at,
            every=self.every,
            cron=self.cron,
            timezone=self.timezone,
            misfire=self.misfire,
            sender=self.sender,
        )


class CancelTimer(_Command, frozen=True, tag="cancelTimer"):
    """The end of the timer with the id `timer`, as with `Conversation.cancel_timer`."""

    timer: str
    by: str = "user"
    reason: str = ""


class RingTimer(_Command, frozen=True, tag="ringTimer"):
    """The report of `Store.ring` that a timer's occurrence `due` has come.

    The command fires the timer unless that occurrence was fired or the timer was cancelled.
    """

    timer: str
    due: Annotated[datetime, msgspec.Meta(tz=True)]


class Label(_Command, frozen=True, tag="label"):
    """A change of the conversation's title (None keeps it) and of its tags, as with
    `Conversation.rename`, `tag` and `untag`."""

    title: str | None = None
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    by: str = "user"

    def __post_init__(self) -> None:
        if self.title is not None:
            msgspec.structs.force_setattr(self, "title", check_title("Label", self.title))
        msgspec.structs.force_setattr(self, "add", check_tags("Label", self.add))
        msgspec.structs.force_setattr(self, "remove", check_tags("Label", self.remove))
        if self.title is None and not self.add and not self.remove:
            raise ConfigurationError("Label takes a title, or tags to add or to remove.")


class UnreadableCommand(msgspec.Struct, frozen=True):
    """A posted command that cannot be decoded: the `command` that it names, and the reason.
    `UnreadableCommand` itself cannot be posted."""

    command: str
    reason: str


Command = (
    Send
    | Approve
    | Reject
    | Answer
    | Claim
    | Return
    | Settle
    | Pause
    | Resume
    | Interrupt
    | Condense
    | Ask
    | Use
    | Schedule
    | CancelTimer
    | RingTimer
    | Label
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Command)
_KNOWN = frozenset(str(kind.__struct_config__.tag) for kind in Command.__args__)


def encode(command: Command) -> bytes:
    """Return a command as JSON. Raise `ConfigurationError` if it is no command or holds values
    that JSON cannot represent."""
    if not isinstance(command, _Command):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
        raise ConfigurationError(
            f"post takes a command such as commands.Send('...'), not {command!r}."
        )
    try:
        data = _encoder.encode(command)
        copy = decode(data)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigurationError(
            f"post: the command must be valid JSON: {str(error).rstrip('.')}."
        ) from error
    if copy != command:
        raise ConfigurationError(
            f"post: the command must be valid JSON: this {type(command).__name__} would be read"
            " back differently."
        )
    return data


def decode(data: bytes) -> Command:
    """Return the command that `encode` wrote. Raise `ValueError` on anything else, also a newer
    version's command."""
    return decode_json(data, cast("type[Command]", Command), MAX_STORED_DEPTH)


def posted(data: bytes) -> Command | UnreadableCommand | None:
    """Return a command from an inbox, None for one that a newer version posted."""
    try:
        return _decoder.decode(data)
    except (ValueError, OverflowError, RecursionError) as error:
        try:
            name = msgspec.json.decode(data, type=_Name).command
        except (ValueError, OverflowError, RecursionError):
            name = ""
        return UnreadableCommand(name, str(error)) if not name or name in _KNOWN else None


class _Name(msgspec.Struct):
    command: str
