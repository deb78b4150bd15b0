"""A server for the tests of serving, as a program: `python -m tests.mcp_tools [HOST:PORT]`, over
stdio without an address.

It has the tools that the MCP conformance kit calls, and some that misbehave.
"""

from __future__ import annotations

import base64
import logging
import os
import subprocess
import sys
import threading
import time
from typing import Any

from holdfast import (
    ImageContent,
    TextContent,
    Tool,
    ToolAnnotations,
    ToolContext,
    ToolManager,
    ToolResult,
)
from holdfast.content import AudioContent, EmbeddedResource
from holdfast.serve import mcp

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)
WAV = b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0\x80>\0\0\2\0\x10\0data\0\0\0\0"

# --- tools that the kit calls ---


def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


def test_image_content() -> ImageContent:
    """Return an image."""
    return ImageContent(PNG)


def test_audio_content() -> AudioContent:
    """Return a sound."""
    return AudioContent(WAV)


def _resource(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    return EmbeddedResource({"uri": uri, "mimeType": mime_type, "text": text})


def test_embedded_resource() -> EmbeddedResource:
    """Return a resource."""
    return _resource(
        "test://embedded-resource", "text/plain", "This is an embedded resource content."
    )


def test_multiple_content_types() -> list[Any]:
    """Return a text, an image and a resource."""
    resource = _resource(
        "test://mixed-content-resource", "application/json", '{"test":"data","value":123}'
    )
    return [TextContent("Multiple content types test:"), ImageContent(PNG), resource]


def test_error_handling() -> ToolResult:
    """Return an error."""
    return ToolResult.failure("This tool intentionally returns an error for testing")


def test_tool_with_progress(context: ToolContext) -> str:
    """Report progress in steps."""
    for step in range(3):
        context.report_progress(f"step {step}")
        context.sleep(0.05)
    return "done"


JSON_SCHEMA_2020_12 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def json_schema_2020_12_tool(**arguments: Any) -> str:
    """Take arguments by a large schema."""
    return str(arguments)


def test_streaming_elicitation(context: ToolContext) -> str:
    """Ask the user nothing, and take a moment."""
    context.report_progress("streaming")
    context.sleep(0.05)
    return "done"


def test_logging_tool(context: ToolContext) -> str:
    """Log like a Python program."""
    logging.getLogger("mcp_tools").warning("logged")
    context.report_progress("logged")
    return "done"


MIRRORED = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "query": {"type": "string"},
    },
}


def mirrored(region: str = "", query: str = "") -> str:
    """Return both arguments; one of them is also in a header."""
    return f"{query} in {region}"


# --- tools that misbehave ---


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def mark(path: str, text: str = "called") -> str:
    """Append a line to a file."""
    with open(path, "a") as file:
        file.write(text + "\n")
    return text


def wait_for_cancel(path: str, context: ToolContext) -> str:
    """Write to a file when the call begins and when it is cancelled."""
    mark(path, "began")
    context.cancelled.wait(60)
    mark(path, "cancelled")
    return "waited"


def never(path: str) -> str:
    """Ignore the cancellation."""
    mark(path, "began")
    threading.Event().wait(600)
    return "woke"


def sleep(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return f"slept {seconds:g} s"


def loud() -> str:
    """Print to stdout in every possible way."""
    print("printed")
    os.write(1, b'{"jsonrpc":"2.0","id":1,"result":{}}\n')
    subprocess.run(["sh", "-c", "echo from a child; cat"], check=True)
    return f"read {sys.stdin.read()!r}"


def large(characters: int) -> str:
    """Return many characters."""
    return "x" * characters


def leave() -> str:
    """Call sys.exit."""
    sys.exit(7)


def chatty(messages: int, context: ToolContext) -> str:
    """Report progress very often."""
    for number in range(messages):
        context.report_progress(str(number))
    return "said"


def point() -> dict[str, Any]:
    """Return data that fits the output schema."""
    return {"x": 1, "y": None}


def liar() -> dict[str, Any]:
    """Return data that does not fit the output schema."""
    return {"x": "one"}


def numbers() -> list[int]:
    """Return a list."""
    return [1, 2, 3]


POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": ["integer", "null"]}},
    "required": ["x"],
}
READS = ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False)


def tools() -> list[Tool]:
    """Return all tools."""
    plain = [
        test_simple_text,
        test_image_content,
        test_audio_content,
        test_embedded_resource,
        test_multiple_content_types,
        test_error_handling,
        test_tool_with_progress,
        test_streaming_elicitation,
        test_logging_tool,
        add,
        mark,
        wait_for_cancel,
        never,
        sleep,
        loud,
        large,
        leave,
        chatty,
    ]
    return [
        *map(Tool.from_function, plain),
        Tool(
            "json_schema_2020_12_tool",
            "Take arguments by a large schema.",
            json_schema_2020_12_tool,
            JSON_SCHEMA_2020_12,
        ),
        Tool("mirrored", "Mirrors.", mirrored, MIRRORED),
        Tool("geo.point", "Answers a point.", point, output_schema=POINT, annotations=READS),
        Tool("liar", "Answers no point.", liar, output_schema=POINT),
        Tool(
            "numbers",
            "Answers a list.",
            numbers,
            output_schema={"type": "array", "items": {"type": "integer"}},
        ),
    ]


def changing(manager: ToolManager) -> list[Tool]:
    """Return tools that change the list of tools."""

    def test_trigger_tool_change() -> str:
        """Add a tool, or remove it."""
        if manager.exists("newcomer"):
            manager.unregister("newcomer")
        else:
            manager.register(Tool("newcomer", "Was not there before.", lambda: "here"))
        return "changed"

    return [Tool.from_function(test_trigger_tool_change)]


def main() -> int:
    """Serve until the end of the input."""
    manager = ToolManager(tools())
    for tool in changing(manager):
        manager.register(tool)
    address = sys.argv[1] if len(sys.argv) > 1 else None
    return mcp(
        manager,
        http=address,
        token=os.environ.get("MCP_TOOLS_TOKEN"),
        on_ready=lambda url: print(url, flush=True),
    )


if __name__ == "__main__":
    sys.exit(main())
