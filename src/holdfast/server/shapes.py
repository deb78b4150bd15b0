"""What goes in and out of a `Host`: the JSON of the agent server's requests and answers, camelCase but where a name was given to us."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.agent.form import ToolForm
from holdfast.content import Data

Executor = Literal["server", "client", "unavailable"]


class CreateRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A new conversation: `agent` is an agent's serial form, `secrets` what its `${secret_N}` stand for, `tools` what it declares.

    `tool_module_qualnames` names the module that the server may import for a tool; without an `id` one is made; without a `workspace` one is
    made if a tool needs it. `client_tools=False`: no tool may be run by the client. `questions`: what tools ask waits for an answer. `deltas`:
    answers are streamed, for readers to see them come.
    """

    agent: dict[str, Any]
    id: str = ""
    secrets: dict[str, str] = {}
    tools: list[ToolForm] = []
    tool_module_qualnames: dict[str, str] = msgspec.field(default_factory=dict[str, str], name="tool_module_qualnames")
    client_tools: bool = msgspec.field(default=True, name="client_tools")
    workspace: str = ""
    questions: bool = False
    deltas: bool = False

    def __repr__(self) -> str:
        return f"CreateRequest(id={self.id!r}, tools={len(self.tools)}, workspace={self.workspace!r})"  # no secrets


class ForkRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A fork at event `seq` (None: all events); what is None is as in the conversation that is forked."""

    seq: int | None = None
    id: str = ""
    agent: dict[str, Any] | None = None
    secrets: dict[str, str] | None = None
    tools: list[ToolForm] | None = None
    tool_module_qualnames: dict[str, str] | None = msgspec.field(default=None, name="tool_module_qualnames")
    client_tools: bool | None = msgspec.field(default=None, name="client_tools")
    workspace: str | None = None

    def __repr__(self) -> str:
        return f"ForkRequest(seq={self.seq!r}, id={self.id!r})"


class ToolsRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The tools that a conversation has from now on, in place of those it had."""

    tools: list[ToolForm]
    tool_module_qualnames: dict[str, str] = msgspec.field(default_factory=dict[str, str], name="tool_module_qualnames")
    client_tools: bool = msgspec.field(default=True, name="client_tools")


class ToolStanding(Data, frozen=True):
    """Where a tool runs, and why there if its module could not be had (`warning`)."""

    name: str
    executor: Executor
    module: str = ""
    warning: str = ""


class Created(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What came of a `CreateRequest`, a fork, or a change of tools."""

    id: str
    status: str
    created: datetime
    workspace: str = ""
    tools: list[ToolStanding] = []
    warnings: list[str] = []


class Item(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One line of a listing. `started`: messages are answered as they come, also after a restart of the server. `driven`: it was started, or is
    being run until it rests; one that is `running` and not driven, such as a fork of a running conversation, goes on when it is run. `spawned_by` is
    the call that spawned it (`{id}:{call_id}`), "" for none; its parent drives it."""

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


class Info(Item, frozen=True, kw_only=True):
    """What is known of a conversation without its events. `error` is why the server cannot drive it (a missing key, a broken agent)."""

    open: bool = False
    busy: bool = False
    tools: list[ToolStanding] = []
    warnings: list[str] = []
    error: str = ""


class Page(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Part of a listing, the newest conversation first; `next` is the cursor of the part that follows, None for the last."""

    items: list[Item]
    next: str | None = None


class Frame(NamedTuple):
    """An event as it goes to a reader: its seq, its type, its JSON."""

    seq: int
    type: str
    data: bytes


class Note(NamedTuple):
    """Something transient that no journal keeps: `kind` is `delta` or `progress`, `data` its JSON."""

    kind: str
    data: bytes


class Batch(NamedTuple):
    """What a reader is given at once: events in order, then notes. Neither: nothing came in the time given."""

    frames: list[Frame]
    notes: list[Note]
    ended: bool = False  # nothing follows: the conversation was deleted, or the host closes
