"""A client's side of the tools of a workspace on an agent server: a call here runs there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.content import ToolResult
from holdfast.errors import Cancelled, ToolCancelled
from holdfast.tools import Tool, ToolAnnotations, ToolContext
from holdfast.tools.json_values import copy_json

if TYPE_CHECKING:
    from holdfast.remote.workspace import RemoteWorkspace

BUILTIN = "holdfast.runtime"  # the module of a runtime's own tools, which every server has


class Described(msgspec.Struct, frozen=True, rename="camel"):
    """The server's description of a tool."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] | None = None
    annotations: ToolAnnotations = ToolAnnotations()
    category: str = "general"
    timeout: float | None = None


class RemoteTool(Tool):
    """One tool of a `RemoteWorkspace`. In a `RemoteConversation` of that workspace the server
    runs it itself; anywhere else a call is an HTTP request."""

    tool_type = "local_function"
    untrusted = True

    def __init__(self, workspace: RemoteWorkspace, described: Described) -> None:
        super().__init__(
            described.name,
            described.description,
            None,
            described.input_schema or {"type": "object", "properties": {}},
            described.output_schema,
            described.annotations,
            described.category,
            described.timeout,
        )
        self.module_qualname = f"{BUILTIN}.builtin"
        self.workspace = workspace
        self._schema_there = described.input_schema or super().input_schema

    @property
    def input_schema(self) -> dict[str, Any]:
        """The server's schema, unchanged, so that conversations share a provider's cache."""
        return copy_json(self._schema_there)

    def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Run the tool in the workspace. Raises `ToolCancelled`, and the server's errors."""
        try:
            return self.workspace.call_tool(
                self.name,
                arguments,
                conversation_id=context.conversation_id,
                cancelled=context.cancelled,
            )
        except Cancelled:
            raise ToolCancelled(
                f"{self.name!r} was cancelled; its effect may have happened."
            ) from None
