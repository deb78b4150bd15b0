"""`offer_file`: a tool with which a model names a file as a result of its work.

The protocol doors hand such files to their clients, A2A as artifacts.
"""

from __future__ import annotations

import mimetypes
from pathlib import Path
from urllib.parse import quote, urlsplit

from holdfast.content import ResourceLink, TextContent, ToolResult
from holdfast.errors import ToolValidationError
from holdfast.tools.context import ToolContext
from holdfast.tools.policy import LOCAL_READ
from holdfast.tools.registry import ToolRegistry, register_preset, register_tool
from holdfast.tools.tool import Tool

OFFER_FILE = "offer_file"


def offer_file(path: str, context: ToolContext) -> ToolResult:
    """Give a file to the user as a result of your work, in addition to your answer. Offer each file
    that the user asked for, once it is complete.

    Args:
        path: The file's path in the working folder, or an https URL.
    """
    if urlsplit(path).scheme in ("http", "https"):
        uri, name = path, urlsplit(path).path.rstrip("/").rpartition("/")[2] or path
    else:
        workdir = getattr(context.runtime, "workdir", None)
        if workdir is None:
            raise ToolValidationError("path takes a URL here: there is no working folder.")
        root = Path(workdir).resolve()
        file = (root / path).resolve()
        if not file.is_relative_to(root) or not file.is_file():
            raise ToolValidationError(f"There is no file {path!r} in the working folder.")
        uri, name = f"file:///{quote(str(file.relative_to(root)))}", file.name
    link = ResourceLink(uri, name, mimetypes.guess_type(name)[0])
    return ToolResult((TextContent(f"The user gets {name}."), link))


def make_offer_file() -> Tool:
    """Return the tool `offer_file`."""
    return Tool.from_function(offer_file, annotations=LOCAL_READ, category="offering")


def register_offering_tools(registry: ToolRegistry | None = None) -> list[Tool]:
    """Return the offering tools, for `Agent(tools=...)`. With a `registry`, register them there
    too."""
    return register_preset(__name__, registry)


register_tool(OFFER_FILE, make_offer_file)
