"""`NamedModel`: a model that an agent server has under a name."""

from __future__ import annotations

from typing import Any

from holdfast.content import Usage
from holdfast.errors import ConfigurationError
from holdfast.llm.base import CompletionCall, FrozenModel
from holdfast.llm.completion import Completion


class NamedModel(FrozenModel):
    """A model that an agent server has under a name, for agents of a `RemoteConversation`.

    The server replaces it by its own model of that name: one of its operator, or of the key's
    tenant (`/api/models` lists both). The client needs neither its key nor its address. Asking this
    object raises `ConfigurationError`, since it exists on the server alone.
    """

    name: str
    model: str

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                f"NamedModel takes the name of a model of an agent server, not {name!r}."
            )
        self._set(name=name, model=name)

    def parameters(self) -> dict[str, Any]:
        return {}

    def cost(self, usage: Usage) -> float | None:
        return None

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def complete(self, call: CompletionCall) -> Completion:
        raise ConfigurationError(
            f"The model {self.name!r} is a name on an agent server: use the agent in a"
            " RemoteConversation. If this is that server, it has no model of this name; GET"
            " /api/models lists them."
        )

    def __repr__(self) -> str:
        return f"NamedModel({self.name!r})"
