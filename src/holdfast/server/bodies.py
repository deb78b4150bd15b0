"""Bodies of requests and answers that exist only in HTTP. The bodies that a `Host` takes directly
are in `shapes`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from holdfast.agent.serial_form import ToolForm
from holdfast.commands import Schedule
from holdfast.content import Content, TextContent, ToolResult
from holdfast.conversation.rests import ApprovalRequest, PendingItem, QuestionRequest
from holdfast.errors import ConfigurationError
from holdfast.events import Question
from holdfast.runtime.microagents import Microagent
from holdfast.server.shapes import RequestBody, Sandbox
from holdfast.timers import Misfire, Timer, check_ahead, time_of

Seconds = Annotated[float, msgspec.Meta(gt=0, le=24 * 3600)]
Name = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9._-]{0,128}$")]


class MessageRequest(RequestBody, frozen=True, kw_only=True):
    """A message: either `content`, a list of blocks, or `text`. `event_id` becomes the id of its
    `Message` event; without one the server generates it."""

    content: tuple[Content, ...] = ()
    text: str = ""
    event_id: Name = ""

    @property
    def blocks(self) -> tuple[Content, ...]:
        """The content blocks to send. Raises `ConfigurationError` if neither or both of
        `content` and `text` are set."""
        if bool(self.content) == bool(self.text):
            raise ConfigurationError("A message needs either content (a list of blocks) or text.")
        return self.content or (TextContent(self.text),)


class ApproveRequest(RequestBody, frozen=True, kw_only=True):
    """Approves the waiting call `call_id`, or the only one that waits. `arguments` replaces the
    call's arguments. With `arguments_hash`, the call is approved only if the hash is that of its
    own arguments."""

    call_id: str | None = None
    arguments: dict[str, Any] | None = None
    arguments_hash: str | None = None
    by: str = "user"
    reason: str = ""


class RejectRequest(RequestBody, frozen=True, kw_only=True):
    """Rejects a waiting call and gives the model the reason."""

    call_id: str | None = None
    reason: str = ""
    by: str = "user"


class CondenseRequest(RequestBody, frozen=True, kw_only=True):
    """Shortens the conversation that the model is shown. `instructions` guide the summary."""

    instructions: str = ""


class AskRequest(RequestBody, frozen=True, kw_only=True):
    """A question aside. `aside` is its id, by which its outcome is recognized; without one the
    server generates it."""

    question: Annotated[str, msgspec.Meta(min_length=1)]
    aside: Name = ""


class UseRequest(RequestBody, frozen=True, kw_only=True):
    """Lets another agent answer from the next step on. `agent` is a model of the conversation's
    agent, such as `#fast`, an agent of its handoffs, or an agent that the server publishes."""

    agent: str
    by: str = "user"


class ScheduleRequest(RequestBody, frozen=True, kw_only=True):
    """A message to send later: `text` or `content`, and one of `at`, `every` and `cron`.

    `at` is a time in ISO form; without an offset it is the wall clock's of `timezone`. `every` is
    in seconds, at least 60. `cron` has five fields. `timer` is the id, a new one if empty; a timer
    of that id is replaced.
    """

    content: tuple[Content, ...] = ()
    text: str = ""
    timer: Annotated[str, msgspec.Meta(max_length=200)] = ""
    at: str | None = None
    every: float | None = None
    cron: str | None = None
    timezone: str = ""
    misfire: Misfire = "once"

    def command(self, now: datetime) -> Schedule:
        """Return the command. Raises `ConfigurationError`."""
        command = Schedule(
            MessageRequest(content=self.content, text=self.text).blocks,
            self.timer,
            time_of(self.at),
            self.every,
            self.cron,
            self.timezone,
            self.misfire,
        )
        if command.at is not None:
            check_ahead(command.rule.due, now)
        return command


class CancelTimerRequest(RequestBody, frozen=True, kw_only=True):
    """Cancels the timer with the id `timer`."""

    timer: str
    by: str = "user"
    reason: str = ""


class TimerList(msgspec.Struct, frozen=True, rename="camel"):
    """The timers of a conversation, the earliest first."""

    timers: tuple[Timer, ...]


class LabelRequest(RequestBody, frozen=True, kw_only=True):
    """Sets the title, adds tags and removes tags; each may be left out."""

    title: str | None = None
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    by: str = "user"


class AnswerRequest(RequestBody, frozen=True, kw_only=True):
    """The answer to a question of a running call. `values` are the form's values, true for yes,
    or null or false to decline."""

    question_id: str
    values: dict[str, Any] | bool | None = True
    reason: str = ""
    by: str = "user"


class ResultRequest(RequestBody, frozen=True, kw_only=True):
    """The result of a call that this client claimed, and the call's duration in seconds."""

    result: ToolResult
    duration: float = 0.0


class WorkspaceRequest(RequestBody, frozen=True, kw_only=True):
    """A new workspace. Without an `id` the server generates one."""

    id: str | None = None


class CommandRequest(RequestBody, frozen=True, kw_only=True):
    """A shell command and its time limit in seconds. The command runs in the shell of a
    conversation, or else in a shell that belongs to no conversation."""

    command: str
    timeout: Seconds | None = None
    conversation_id: Name = ""


class CloneRequest(RequestBody, frozen=True, kw_only=True):
    """A repository to clone: `owner/name` on GitHub or a URL. `target` defaults to the
    repository's name. `timeout` is in seconds."""

    repo: str
    branch: str | None = None
    target: str | None = None
    timeout: Seconds = 600.0

    def __repr__(self) -> str:
        return f"CloneRequest(target={self.target!r})"  # a URL may hold a password


class CallRequest(RequestBody, frozen=True, kw_only=True):
    """A call of a workspace's tool."""

    arguments: dict[str, Any] = {}
    conversation_id: Name = ""


class StateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation's state in the form of `ConversationState.to_json`. A new conversation
    starts with these events."""

    version: Literal[1]
    id: str
    status: str
    events: list[msgspec.Raw]


class StartRequest(RequestBody, frozen=True, kw_only=True):
    """A new conversation with an agent that the server publishes. Without an `id` the server
    generates one. Without a `workspace` the server creates one if a tool needs it. With
    `sandbox="require"` its commands run in a sandbox. `title` and `tags` are its first event."""

    id: Name = ""
    workspace: Name = ""
    sandbox: Sandbox = ""
    title: str | None = None
    tags: tuple[str, ...] = ()


# --- answers ---


class ServerHealth(msgspec.Struct, frozen=True):
    """The state of the server: `ok` or `ready`."""

    status: str


class StatusReply(msgspec.Struct, frozen=True):
    """A conversation's status after the request."""

    status: str


class PendingRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A `question` of a running call, or without one a call that waits for approval. Decide under
    the id `conversation`."""

    conversation: str
    call_id: str
    name: str = ""
    arguments: dict[str, Any] = {}
    arguments_hash: str = ""
    reason: str = ""
    risk: str = ""
    question: Question | None = None


class PendingItems(msgspec.Struct, frozen=True):
    """All that waits for the user, the own items of the conversation first."""

    items: list[PendingRequest]

    @classmethod
    def of(cls, id: str, pending: Sequence[PendingItem]) -> PendingItems:
        """Return the items of the conversation `id` at a rest."""
        items: list[PendingRequest] = []
        for item in pending:
            match item:
                case ApprovalRequest(call=call):
                    about = PendingRequest(
                        conversation=item.conversation or id,
                        call_id=call.id,
                        name=call.name,
                        arguments=call.arguments,
                        arguments_hash=call.arguments_hash,
                        reason=item.reason,
                        risk=item.risk,
                    )
                    items.append(about)
                case QuestionRequest(call_id=call_id, question=question):
                    conversation = item.conversation or id
                    items.append(
                        PendingRequest(
                            conversation=conversation, call_id=call_id, question=question
                        )
                    )
                case _:  # a call that a client runs is in the journal
                    pass
        return cls(items)


class TitleReply(msgspec.Struct, frozen=True):
    """The title that was written."""

    title: str


class AgentChosen(msgspec.Struct, frozen=True, omit_defaults=True):
    """A conversation's status after the request. `replaced` is true if a published agent has taken
    the place of the conversation's own."""

    status: str
    replaced: bool = False


class SentMessage(msgspec.Struct, frozen=True, rename="camel"):
    """The id of the `Message` event that a message becomes."""

    event_id: str


class Events(msgspec.Struct, frozen=True, rename="camel"):
    """Events in order. `last_seq` is the seq of the conversation's last event and tells if there
    are more."""

    events: list[msgspec.Raw]
    last_seq: int


class Workspace(msgspec.Struct, frozen=True):
    """A workspace's id."""

    id: str


class WorkspaceItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A workspace. `folder` is the path of a folder that the operator has named; others are
    folders of the server's own."""

    id: str
    folder: str = ""


class WorkspaceItems(msgspec.Struct, frozen=True):
    """The tenant's workspaces: first the operator's named ones, then by id."""

    workspaces: list[WorkspaceItem]


class WorkspaceEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of a folder. `kind` is `file`, `folder`, or `other`, such as a link or a socket.
    `size` is in bytes. `modified` is the time of the last change."""

    name: str
    kind: Literal["file", "folder", "other"]
    size: int
    modified: datetime


class WorkspaceEntries(msgspec.Struct, frozen=True):
    """The entries of a folder: folders first, then by name. `more` is the number of entries beyond
    the limit."""

    path: str
    entries: list[WorkspaceEntry]
    more: int


class Cloned(msgspec.Struct, frozen=True):
    """The path of the clone on the server."""

    path: str


class WrittenFile(msgspec.Struct, frozen=True):
    """The size of a written file in bytes."""

    bytes: int


class Microagents(msgspec.Struct, frozen=True):
    """The microagents and skills of a folder."""

    microagents: list[Microagent]


class Tools(msgspec.Struct, frozen=True):
    """The tools that a workspace gives to an agent."""

    tools: list[ToolForm]


class Offered(msgspec.Struct, frozen=True):
    """An agent that the server publishes."""

    name: str
    model: str
    tools: list[str]


class Offers(msgspec.Struct, frozen=True):
    """The agents that the server publishes, in the operator's order."""

    agents: list[Offered]


class ServiceHealth(msgspec.Struct, frozen=True):
    """The health of one tool service. The service answered `ok` after `seconds`. `detail` is its
    answer or the error."""

    id: str
    ok: bool
    seconds: float
    detail: str


class Services(msgspec.Struct, frozen=True):
    """The health of a conversation's tool services, which are checked only if the conversation is
    `open`."""

    open: bool
    services: list[ServiceHealth]


class ToolOption(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A tool that an agent may have. `form` is its declaration, None for a tool of the workspace,
    which needs none. `usual` is False for one that an agent gets only on request."""

    name: str
    description: str
    category: str
    read_only: bool
    usual: bool = True
    form: ToolForm | None = None


class BeginOptions(msgspec.Struct, frozen=True, rename="camel"):
    """The choices for a new conversation. `sandbox` is the mechanism that confines the commands of
    all, "" if nothing does; `network` are the hosts that they reach from there. `sandboxAvailable`
    is the mechanism for one that asks for a sandbox, "" if none can be made. `folders` is True if
    clients may create workspaces; `undo` if the server keeps snapshots of their files."""

    tools: list[ToolOption]
    sandbox: str
    sandbox_available: str
    network: list[str]
    folders: bool
    undo: bool


class ModelAdvice(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The facts that the server knows about a model. `problem` says why the name cannot be used.
    `variable` is the name of the server's or the tenant's own key for it, "" without one. `tools`
    are the tools of a workspace that suit it. The window is in tokens, the prices are in US dollars
    per million tokens."""

    problem: str = ""
    provider: str = ""
    address: str = ""
    variable: str = ""
    local: bool = False
    tools: list[str] = []
    context_window: int | None = None
    input_price: float | None = None
    output_price: float | None = None


class SearchHit(msgspec.Struct, frozen=True):
    """An event that contains the text. `text` is the part around it."""

    id: str
    title: str
    seq: int
    type: str
    text: str


class SearchResults(msgspec.Struct, frozen=True):
    """The hits of one step of a search, and the numbers of conversations and events that the step
    has read. `next` is the cursor of the next step, None at the end."""

    hits: list[SearchHit]
    conversations: int
    events: int
    next: str | None
