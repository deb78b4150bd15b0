"""The agents that the server's operator publishes: routes to list them, to create conversations
with them, and to continue conversations with them."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Path

from holdfast.commands import Use
from holdfast.errors import ConversationNotFound, Denied, NotFound
from holdfast.server.bodies import AgentChosen, Offered, Offers, StartRequest, UseRequest
from holdfast.server.host import Host
from holdfast.server.openai import Published
from holdfast.server.routes import Id, Key, RouteTable
from holdfast.server.shapes import AgentRequest, CreatedConversation, CreateRequest

_Name = Annotated[
    str, Path(min_length=1, max_length=100, description="The agent's name.", examples=["coder"])
]

routes = RouteTable("/api", "agents")


@routes.get(
    "/agents",
    "List the published agents",
    answer_example={
        "agents": [{"name": "coder", "model": "gpt-5-mini", "tools": ["terminal", "read_file"]}]
    },
    client=False,
    also=(),
)
async def list_agents(agents: Mapping[str, Published]) -> Offers:
    """Lists the agents that the operator has published."""
    return Offers(
        [
            Offered(agent.name, _model(agent), [tool.name for tool in agent.tools])
            for agent in agents.values()
        ]
    )


@routes.post(
    "/agents/{agent}/conversations",
    "Create a conversation with a published agent",
    example={"id": "weekly"},
    answer_example={"id": "weekly", "status": "idle", "created": "2026-11-21T10:00:00Z"},
    status=201,
    conflicts=True,
)
def start_with_agent(
    host: Host,
    agents: Mapping[str, Published],
    tenant: str,
    agent: _Name,
    body: StartRequest,
    key: Key = None,
) -> CreatedConversation:
    """The agent's tools run on the server, their questions wait for an answer, and the model's
    answers are streamed."""
    published = agents.get(agent)
    if published is None:
        names = ", ".join(agents) or "none"
        raise NotFound(
            f"This server publishes no agent with this name. It publishes: {names}.", "agent", agent
        )
    answer = host.create(tenant, _request(published, body), key or "")
    if refused := [tool.name for tool in answer.tools if tool.executor != "server"]:
        # An earlier request under the same key may have deleted the conversation already.
        with suppress(ConversationNotFound):
            host.delete(tenant, answer.id)
        raise Denied(
            f"This server may not run these tools of the agent: {', '.join(refused)}. Its"
            " operator can allow them with --allow-tools."
        )
    return answer


@routes.post(
    "/conversations/{id}/use",
    "Continue with another model or agent",
    example={"agent": "coder"},
    answer_example={"status": "finished"},
    tag="conversations",
    conflicts=True,
)
def use_by_name(
    host: Host,
    agents: Mapping[str, Published],
    tenant: str,
    id: Id,
    body: UseRequest,
    key: Key = None,
) -> AgentChosen:
    """From the next step on. The names that the conversation's own agent knows come first. An agent
    that the server publishes takes the place of the conversation's own, as with `PUT /agent`."""
    try:
        host.execute(tenant, id, Use(body.agent, body.by), key)
    except NotFound as error:
        if error.kind != "agent":
            raise
        published = agents.get(body.agent)
        if published is None:
            text = f"{error} This server publishes: {', '.join(agents) or 'none'}."
            raise NotFound(text, error.kind, error.id) from error
        request = AgentRequest(**published.fields, client_tools=False)
        return AgentChosen(host.use(tenant, id, request).status, replaced=True)
    return AgentChosen(host.status(tenant, id))


def _model(agent: Published) -> str:
    model: Any = agent.form.mapping.get("model")
    name: Any = model.get("name") if isinstance(model, dict) else model  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return name if isinstance(name, str) else ""


def _request(agent: Published, body: StartRequest) -> CreateRequest:
    return CreateRequest(
        **agent.fields,
        id=body.id,
        workspace=body.workspace,
        sandbox=body.sandbox,
        questions=True,
        deltas=True,
        title=body.title,
        tags=body.tags,
    )
