"""What the bodies of requests are that have no meaning but for HTTP; those that a `Host` takes as they are stand in `shapes`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from holdfast.agent.form import ToolForm
from holdfast.content import Content, TextContent, ToolResult
from holdfast.errors import ConfigurationError
from holdfast.runtime.microagents import Microagent

Seconds = Annotated[float, msgspec.Meta(gt=0, le=24 * 3600)]
Name = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9._-]{0,128}$")]


class MessageRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A message: `content`, a list of blocks, or `text`. `event_id` becomes the id of its `Message` event; without one it is made."""

    content: tuple[Content, ...] = ()
    text: str = ""
    event_id: Name = ""

    @property
    def blocks(self) -> tuple[Content, ...]:
        """What is sent. Raises `ConfigurationError` if that is nothing, or twofold."""
        if bool(self.content) == bool(self.text):
            raise ConfigurationError("A message has either content, a list of blocks, or text.")
        return self.content or (TextContent(self.text),)


class ApproveRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Run a call that waits: `call_id`, or the one that does; with other `arguments` if given, and only if `arguments_hash`, where given, is that
    of the call's own."""

    call_id: str | None = None
    arguments: dict[str, Any] | None = None
    arguments_hash: str | None = None
    by: str = "user"
    reason: str = ""


class RejectRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Do not run a call that waits, and tell the model why."""

    call_id: str | None = None
    reason: str = ""
    by: str = "user"


class CondenseRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Shorten what the model is shown; `instructions` are what a summary is to mind."""

    instructions: str = ""


class AnswerRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The answer to what a running call asks: `values` of its form, true for a yes, null or false to decline."""

    question_id: str
    values: dict[str, Any] | bool | None = True
    reason: str = ""
    by: str = "user"


class ResultRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What came of a call that this client claimed, and how many seconds it took."""

    result: ToolResult
    duration: float = 0.0


class WorkspaceRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A new workspace; without an `id` one is made."""

    id: str | None = None


class CommandRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A shell command, with the seconds it may take, in the shell of a conversation, or in one that is nobody's."""

    command: str
    timeout: Seconds | None = None
    conversation_id: Name = ""


class CloneRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A repository to clone: `owner/name` on GitHub or a URL; into `target`, by default its name; within `timeout` seconds."""

    repo: str
    branch: str | None = None
    target: str | None = None
    timeout: Seconds = 600.0

    def __repr__(self) -> str:
        return f"CloneRequest(target={self.target!r})"  # a URL may hold a password


class CallRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A call of a workspace's tool."""

    arguments: dict[str, Any] = {}
    conversation_id: Name = ""


class StateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation's state as `ConversationState.to_json` gives it. A new conversation begins with its events."""

    version: Literal[1]
    id: str
    status: str
    events: list[msgspec.Raw]


class StartRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A new conversation with an agent of the server's; without an `id` one is made, and without a `workspace` one if a tool needs it."""

    id: Name = ""
    workspace: Name = ""


# --- answers -------------------------------------------------------------------------------------


class Health(msgspec.Struct, frozen=True):
    """Whether the server lives, or takes requests."""

    status: str


class Standing(msgspec.Struct, frozen=True):
    """A conversation's status after what was asked."""

    status: str


class Sent(msgspec.Struct, frozen=True, rename="camel"):
    """The id of the `Message` event that a message becomes."""

    event_id: str


class Events(msgspec.Struct, frozen=True, rename="camel"):
    """Events in order, and the seq of the conversation's last one: whether there are more."""

    events: list[msgspec.Raw]
    last_seq: int


class Workspace(msgspec.Struct, frozen=True):
    """A workspace's id."""

    id: str


class Cloned(msgspec.Struct, frozen=True):
    """The folder that the clone is in, on the server."""

    path: str


class Written(msgspec.Struct, frozen=True):
    """How many bytes a file has now."""

    bytes: int


class Microagents(msgspec.Struct, frozen=True):
    """The microagents and skills of a folder."""

    microagents: list[Microagent]


class Tools(msgspec.Struct, frozen=True):
    """The tools of a workspace, as an agent that works there would have them."""

    tools: list[ToolForm]


class Offered(msgspec.Struct, frozen=True):
    """An agent of the server's."""

    name: str
    model: str
    tools: list[str]


class Offers(msgspec.Struct, frozen=True):
    """The agents of the server's, in its operator's order."""

    agents: list[Offered]


class ServiceHealth(msgspec.Struct, frozen=True):
    """How a service of tools answered when asked: `ok`, after `seconds`; `detail` is what it said, or why it did not."""

    id: str
    ok: bool
    seconds: float
    detail: str


class Services(msgspec.Struct, frozen=True):
    """How the services of a conversation's tools answered; none were asked unless it is `open`."""

    open: bool
    services: list[ServiceHealth]
