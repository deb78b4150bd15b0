"""The client that the MCP conformance kit tests: `MCPClient`, told by the kit's environment what to do at the address in the last argument."""

from __future__ import annotations

import http.client
import json
import os
import sys
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import ToolError
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp import ClientCredentials, MCPClient, OAuth
from holdfast.tools.tool import Tool

REDIRECT = "http://localhost:3000/callback"


class Person:
    """Somebody who consents to everything at once."""

    def __init__(self) -> None:
        self.sent_to = ""

    def redirect(self, url: str) -> None:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=10)
        connection.request("GET", f"{parts.path}?{parts.query}")
        self.sent_to = connection.getresponse().headers["location"]
        connection.close()

    def callback(self) -> str:
        return self.sent_to


def issuer(url: str) -> str:
    """Whom the server says it trusts; a real client is told so by its owner."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    connection.request("GET", f"/.well-known/oauth-protected-resource{parts.path}")
    found = json.load(connection.getresponse())["authorization_servers"][0]
    connection.close()
    return found


def authentication(scenario: str, url: str, context: dict[str, Any]) -> Any:
    if not scenario.startswith("auth/"):
        return None
    if scenario.startswith("auth/client-credentials"):
        return ClientCredentials(
            client_id=context["client_id"],
            client_secret=context.get("client_secret"),
            private_key=context.get("private_key_pem"),
            algorithm=context.get("signing_algorithm", "RS256"),
            issuer=issuer(url),
            storage={},
        )
    person = Person()
    return OAuth(
        redirect=person.redirect,
        callback=person.callback,
        storage={},
        redirect_uri=REDIRECT,
        client_metadata_url="https://conformance-test.local/client-metadata.json",
        client_id=context.get("client_id"),
        client_secret=context.get("client_secret"),
    )


def arguments(scenario: str, tool: Tool, context: dict[str, Any]) -> dict[str, Any]:
    """What the kit wants a tool called with, or the smallest thing that its schema takes."""
    if tool.name == "kit.add_numbers":
        return {"a": 5, "b": 3}
    given: dict[str, Any] = {}
    for name in tool.input_schema.get("required", ()):
        kind = tool.input_schema["properties"][name].get("type", "string")
        given[name] = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}.get(
            kind, "value"
        )
    return given


def main(url: str) -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    context: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    version = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "auto")
    server: dict[str, Any] = {
        "url": url,
        "mode": version if version in ("2025-11-25", "2026-07-28") else "auto",
    }
    auth = authentication(scenario, url, context)

    def elicit(asked: Any) -> dict[str, Any]:
        return (
            {
                name: True
                for name, field in (asked.schema or {}).get("properties", {}).items()
                if field.get("type") == "boolean"
            }
            if (scenario == "sep-2322-client-request-state")
            else {}
        )

    with MCPClient(
        {"kit": server},
        timeout=15,
        call_timeout=20,
        elicit=elicit,
        roots=["/"],
        auth=None if auth is None else {"kit": auth},
    ) as client:
        tools = client.tools()
        for error in client.errors.values():
            print(error, file=sys.stderr)
        calls = context.get("toolCalls")
        if calls:
            by_name = {tool.name: tool for tool in tools}
            for call in calls:
                attempt(by_name[f"kit.{call['name']}"], call.get("arguments") or {})
            return
        if scenario == "json-schema-2020-12-preservation":
            by_name = {tool.name: tool for tool in tools}
            attempt(
                by_name["kit.json_schema_echo"],
                {"schema": by_name["kit.json_schema_2020_12_tool"].input_schema},
            )
            return
        for tool in tools:
            attempt(tool, arguments(scenario, tool, context))
    if client.errors and not scenario.startswith(
        "auth/"
    ):  # there some must fail, and the kit sees how far it came
        sys.exit(1)


def attempt(tool: Tool, given: dict[str, Any]) -> None:
    try:
        print(
            tool.name, given, tool.call(given, ToolContext())
        )  # not `run`: the kit also hands over what the schema refuses
    except ToolError as error:
        print(tool.name, given, error, file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[-1])
