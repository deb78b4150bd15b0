"""The JSON requests and answers of a `Host`. Field names are camelCase, except names that the
API specification fixes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast import events as ev
from holdfast.agent.serial_form import ToolForm
from holdfast.content import Data
from holdfast.conversation.rewound import PutBack

Sandbox = Literal["", "require"]
Executor = Literal["server", "client", "unavailable"]


class RequestBody(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The base of requests with optional fields."""


class CreateRequest(RequestBody, frozen=True, kw_only=True):
    """A new conversation.

    | field | meaning |
    |---|---|
    | `agent` | the agent's serial form |
    | `id` | without one, the server generates one |
    | `secrets` | the values of the form's `${secret_N}` |
    | `tools` | the client's tool declarations |
    | `tool_module_qualnames` | by tool, the module from which the server may import it |
    | `client_tools` | false: no tool runs in the client |
    | `workspace` | without one, the server creates one if a tool needs it |
    | `questions` | questions of tools wait for an answer |
    | `child_questions` | the same in conversations that calls have spawned |
    | `deltas` | the model's answers are streamed to readers |
    | `undo` | the server keeps snapshots of the workspace's files, for a rewind |
    | `sandbox` | `require`: commands run in a sandbox, or the request is refused |
    | `title`, `tags` | the conversation's first event |
    """

    agent: dict[str, Any]
    id: str = ""
    secrets: dict[str, str] = {}
    tools: list[ToolForm] = []
    tool_module_qualnames: dict[str, str] = msgspec.field(
        default_factory=dict[str, str], name="tool_module_qualnames"
    )
    client_tools: bool = msgspec.field(default=True, name="client_tools")
    workspace: str = ""
    questions: bool = False
    child_questions: bool = False
    deltas: bool = False
    undo: bool = False
    sandbox: Sandbox = ""
    title: str | None = None
    tags: tuple[str, ...] = ()

    def __repr__(self) -> str:
        # no secrets
        return (
            f"CreateRequest(id={self.id!r}, tools={len(self.tools)}, workspace={self.workspace!r})"
        )


class ForkRequest(RequestBody, frozen=True, kw_only=True):
    """A fork at event `seq` (None: after all events). A None field keeps the value of
    the original conversation. Without a `title` it has the original's with `(fork)`; with "" it
    has the same one."""

    seq: int | None = None
    id: str = ""
    title: str | None = None
    agent: dict[str, Any] | None = None
    secrets: dict[str, str] | None = None
    tools: list[ToolForm] | None = None
    tool_module_qualnames: dict[str, str] | None = msgspec.field(
        default=None, name="tool_module_qualnames"
    )
    client_tools: bool | None = msgspec.field(default=None, name="client_tools")
    workspace: str | None = None

    def __repr__(self) -> str:
        return f"ForkRequest(seq={self.seq!r}, id={self.id!r})"


class RewindRequest(RequestBody, frozen=True, kw_only=True):
    """A fork at event `seq`, with the files of that time in the workspace."""

    seq: int
    id: str = ""


class ToolsRequest(RequestBody, frozen=True, kw_only=True):
    """The tools that replace the conversation's present tools."""

    tools: list[ToolForm]
    tool_module_qualnames: dict[str, str] = msgspec.field(
        default_factory=dict[str, str], name="tool_module_qualnames"
    )
    client_tools: bool = msgspec.field(default=True, name="client_tools")


class AgentRequest(RequestBody, frozen=True, kw_only=True):
    """The agent that replaces the conversation's present one, with its tools."""

    agent: dict[str, Any]
    secrets: dict[str, str] = {}
    tools: list[ToolForm] = []
    tool_module_qualnames: dict[str, str] = msgspec.field(
        default_factory=dict[str, str], name="tool_module_qualnames"
    )
    client_tools: bool = msgspec.field(default=True, name="client_tools")

    def __repr__(self) -> str:
        return f"AgentRequest(tools={len(self.tools)})"


class SecretsRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The secrets that replace the conversation's present ones, by name: values of at least 8
    characters, which its commands and tools may use."""

    secrets: dict[str, str | SecretValue]

    def __repr__(self) -> str:
        return f"SecretsRequest({', '.join(self.secrets)})"


class SecretValue(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A secret with a description for the model."""

    value: str
    description: str = ""

    def __repr__(self) -> str:
        return f"SecretValue(description={self.description!r})"


class SecretNames(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The names of a conversation's secrets, with their descriptions. Values are never sent."""

    secrets: dict[str, str]


class NamedModelRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A model under a name, in the form of an agent's `model`. Its key may be a `${NAME}` of the
    tenant's secrets; the whole is kept encrypted."""

    model: str | dict[str, Any] | list[Any]

    def __repr__(self) -> str:
        return "NamedModelRequest()"


class ModelItem(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A model that agents may name. `model` is its name at the provider. `key` is True if it has a
    key, which is never sent. `owner` is `server` for a model of the operator. The window is in
    tokens, the prices are in US dollars per million tokens; null if unknown."""

    name: str
    owner: Literal["server", "tenant"]
    model: str
    key: bool
    context_window: int | None = None
    input_price: float | None = None
    output_price: float | None = None


class ModelItems(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The models that agents may name, by name."""

    models: list[ModelItem]


class ToolStanding(Data, frozen=True):
    """The place where a tool runs. `warning` says why its module could not be used."""

    name: str
    executor: Executor
    module: str = ""
    warning: str = ""


class CreatedConversation(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The result of a `CreateRequest`, a fork, or a change of tools."""

    id: str
    status: str
    created: datetime
    workspace: str = ""
    tools: list[ToolStanding] = []
    warnings: list[str] = []


class RewoundConversation(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The result of a rewind: the conversation that continues, and the changes of the files."""

    conversation: CreatedConversation
    files: PutBack


class Item(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One entry of a listing.

    `started`: the server answers messages as they arrive, also after a restart. `driven`: the
    conversation is started, or is being run until it rests. A conversation that is `running` and
    not driven, such as a fork of a running one, continues with its next run. `spawned_by` is the
    call that spawned the conversation (`{id}:{call_id}`), or ""; its parent drives it.
    """

    id: str
    status: str
    created: datetime
    updated: datetime
    title: str = ""
    last_seq: int = 0
    workspace: str = ""
    parent: str = ""
    parent_seq: int = 0
    started: bool = False
    driven: bool = False
    spawned_by: str = ""
    tags: tuple[str, ...] = ()


class Info(Item, frozen=True, kw_only=True):
    """A conversation's details without its events. `error` says why the server cannot drive it
    (a missing key, a broken agent). `sandboxed`: its commands run in a sandbox."""

    open: bool = False
    busy: bool = False
    tools: list[ToolStanding] = []
    warnings: list[str] = []
    error: str = ""
    sandboxed: bool = False


class Page(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One page of a listing, newest conversation first. `next` is the cursor of the next page,
    None on the last one."""

    items: list[Item]
    next: str | None = None


class EventFrame(NamedTuple):
    """An event in the form sent to readers: its seq, its type and its JSON; and the event itself,
    for readers in this process."""

    seq: int
    type: str
    data: bytes
    event: ev.AnyEvent


class TransientNote(NamedTuple):
    """A transient notification that no journal keeps. `kind` is `delta` or `progress`; `data` is
    its JSON. `after` is the seq of the event before it; None stands for the newest."""

    kind: str
    data: bytes
    after: int | None = None


class FeedBatch(NamedTuple):
    """The items that a reader receives at once: events and notes, each in order; a note belongs
    after the event with the seq `after`. A batch without either: nothing arrived in time."""

    frames: list[EventFrame]
    notes: list[TransientNote]
    ended: bool = False  # True if nothing follows: the conversation was deleted or the host closes
