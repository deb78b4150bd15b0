"""The bodies of requests that create a conversation on an agent server, and of the responses."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.serial_form import all_tools, form_of, tools_of
from holdfast.remote.workspace import BUILTIN, RemoteTool, RemoteWorkspace

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

    @property
    def clients(self) -> bool:
        return any(tool.executor == "client" for tool in self.tools)


def created(data: bytes) -> CreateReply:
    """Decode a `Created`. Raises `ValueError`, also for an invalid id."""
    found = msgspec.json.decode(data, type=CreateReply)
    if not ID.fullmatch(found.id):
        raise ValueError(f"the id {found.id[:80]!r}")
    return found


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


def needs_workspace(request: dict[str, Any]) -> bool:
    """Return True if the server may run a tool of the request, and so needs a workspace."""
    return bool(request["tool_module_qualnames"])
