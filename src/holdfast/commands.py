"""What may be asked of a conversation that somebody else drives: the commands of a store's inbox, and their JSON form.

`store.post(conversation_id, Send("..."))` leaves one; whoever holds the conversation's lease does it, in the order of posting, each once.
A command that a newer version posted is left where it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.content import Content, blocks
from holdfast.errors import ConfigurationError


class _Command(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag_field="command", tag=str.lower):
    """Base of all commands."""


class Send(_Command, frozen=True):
    """As `Conversation.send_message`: a str, a content block or a list of blocks."""

    content: tuple[Content, ...]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "content", blocks(self.content))
        if not self.content:
            raise ConfigurationError("Send takes a text or content blocks; it was given nothing.")


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


class Pause(_Command, frozen=True):
    """As `Conversation.pause`."""


class Resume(_Command, frozen=True):
    """As `Conversation.resume`."""


class Interrupt(_Command, frozen=True):
    """As `Conversation.interrupt`."""


Command = Send | Approve | Reject | Pause | Resume | Interrupt

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Command)


def encode(command: Command) -> bytes:
    """A command as JSON. Raises `ConfigurationError` for what is none, or holds what JSON cannot say."""
    if not isinstance(command, _Command):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
        raise ConfigurationError(f"post takes a command such as commands.Send('...'), not {command!r}.")
    try:
        data = _encoder.encode(command)
        _decoder.decode(data)
        return data
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"post takes what JSON can say: {error}.") from error


def decode(data: bytes) -> Command:
    """The inverse of `encode`. Raises `ValueError` on anything else, also a newer version's command."""
    return _decoder.decode(data)
