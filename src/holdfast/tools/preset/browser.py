"""A browser for agents: the configuration of Microsoft's Playwright MCP server (npm
`@playwright/mcp`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from holdfast.errors import ConfigurationError

VERSION = "0.0.83"  # the version that this configuration was checked with


def browser_server(
    *,
    executable: str | os.PathLike[str] | None = None,
    headless: bool = True,
    sandbox: bool = True,
    origins: Sequence[str] = (),
    output_dir: str | os.PathLike[str] | None = None,
    command: Sequence[str] = ("npx", "-y", f"@playwright/mcp@{VERSION}"),
    call_timeout: float = 120.0,
) -> dict[str, Any]:
    """Return a server for `Agent(mcp_servers={"browser": browser_server()})` or `MCPClient`.

    The server needs Node.js 18 or newer and a browser on the machine. The profile is in memory and
    ends with the server. The tools are `browser.browser_navigate`, `browser.browser_snapshot`,
    `browser.browser_click` and others; none of them is trusted to be read-only.

    Args:
        executable: The browser, such as `/usr/bin/chromium`; None for the Chrome of Playwright.
        headless: False shows the browser's window.
        sandbox: False turns the browser's own sandbox off, which a container or root may need.
        origins: Origins that pages may request, such as `https://example.org`; none: any. The
            server says that this is no security boundary.
        output_dir: The folder for screenshots and downloads.
        command: The program and its first arguments. The default downloads the package on its
            first use.
        call_timeout: Seconds for one call.
    """
    if isinstance(command, str) or not command:
        raise ConfigurationError(
            f"browser_server: command takes a list such as ['npx', '@playwright/mcp'], not"
            f" {command!r}."
        )
    program, *arguments = command
    arguments.append("--isolated")
    if headless:
        arguments.append("--headless")
    if not sandbox:
        arguments.append("--no-sandbox")
    if executable is not None:
        arguments += ["--executable-path", os.fspath(executable)]
    if origins:
        arguments += ["--allowed-origins", ";".join(origins)]
    if output_dir is not None:
        arguments += ["--output-dir", os.fspath(output_dir)]
    return {"command": program, "args": arguments, "call_timeout": call_timeout}
