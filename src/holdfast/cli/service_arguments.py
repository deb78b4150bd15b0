"""The command lines of `tools`, `mcp` and `serve`."""

from __future__ import annotations

from holdfast.cli.agent_arguments import observer_options
from holdfast.cli.parser import COUNT, CommandLine, Options, number, value

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

SERVE = """\
Run conversations for clients over HTTP. A program that uses
Conversation(agent) can use RemoteConversation(agent,
workspace=RemoteWorkspace(URL, KEY)) instead. Every conversation is kept in the
store and continues when the server restarts.

Clients send a key. The server takes its first key from --key-file or
HOLDFAST_SERVER_KEY. If neither is given and no key exists yet, the server
makes one and prints it once. `holdfast serve keys` makes more, for the same
tenant or for others. A tenant cannot see the conversations and workspaces of
another one through the API. Commands run as the server's user, however, and
can read what that user can read. Tenants who do not trust each other need
servers under separate users or on separate machines.

  serve                          serve until Ctrl-C or SIGTERM
  serve keys add [--tenant T] [--label L]
                                 make a key and print it
  serve keys list [--tenant T]   list the ids and tenants of keys, not the keys
  serve keys remove [ID] [--tenant T]
                                 remove the key ID, or all keys of tenant T

examples:
  holdfast serve
  holdfast serve --store agents.db --root ~/work --allow-tools 'acme_tools.*'
  holdfast serve --listen 0.0.0.0:8765 --tls-cert server.pem --tls-key server.key
  holdfast serve keys add --tenant alice --store agents.db
  holdfast serve --agent coder=coder.yaml --variable OPENAI_API_KEY

Anyone with a key can run commands as the user who started the server. To
listen on other addresses than this machine's own, give a TLS certificate, or
--insecure if a proxy provides TLS. Modules that clients name for their tools
are imported if an installed package declares them (entry point holdfast.tools)
or --allow-tools names them; other tools run at the client.

Exit code 130, 143: ended by SIGINT or SIGTERM, after running work has stopped;
a second signal ends the server at once. 1: the store cannot be used. 2: a
wrong option, an address that is not available, a store that another server
uses."""

_TOOL_CONFIG = "the tool config"
_HOST = "another Host header to accept"

TOOLS_COMMAND = CommandLine(
    "tools",
    "list, describe, call and check an agent's tools",
    TOOLS,
    {
        "--config FILE": f"{_TOOL_CONFIG}; without it the builtin tools",
        "--workdir DIR": value(
            "the folder that builtin tools work in (the current one)", default="."
        ),
        "--json": "print JSON instead of text",
        "--full": "show descriptions and results in full, also on a terminal",
        "what [WHAT]": value(
            "see above", choices=["list", "describe", "call", "check"], default="list"
        ),
        "name [NAME]": "describe, call: the tool",
        "words [ARGUMENT ...]": "call: its arguments",
    },
)
MCP_COMMAND = CommandLine(
    "mcp",
    "offer tools to MCP clients, as a server",
    MCP,
    {
        "--config FILE": _TOOL_CONFIG,
        "--workdir DIR": (
            "the folder that builtin tools work in; without --config all of them are offered"
        ),
        "--http HOST:PORT": (
            "serve streamable HTTP at this address, under /mcp; port 0 takes any free port"
        ),
        "--token-env NAME": "the environment variable with the token that HTTP clients must send",
        "--allow-host NAME ...": f"with --http: {_HOST}",
        "--name NAME": value(
            "the server's name, which clients show (holdfast)", default="holdfast"
        ),
    },
)
_FILES: Options = {
    "--listen HOST:PORT": value(
        "the address to listen on (127.0.0.1:8765); port 0 takes any free port",
        default="127.0.0.1:8765",
    ),
    "--store FILE": value(
        "the SQLite file of all journals (holdfast-server.db)", default="holdfast-server.db"
    ),
    "--root DIR": "the folder that holds the workspaces (FILE.workspaces)",
    "--tls-cert FILE": "serve https: the certificate with its chain, in PEM",
    "--tls-key FILE": "the certificate's private key; not needed if it is in the same file",
    "--insecure": "let other machines connect without TLS",
}
_ACCESS: Options = {
    "--key-file FILE": "a file that contains a client key (or HOLDFAST_SERVER_KEY)",
    "--tenant T": "keys: the tenant of the keys; serve: the tenant of the given key (default)",
    "--label TEXT": value("keys add: a note on the purpose of the key", default=""),
    "--cors-origin O ...": "let web pages of this origin use the server",
    "--allow-host NAME ...": _HOST,
}
_LIMITS: Options = {
    "--allow-tools PATTERN ...": (
        "modules that clients may name for tools, such as acme_tools.* ('*' allows all; only"
        " for a server of your own)"
    ),
    "--variable [PROVIDER:]NAME[=VALUE] ...": (
        "the value of ${NAME} in agents: VALUE, or the value in the environment. Tenants other"
        " than `default` may use it only as the key for models of one provider: PROVIDER, or"
        " the provider known for that name"
    ),
    "--agent NAME=FILE ...": (
        "offer the agent of this file (YAML or JSON, as load_agent reads it) to clients of"
        " OpenAI's API, as the model NAME at /v1"
    ),
    "--webhook-allow HOST ...": (
        "a host that webhooks may call although it is not public, also without TLS: a name, an"
        " address or a network"
    ),
    "--webhook-days N": value(
        "the number of days for which a failed webhook delivery is repeated (3)",
        type=COUNT,
        default=3,
    ),
    "--max-running N": value(
        "conversations that run at once; others wait (64)", type=COUNT, default=64
    ),
    "--isolation": value(
        "where conversations run: in threads of the server, or each in a process of its own,"
        " so that a crash affects no other (thread)",
        choices=["thread", "process"],
        default="thread",
    ),
    "--worker-memory MB": value(
        "the address space of each process of --isolation process; 256 or more (no limit)",
        type=number("a whole number from 256, or 0,", int, 256, 2**30, 0),
        default=0,
    ),
    "--max-body BYTES": value(
        "the largest body of a request (33554432)", type=COUNT, default=32 * 1024 * 1024
    ),
    "--rate N": value(
        "requests per second for each key (500; 0: no limit)",
        type=number("a number from 0", float, 0, 1e6),
        default=500.0,
    ),
}
SERVE_COMMAND = CommandLine(
    "serve",
    "run conversations for clients, over HTTP",
    SERVE,
    {
        "what [WHAT]": value("keys: manage the server's keys (see above)", choices=["keys"]),
        "action [ACTION]": value("add, list, remove", choices=["add", "list", "remove"]),
        "id [ID]": "keys remove: the key's id, as `keys list` shows it",
        "address and files": _FILES,
        "access": _ACCESS,
        "permissions and limits": _LIMITS,
        "--access-log": "write a line to stderr for each request",
        **observer_options("the texts of conversations are left out"),
    },
)
