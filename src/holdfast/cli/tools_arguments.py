"""The options of `holdfast tools` and `holdfast mcp`, and their help texts."""

from __future__ import annotations

import argparse
from collections.abc import Callable

TOOLS = """\
List, describe, call and check an agent's tools from the shell: the tools of a
tool config (YAML or JSON: functions, MCP servers, A2A agents, builtins,
skills) or, without --config, the builtin tools that work in a folder.

  list             every tool: name, service, first line of its description
  describe NAME    everything that is known about one tool
  call NAME ...    call a tool: arguments as JSON, as key=value pairs, or - for
                   JSON on standard input
  check            ask every service, also the lazy ones: does it answer, what
                   is wrong with it, which tools are quarantined or unusable

examples:
  holdfast tools
  holdfast tools --config tools.yaml check
  holdfast tools --config tools.yaml describe git.log
  holdfast tools call grep pattern=TODO path=src
  holdfast tools call read_file '{"path": "README.md", "limit": 20}'

${NAME} in the config is replaced from your environment; other variables are
not read. Modules of local functions are looked up beside the config, in the
current folder and on the Python path.

Exit code 0: success. 1: the call returned an error, or check found a problem.
2: no such tool, invalid arguments, or an invalid config."""

MCP = """\
Offer the tools of a tool config to MCP clients as one server, or with
--workdir the builtin tools that work in a folder. The server uses standard
input and output, or with --http a network address.

A client's configuration for it:
  {"mcpServers": {"mine": {"command": "holdfast",
                           "args": ["mcp", "--config", "/path/to/tools.yaml"]}}}

examples:
  holdfast mcp --config tools.yaml
  holdfast mcp --config tools.yaml --http 127.0.0.1:8000
      at http://127.0.0.1:8000/mcp
  holdfast mcp --workdir ~/src/tool --http 0.0.0.0:8000 --token-env MCP_TOKEN
      for other machines: anyone with the token may call every tool

Any address other than this machine's own needs a token. The server has no TLS;
on a network, put a proxy with TLS before it. All clients of one server share
one shell. ${NAME} in the config is replaced from your environment.

Exit code 0: the client closed its end. 130, 143: SIGINT, SIGTERM. 2: an
invalid config, or an address that is not available."""

Add = Callable[[str, str, str, str], argparse.ArgumentParser]


def add_commands(add: Add) -> None:
    """Add both commands through `add(name, summary, description, epilog)`."""
    tools = add("tools", "list, describe, call and check an agent's tools", TOOLS, "")
    tools.add_argument(
        "--config", metavar="FILE", help="the tool config; without it the builtin tools"
    )
    tools.add_argument(
        "--workdir",
        metavar="DIR",
        default=".",
        help="the folder that builtin tools work in (the current one)",
    )
    tools.add_argument("--json", action="store_true", help="print JSON instead of text")
    tools.add_argument(
        "--full",
        action="store_true",
        help="show descriptions and results in full, also on a terminal",
    )
    tools.add_argument(
        "what",
        metavar="WHAT",
        nargs="?",
        choices=["list", "describe", "call", "check"],
        default="list",
        help="see above",
    )
    tools.add_argument("name", metavar="NAME", nargs="?", help="describe, call: the tool")
    tools.add_argument("words", metavar="ARGUMENT", nargs="*", help="call: its arguments")
    mcp = add("mcp", "offer tools to MCP clients, as a server", MCP, "")
    mcp.add_argument("--config", metavar="FILE", help="the tool config")
    mcp.add_argument(
        "--workdir",
        metavar="DIR",
        help="the folder that builtin tools work in; without --config all of them are offered",
    )
    mcp.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve streamable HTTP at this address, under /mcp; port 0 takes any free port",
    )
    mcp.add_argument(
        "--token-env",
        metavar="NAME",
        help="the environment variable with the token that HTTP clients must send",
    )
    mcp.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="with --http: another Host header to accept; repeatable",
    )
    mcp.add_argument(
        "--name",
        metavar="NAME",
        default="holdfast",
        help="the server's name, which clients show (holdfast)",
    )
