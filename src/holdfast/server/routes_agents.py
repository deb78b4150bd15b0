"""The agents that the server's operator publishes: routes to list them and to create
conversations with them."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Path, Request
from starlette.responses import Response

from holdfast.errors import ConfigurationError, ConversationNotFound
from holdfast.server.answers import answer
from holdfast.server.bodies import Offered, Offers, StartRequest
from holdfast.server.guard import RequestRefused
from holdfast.server.openai import Published
from holdfast.server.routes import Key, Routes
from holdfast.server.shapes import Created, CreateRequest

_Name = Annotated[
    str, Path(min_length=1, max_length=100, description="The agent's name.", examples=["coder"])
]


def add(routes: Routes, agents: Mapping[str, Published]) -> None:
    """Add the routes of published agents."""
    service, host = routes.service, routes.service.host

    @routes.add(
        "GET",
        "/api/agents",
        "List the published agents",
        gives=Offers,
        client=False,
        tag="agents",
        gave={
            "agents": [{"name": "coder", "model": "gpt-5-mini", "tools": ["terminal", "read_file"]}]
        },
    )
    async def list_agents(request: Request) -> Response:
        """Lists the agents that the operator has published."""
        return answer(
            Offers(
                [
                    Offered(agent.name, _model(agent), [tool.name for tool in agent.tools])
                    for agent in agents.values()
                ]
            )
        )

    @routes.add(
        "POST",
        "/api/agents/{agent}/conversations",
        "Create a conversation with a published agent",
        takes=StartRequest,
        example={"id": "weekly"},
        gives=Created,
        gave={"id": "weekly", "status": "idle", "created": "2026-11-21T10:00:00Z"},
        status=201,
        also=(404, 409, 422, 503),
        tag="agents",
    )
    async def start_with_agent(request: Request, agent: _Name, key: Key = None) -> Response:
        """The agent's tools run on the server, their questions wait for an answer, and the
        model's answers are streamed."""
        body = await service.json(request, StartRequest)
        found = agents.get(agent)
        if found is None:
            raise RequestRefused(
                404,
                "ConfigurationError",
                "This server publishes no agent with this name. It publishes:"
                f" {', '.join(agents) or 'none'}.",
            )
        tenant = service.caller(request).tenant

        def make() -> Created:
            made = host.create(tenant, _request(found, body), key or "")
            if refused := [tool.name for tool in made.tools if tool.executor != "server"]:
                # An earlier request under the same key may have deleted the conversation already.
                with suppress(ConversationNotFound):
                    host.delete(tenant, made.id)
                raise ConfigurationError(
                    f"This server may not run these tools of the agent: {', '.join(refused)}. Its"
                    " operator can allow them with --allow-tools."
                )
            return made

        return answer(await service.change(make), 201)


def _model(agent: Published) -> str:
    model: Any = agent.form.mapping.get("model")
    name: Any = model.get("name") if isinstance(model, dict) else model  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return name if isinstance(name, str) else ""


def _request(agent: Published, body: StartRequest) -> CreateRequest:
    modules = {tool.name: tool.module for tool in agent.tools if tool.module}
    return CreateRequest(
        agent=dict(agent.form.mapping),
        secrets=dict(agent.form.secrets),
        tools=list(agent.tools),
        tool_module_qualnames=modules,
        id=body.id,
        workspace=body.workspace,
        questions=True,
        deltas=True,
    )
