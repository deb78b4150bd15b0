"""What may be asked of a conversation that somebody else drives: the commands of a store's inbox, and their JSON form.

`store.post(conversation_id, Send("..."))` leaves one; whoever holds the conversation's lease does it, in the order of posting, each once.
A command that a newer version posted is left where it is. One of ours that cannot be decoded is read as `Unreadable`, which its conversation
drops, so that it waits in no inbox for ever.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.content import Content, ToolResult, blocks
from holdfast.errors import ConfigurationError


class _Command(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag_field="command", tag=str.lower):
    """Base of all commands."""


def check_sender(where: str, sender: object) -> None:
    """Raises `ConfigurationError` for what is no sender of a message: `holdfast` is the loop itself."""
    if not isinstance(sender, str) or not sender.strip() or sender == "holdfast":
        raise ConfigurationError(f"{where}: sender takes 'user' or the id of a conversation, not {sender!r}.")


class Send(_Command, frozen=True):
    """As `Conversation.send_message`: a str, a content block or a list of blocks. `event_id` is the id of the `Message` event, by which its
    sender knows it again; a new one if it is not given. `sender` is the id of the conversation that sends it, if it is not the user."""

    content: tuple[Content, ...]
    event_id: str = ""
    sender: str = "user"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "content", blocks(self.content))
        if not self.content:
            raise ConfigurationError("Send takes a text or content blocks; it was given nothing.")
        check_sender("Send", self.sender)


class Approve(_Command, frozen=True):
    """As `Conversation.approve`: the call `call_id` may run, with other `arguments` if given.

    `arguments_hash` is that of the arguments which the approver saw (`ConversationState.pending_confirmations`); it must fit.
    """

    call_id: str
    arguments_hash: str
    arguments: dict[str, Any] | None = None
    by: str = "user"
    reason: str = ""


class Reject(_Command, frozen=True):
    """As `Conversation.reject`: the call `call_id` is not run, and the model is told why."""

    call_id: str
    reason: str = ""
    by: str = "user"


class Answer(_Command, frozen=True):
    """As `Conversation.answer`: the values of the form that the question `question_id` asks for (True: a yes, or the form's defaults).
    None or False declines, with the `reason` if one is given. Posted, secret values stand in the inbox until it is done."""

    question_id: str
    values: dict[str, Any] | bool | None = True
    reason: str = ""
    by: str = "user"


class Claim(_Command, frozen=True):
    """The client `runner` begins to run the call `call_id` of a tool whose `executor` is "client". One claim alone is taken; the same runner
    may repeat its own. Not while the call waits for a decision, nor while the conversation is paused."""

    call_id: str
    runner: str

    def __post_init__(self) -> None:
        if not self.runner:
            raise ConfigurationError("Claim: runner takes the name of the client; it is empty.")


class Return(_Command, frozen=True):
    """The `result` of a call that `runner` claimed, `duration` seconds later. Also taken while the conversation is paused."""

    call_id: str
    runner: str
    result: ToolResult
    duration: float = 0.0


class Settle(_Command, frozen=True):
    """The server's word for a call that a client was to run, where none will tell any more: `reason` is told to the model.

    A claimed call's outcome is unknown, and its error of the type `kind`; one that nobody took was not run, which is `cancelled`. With `runner`
    it is settled only while that one has the claim ("": nobody has).
    """

    call_id: str
    reason: str
    kind: Literal["unknown", "timeout", "cancelled"] = "unknown"
    runner: str | None = None


class Pause(_Command, frozen=True):
    """As `Conversation.pause`."""


class Resume(_Command, frozen=True):
    """As `Conversation.resume`."""


class Interrupt(_Command, frozen=True):
    """As `Conversation.interrupt`."""


class Condense(_Command, frozen=True):
    """As `Conversation.condense`."""

    instructions: str = ""


class Unreadable(msgspec.Struct, frozen=True):
    """A posted command that cannot be decoded: the `command` that it names, and the reason. It cannot be posted."""

    command: str
    reason: str


Command = Send | Approve | Reject | Answer | Claim | Return | Settle | Pause | Resume | Interrupt | Condense

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Command)
_KNOWN = frozenset(str(kind.__struct_config__.tag) for kind in Command.__args__)


def encode(command: Command) -> bytes:
    """A command as JSON. Raises `ConfigurationError` for what is none, or holds what JSON cannot say."""
    if not isinstance(command, _Command):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
        raise ConfigurationError(f"post takes a command such as commands.Send('...'), not {command!r}.")
    try:
        data = _encoder.encode(command)
        found = _decoder.decode(data)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigurationError(f"post takes what JSON can say: {str(error).rstrip('.')}.") from error
    if found != command:
        raise ConfigurationError(f"post takes what JSON can say: this {type(command).__name__} would be read back as something else.")
    return data


def decode(data: bytes) -> Command:
    """Return the command that `encode` wrote. Raise `ValueError` on anything else, also a newer version's command."""
    return _decoder.decode(data)


def posted(data: bytes) -> Command | Unreadable | None:
    """Return a command as it stands in an inbox, None for one that a newer version posted."""
    try:
        return _decoder.decode(data)
    except (ValueError, OverflowError, RecursionError) as error:
        try:
            name = msgspec.json.decode(data, type=_Name).command
        except (ValueError, OverflowError, RecursionError):
            name = ""
        return Unreadable(name, str(error)) if not name or name in _KNOWN else None


class _Name(msgspec.Struct):
    command: str
