"""Push notifications of A2A: the configurations of a task, each a webhook of its conversation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.errors import ConfigurationError, NotFound
from holdfast.serve import a2a_shapes as shapes
from holdfast.serve.a2a_protobuf import json_of
from holdfast.server.host import Host
from holdfast.server.webhook_records import WebhookRequest, WebhookStyle

FORMATS = {"1.0": "a2a", "0.3": "a2a-0.3"}  # of notifications, by the protocol's version
_PUSHED = ["status", "decision.ask"]  # the events after which clients are notified

_Configs = list[tuple[str, shapes.Json]]


class Pushes:
    """The configurations of an agent's tasks. All methods block. `find(context, id)` raises if
    there is no such task."""

    def __init__(self, host: Host, find: Callable[[Any, str], object]) -> None:
        self._host = host
        self._find = find

    def set(self, context: Any, config: Any) -> Any:
        """Keep a configuration, in place of one of the same id."""
        self._find(context, config.task_id)
        config.id = config.id or config.task_id
        data = json_of(config)
        with suppress(NotFound):
            self.remove(context, config.task_id, config.id)
        headers = {"content-type": "application/a2a+json"}
        if config.token:
            headers["x-a2a-notification-token"] = config.token
        if config.authentication.scheme:
            authentication = config.authentication
            headers["authorization"] = (
                f"{authentication.scheme} {authentication.credentials}".strip()
            )
        for name, value in headers.items():
            if not value.isascii() or not value.isprintable() or len(value) > 4000:
                raise ConfigurationError(f"{name}: takes printable ASCII characters.")
        version = context.state["headers"].get("a2a-version", "0.3")
        style = WebhookStyle(FORMATS["0.3" if version < "1" else "1.0"], headers, data)
        request = WebhookRequest(url=config.url, events=_PUSHED, conversation_id=config.task_id)
        self._host.webhooks.create(context.state["caller"].tenant, request, style=style)
        return config

    def list(self, context: Any, task_id: str) -> _Configs:
        """Return the ids of a task's webhooks, and their configurations."""
        self._find(context, task_id)
        styles = self._host.webhooks.styled(context.state["caller"].tenant, task_id)
        return [(id, style.about) for id, style in styles if style.format in FORMATS.values()]

    def get(self, context: Any, task_id: str, id: str) -> shapes.Json:
        """Return one configuration. Raises `NotFound`."""
        for _, about in self.list(context, task_id):
            if about["id"] == id:
                return about
        raise NotFound(f"There is no configuration {id[:100]!r}.", "configuration", id)

    def remove(self, context: Any, task_id: str, id: str) -> None:
        """Remove one configuration, if there is such a one."""
        for webhook, about in self.list(context, task_id):
            if about["id"] == id:
                self._host.webhooks.delete(context.state["caller"].tenant, webhook)
