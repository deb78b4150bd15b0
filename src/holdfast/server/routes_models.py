"""Named models and a tenant's secrets over HTTP: agents of clients name them instead of carrying
keys."""

from typing import Annotated

from fastapi import Path

from holdfast.server import shapes
from holdfast.server.host import Host
from holdfast.server.routes import RouteTable

_ModelName = Annotated[
    str,
    Path(
        pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="The model's name.",
        examples=["fast"],
    ),
]
_SecretName = Annotated[
    str,
    Path(
        pattern="^[A-Za-z_][A-Za-z0-9_]{0,99}$",
        description="The secret's name.",
        examples=["OPENAI_API_KEY"],
    ),
]

routes = RouteTable("/api", "models")


@routes.get(
    "/models",
    "List the named models",
    answer_example={
        "models": [
            {
                "name": "fast",
                "owner": "server",
                "model": "gpt-5-mini",
                "key": True,
                "contextWindow": 400000,
                "inputPrice": 0.25,
                "outputPrice": 2.0,
            }
        ]
    },
)
def list_named_models(host: Host, tenant: str) -> shapes.ModelItems:
    """Lists the operator's models and the tenant's own, which win over the operator's of the
    same name. An agent names one as `{"model": {"named": "fast"}}`."""
    return shapes.ModelItems(models=host.named_parts.models(tenant))


@routes.put(
    "/models/{name}",
    "Set a named model",
    example={"model": {"name": "gpt-5-mini", "api_key": "${OPENAI_API_KEY}"}},
)
def set_named_model(
    host: Host, tenant: str, name: _ModelName, body: shapes.NamedModelRequest
) -> None:
    """Kept encrypted, for agents of this tenant. Conversations use it when they are opened next."""
    host.set_model(tenant, name, body.model)


@routes.delete("/models/{name}", "Remove a named model")
def remove_named_model(host: Host, tenant: str, name: _ModelName) -> None:
    """Only a model of the tenant's own."""
    host.named_parts.remove_model(tenant, name)


@routes.get(
    "/secrets",
    "List the names of the tenant's secrets",
    answer_example={"secrets": {"OPENAI_API_KEY": "of the team"}},
)
def list_secrets(host: Host, tenant: str) -> shapes.SecretNames:
    """Names and descriptions, never values."""
    return shapes.SecretNames(secrets=host.named_parts.secrets(tenant))


@routes.put(
    "/secrets/{name}",
    "Set a secret of the tenant",
    example={"value": "sk-of-the-team", "description": "of the team"},
)
def set_secret(host: Host, tenant: str, name: _SecretName, body: shapes.SecretValue) -> None:
    """Kept encrypted. Agents and named models of the tenant refer to it as `${NAME}` in fields that
    are not shown, such as `api_key` and `headers`."""
    host.named_parts.set_secret(tenant, name, body)


@routes.delete("/secrets/{name}", "Remove a secret of the tenant")
def remove_secret(host: Host, tenant: str, name: _SecretName) -> None:
    """Agents that refer to it cannot be opened afterwards."""
    host.named_parts.remove_secret(tenant, name)
