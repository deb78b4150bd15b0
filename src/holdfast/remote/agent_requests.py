"""The form of an agent for an agent server, and the server's descriptions of its conversation."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.handoffs import find_agent
from holdfast.agent.prompt import without_secrets
from holdfast.agent.serial_form import all_tools, form_of, tools_of
from holdfast.conversation.rewound import PutBack
from holdfast.errors import ConfigurationError, ConversationNotFound
from holdfast.llm.named import NamedModel
from holdfast.remote.server_client import ServerClient, conversation_path
from holdfast.remote.workspace import BUILTIN, RemoteTool, RemoteWorkspace
from holdfast.tools.arguments import refuse_async

_log = logging.getLogger("holdfast.remote")

ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class ToolPlacement(msgspec.Struct, rename="camel"):
    """The place where a tool runs: `server`, `client` or `unavailable`."""

    name: str
    executor: str = "server"
    module: str = ""
    warning: str = ""


class CreateReply(msgspec.Struct, rename="camel"):
    """The server's description of a new or existing conversation."""

    id: str
    status: str = ""
    workspace: str = ""
    tools: list[ToolPlacement] = []
    warnings: list[str] = []
    started: bool = False
    busy: bool = False
    open: bool = False
    driven: bool | None = None  # None from a server that does not report it
    error: str = ""
    sandboxed: bool = False

    @property
    def clients(self) -> bool:
        return any(tool.executor == "client" for tool in self.tools)

    def log_warnings(self) -> None:
        """Log the server's warnings about the tools."""
        for warning in self.warnings:
            _log.warning("conversation %s: %s", self.id, warning)


class RewindReply(msgspec.Struct):
    """The fork of a rewind, and what happened to the files."""

    conversation: CreateReply
    files: PutBack


class WrittenTitle(msgspec.Struct):
    """The title that the server has written."""

    title: str


class ChosenReply(msgspec.Struct):
    """The agent that continues: `replaced` is True if the server's agent replaced the client's."""

    replaced: bool = False


def created(data: bytes) -> CreateReply:
    """Decode a `Created`. Raises `ValueError`, also for an invalid id."""
    reply = msgspec.json.decode(data, type=CreateReply)
    if not ID.fullmatch(reply.id):
        raise ValueError(f"the id {reply.id[:80]!r}")
    return reply


def tools_request(agent: Agent, workspace: RemoteWorkspace, client_tools: bool) -> dict[str, Any]:
    """Return an agent's tools as sent to the server, with the modules that may hold them."""
    forms = tools_of(agent)
    for index, (form, tool) in enumerate(zip(forms, all_tools(agent), strict=True)):
        if isinstance(tool, RemoteTool):  # a tool of another workspace is an HTTP call from here
            forms[index] = msgspec.structs.replace(
                form, module=BUILTIN if tool.workspace is workspace else ""
            )
    return {
        "tools": forms,
        "tool_module_qualnames": {form.name: form.module for form in forms if form.module},
        "client_tools": client_tools,
    }


def agent_request(agent: Agent) -> dict[str, Any]:
    """Return an agent's serial form with its secrets apart."""
    form = form_of(agent)
    return {"agent": form.mapping, "secrets": form.secrets}


def create(
    server: ServerClient,
    client: str,
    agent: Agent | None,
    workspace: RemoteWorkspace,
    id: str | None,
    options: dict[str, Any],
) -> CreateReply:
    """Create a conversation, or return the existing one of this id. `options` are those of a
    `RemoteConversation`."""
    if agent is None:
        assert id is not None
        return info(server, client, id, options["sandbox"])
    tools = tools_request(agent, workspace, options["client_tools"])
    body = agent_request(agent) | tools
    body["questions"] = options["on_question"] is not None
    body["deltas"] = options["deltas"] or options["on_delta"] is not None
    # an older server refuses these fields
    body |= {"childQuestions": True} if options["on_question"] == "wait_all" else {}
    body |= {"undo": True} if options["undo"] else {}
    body |= {"sandbox": "require"} if options["sandbox"] else {}
    if id is not None:
        body["id"] = id
        with suppress(ConversationNotFound):
            return info(server, client, id, options["sandbox"])
    # The server may run a tool that needs a workspace.
    if workspace.id is not None or tools["tool_module_qualnames"]:
        body["workspace"] = workspace.made()
    return server.read(created, "POST", "/api/conversations", body, client=client)


def info(server: ServerClient, client: str, id: str, sandbox: bool) -> CreateReply:
    """Return the server's description of a conversation. Raises `ConfigurationError` if it must
    have a `sandbox` and has none."""
    reply = server.read(created, "GET", conversation_path(id), client=client)
    if sandbox and not reply.sandboxed:
        raise ConfigurationError(
            f"sandbox: conversation {id!r} exists, and its commands run without a sandbox. Give"
            " another id, or leave sandbox out."
        )
    return reply


def check_same_agent(agent: Agent, head: ev.AgentConfigured | None, id: str) -> None:
    """Raise `ConfigurationError` if the journal of an existing conversation shows another agent."""
    if head is None:
        return
    agent = find_agent(agent, head.name) or agent  # another of its models, or of its handoffs
    tools = {tool.name: tool for tool in head.tools}
    differences: list[str] = []
    if agent.system_prompt != without_secrets(head):
        differences.append("another system prompt")
    if type(agent.llm) is not NamedModel and agent.llm.model != head.model:
        differences.append(f"the model {head.model!r}, not {agent.llm.model!r}")
    for tool in agent.tools.definitions():
        if (same := tools.get(tool.name)) is None:
            differences.append(f"no tool {tool.name!r}")
        elif (tool.description, tool.input_schema) != (same.description, same.input_schema):
            differences.append(f"another tool {tool.name!r}")
    if differences:
        raise ConfigurationError(
            f"RemoteConversation: agent differs from the agent of conversation {id!r}, which has"
            f" {', '.join(differences)}. Leave agent out to continue with that one, or fork the"
            " conversation with another agent."
        )


def check_arguments(agent: Any, workspace: Any, id: Any, listeners: dict[str, Any]) -> None:
    """Raise `ConfigurationError` for an invalid argument of a `RemoteConversation`."""

    def refuse(what: str, value: object) -> ConfigurationError:
        return ConfigurationError(f"RemoteConversation: {what}, not {value!r}.")

    if not isinstance(workspace, RemoteWorkspace):
        raise refuse("workspace takes a RemoteWorkspace(url, key)", workspace)
    if agent is None and id is None:
        needs = "only an existing conversation (id=...) needs none"
        raise ConfigurationError(f"RemoteConversation: agent takes an Agent; {needs}.")
    if agent is not None and not isinstance(agent, Agent):
        raise refuse("agent takes an Agent", agent)
    if id is not None and (not isinstance(id, str) or not ID.fullmatch(id)):
        raise refuse("id takes 1 to 128 letters, digits, '.', '_' or '-', or None", id)
    for name, value in listeners.items():
        refuse_async(f"RemoteConversation: {name}", value)
        words = ("wait", "wait_all") if name == "on_question" else ()
        if value is None or callable(value) or value in words:
            continue
        kinds = "a function of a Question, 'wait', 'wait_all'" if words else "a function"
        raise refuse(f"{name} takes {kinds} or None", value)
