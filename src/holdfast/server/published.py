"""The conversations of a tenant with the published agents of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.agent.serial_form import ToolForm
from holdfast.errors import Denied
from holdfast.server.forms import builtin_names, with_tools
from holdfast.server.host import Host
from holdfast.server.openai import Published
from holdfast.server.shapes import CreatedConversation, CreateRequest


def request_for(
    agent: Published,
    tools: Sequence[ToolForm] = (),
    instructions: str = "",
    questions: bool = True,
) -> CreateRequest:
    """Return the request for a conversation with an agent, with the client's tools and
    instructions, which are taken literally. With `questions`, the user can be asked."""
    form: dict[str, Any] = dict(agent.form.mapping)
    if instructions:
        form["system_prompt_extensions"] = [
            *form.get("system_prompt_extensions", []),
            instructions.replace("${", "$${"),
        ]
    if tools:
        form = with_tools(form, [*builtin_names(form), *(tool.name for tool in tools)])
    return CreateRequest(
        agent=form,
        secrets=dict(agent.form.secrets),
        tools=[*agent.tools, *tools],
        tool_module_qualnames={tool.name: tool.module for tool in agent.tools if tool.module},
        client_tools=True,
        questions=questions,
        child_questions=questions,
        deltas=True,
    )


def created(
    host: Host, tenant: str, agent: Published, request: CreateRequest, setting: bytes
) -> CreatedConversation:
    """Create a chat for a turn that begins next; `setting` is the hash of its instructions and
    tools. The tenant's oldest chats at rest make room. Raises `Denied` if the server may not run
    all tools of the agent."""
    made = host.chats.with_room(tenant, lambda: host.create(tenant, request, chat=setting))
    own = {tool.name for tool in agent.tools}
    refused = [one.name for one in made.tools if one.executor != "server" and one.name in own]
    if refused:
        host.delete(tenant, made.id)
        raise Denied(
            f"This server may not run these tools of the agent {agent.name!r}:"
            f" {', '.join(refused)}. Its operator can allow them with --allow-tools."
        )
    return made
