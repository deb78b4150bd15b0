"""What an agent server is sent to make a conversation of an agent, and what it answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.form import all_tools, form_of, tools_of
from holdfast.remote.tools import BUILTIN, RemoteTool

if TYPE_CHECKING:
    from holdfast.remote.workspace import RemoteWorkspace


ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Standing(msgspec.Struct, rename="camel"):
    """Where a tool runs: `server`, `client` or `unavailable`."""

    name: str
    executor: str = "server"
    module: str = ""
    warning: str = ""


class Created(msgspec.Struct, rename="camel"):
    """The server's answer to a new conversation, or what it tells of one that exists."""

    id: str
    status: str = ""
    workspace: str = ""
    tools: list[Standing] = []
    warnings: list[str] = []
    started: bool = False
    busy: bool = False
    open: bool = False
    driven: bool | None = None  # None: a server that does not say so
    error: str = ""

    @property
    def clients(self) -> bool:
        """Whether a tool is to be run by clients."""
        return any(tool.executor == "client" for tool in self.tools)


def created(data: bytes) -> Created:
    """Read such an answer. Raises `ValueError`, also for an id that is none."""
    found = msgspec.json.decode(data, type=Created)
    if not ID.fullmatch(found.id):
        raise ValueError(f"the id {found.id[:80]!r}")
    return found


def tools_request(agent: Agent, workspace: RemoteWorkspace, client_tools: bool) -> dict[str, Any]:
    """An agent's tools as the server is told of them, and the modules that it may find them in."""
    forms = tools_of(agent)
    for index, (form, tool) in enumerate(zip(forms, all_tools(agent), strict=True)):
        if isinstance(tool, RemoteTool):  # of another workspace: an HTTP call from here
            forms[index] = msgspec.structs.replace(
                form, module=BUILTIN if tool.workspace is workspace else ""
            )
    return {
        "tools": forms,
        "tool_module_qualnames": {form.name: form.module for form in forms if form.module},
        "client_tools": client_tools,
    }


def agent_request(agent: Agent) -> dict[str, Any]:
    """An agent's serial form, and its secrets apart from it. Raises `ConfigurationError` naming
    what has no serial form."""
    form = form_of(agent)
    return {"agent": form.mapping, "secrets": form.secrets}


def needs_workspace(request: dict[str, Any]) -> bool:
    """Whether a tool of a request may be run by the server, and so in a workspace."""
    return bool(request["tool_module_qualnames"])
