"""The commands that offer agents, tools and models to other programs, and that list them."""

from __future__ import annotations

from holdfast.cli.parser import CommandLine, Option, Options, number
from holdfast.cli.session_arguments import FOLDER_OF_MODELS, SANDBOX_REACH, observer_options

_TOOL_CONFIG = "the tool config"
_HOST = "another Host header to accept"
_FILES: Options = {
    "--listen HOST:PORT = 127.0.0.1:8765": """the address to listen on (127.0.0.1:8765); port 0
        takes any free port""",
    "--store STORE": """the SQLite file of all journals (HOLDFAST_STORE, else holdfast-server.db);
        or postgresql://..., a database that any number of servers share""",
    "--schema NAME = holdfast": """with a Postgres database: the schema of the journals; NAME_server
        has the records (holdfast)""",
    "--seal-key FILE": """with a Postgres database: the key that seals clients' secrets, the same
        for all its servers; a missing file is made""",
    "--root DIR": """the folder that holds the workspaces (FILE.workspaces); with a Postgres
        database a folder that all its servers share, or there are no workspaces""",
    "--no-drive": """with a Postgres database: only answer requests, and leave the conversations to
        other servers and workers""",
    "--workspace ID=DIR ...": """let clients work in this existing folder, as the workspace ID of
        the tenant of --tenant""",
    "--tls-cert FILE": "serve https: the certificate with its chain, in PEM",
    "--tls-key FILE": "the certificate's private key; not needed if it is in the same file",
    "--insecure": "let other machines connect without TLS",
}
_ACCESS: Options = {
    "--key-file FILE": "a file that contains a client key (or HOLDFAST_SERVER_KEY)",
    "--supervised": """take a client key from the first line of standard input, and end when
        standard input ends: for a program that runs the server""",
    "--tenant T": "keys: the tenant of the keys; serve: the tenant of the given key (default)",
    "--label TEXT =": "keys add: a note on the purpose of the key",
    "--cors-origin O ...": "let web pages of this origin use the server",
    "--allow-host NAME ...": _HOST,
}
_BOXED: Options = {
    "--sandbox {off,require} = off": """require: run the commands of builtin tools in a sandbox,
        which sees DIR alone and has no network; functions of a config stay outside (off)""",
    **SANDBOX_REACH,
}
_LIMITS: Options = {
    "--sandbox {off,require} = off": """require: run the commands of each conversation in a sandbox
        of its own, which sees its workspace alone and has no network (off)""",
    "--network HOST ...": SANDBOX_REACH["--network HOST ..."],
    "--allow-tools PATTERN ...": """modules that clients may name for tools, such as
        acme_tools.* ('*' allows all; only for a server of your own)""",
    "--allow-hook-commands": """run the commands of the hooks of clients' agents: with --sandbox in
        the sandbox, else as the user who started the server""",
    "--variable [PROVIDER:]NAME[=VALUE] ...": """the value of ${NAME} in agents: VALUE, or the
        value in the environment. Tenants other than `default` may use it only as the key for
        models of one provider: PROVIDER, or the provider known for that name""",
    "--agent NAME[=FILE] ...": """offer the agent of this file (YAML or JSON, as load_agent reads
        it) to clients of OpenAI's API, as the model NAME at /v1; without FILE the agent NAME of
        the folder of models""",
    "--a2a NAME[=FILE] ...": """offer this agent to clients of A2A, at /a2a/NAME; without FILE the
        --agent of this name, or the agent NAME of the folder of models""",
    "--a2a-url URL": "the server's address in A2A's cards (that of each request)",
    "--a2a-sign FILE": "sign A2A's cards with this private key, in PEM",
    "--model NAME ...": """let agents of all clients use this model of the folder of models, with
        its key, by its name; without it, all models of --models""",
    "--models DIR": FOLDER_OF_MODELS,
    "--webhook-allow HOST ...": """a host that webhooks may call although it is not public, also
        without TLS: a name, an address or a network""",
    "--webhook-days N = 3": """the number of days for which a failed webhook delivery is repeated
        (3)""",
    "--max-running N = 64": "conversations that run at once; others wait (64)",
    "--isolation {thread,process} = thread": """run conversations in threads of the server, or
        each in a process of its own, so that a crash affects no other (thread)""",
    "--worker-memory MB": Option(
        "the address space of each process of --isolation process; 256 or more (no limit)",
        type=number("a whole number from 256, or 0,", int, 256, 2**30, 0),
        default=0,
    ),
    "--max-body BYTES = 33554432": Option(
        "the largest body of a request (33554432)",
        type=number("a whole number from 1", int, 1, 2**40),
    ),
    "--rate N": Option(
        "requests per second for each key (500; 0: no limit)",
        type=number("a number from 0", float, 0, 1e6),
        default=500.0,
    ),
}
_FLEET: Options = {
    "--store STORE": Option("an SQLite file, or postgresql://...", required=True),
    "--schema NAME = holdfast": "the schema in Postgres (default holdfast)",
    "--queue NAME": "the queue that the worker serves (default: default), or that is shown",
    "--backend KIND {table,procrastinate}": """table, or procrastinate (default on Postgres if it is
        installed)""",
}

SKILLS = CommandLine(
    "skills",
    "list the skills of folders and plugins",
    """\
List the skills that an agent would have from these folders: a folder of skills,
a repository, or a plugin. Each line says how the model is shown the skill: on
demand, always, by words of yours, or by files. Omitted parts are on standard
error, with the reason.

Exit code 0: listed. 1: something was left out. 2: a plugin cannot be read.

examples:
  holdfast skills list
  holdfast skills list ~/.agents/skills ./plugins/review""",
    {
        "what WHAT {list}": "list",
        "folders [DIR ...]": "the folders (the current one)",
        "--json": "print JSON lines",
    },
)
MODELS = CommandLine(
    "models",
    "list the named models of a folder",
    """\
List the models and agents of a folder of small files, each under the name of
its file: the model, its list price per million tokens, its context window, and
whether there is a key, which is never shown. A file (YAML or JSON) holds a
model as an agent's file does, or an agent, which has the key `model`:

  name: gpt-5-mini
  api_key: ${OPENAI_API_KEY}

${NAME} is replaced from your environment. A model without api_key gets the key
of its provider. `run` and `chat` take such a name as --model, and `serve` offers
the models to its clients. Files that are wrong are on standard error.

Exit code 0: listed. 1: a file is wrong. 2: no such folder.

examples:
  holdfast models
  holdfast models --models ./models --json
  holdfast run "Fix the tests" --model fast""",
    {
        "--models DIR": FOLDER_OF_MODELS,
        "--json": "print JSON lines",
    },
)
TOOLS = CommandLine(
    "tools",
    "list, describe, call and check an agent's tools",
    """\
List, describe, call and check an agent's tools from the shell: the tools of a
tool config (YAML, JSON or TOML: functions, MCP servers, A2A agents, builtins,
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
2: no such tool, invalid arguments, or an invalid config.""",
    {
        "--config FILE": f"{_TOOL_CONFIG}; without it the builtin tools",
        "--workdir DIR = .": "the folder that builtin tools work in (the current one)",
        **_BOXED,
        "--json": "print JSON instead of text",
        "--full": "show descriptions and results in full, also on a terminal",
        "what [WHAT] {list,describe,call,check} = list": "see above",
        "name [NAME]": "describe, call: the tool",
        "words [ARGUMENT ...]": "call: its arguments",
    },
    defaults={"allow_outside": False, "env": [], "store": None},
)
MCP = CommandLine(
    "mcp",
    "offer tools to MCP clients, as a server",
    """\
Offer the tools of a tool config to MCP clients as one server, or with
--workdir the builtin tools that work in a folder. With --agent, offer an agent
instead, as the tool ask_NAME: its approvals and questions go to the client's
user. The server uses standard input and output, or with --http a network
address.

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
invalid config, or an address that is not available.""",
    {
        "--config FILE": _TOOL_CONFIG,
        "--workdir DIR": """the folder that builtin tools work in; without --config all of
            them are offered""",
        "--agent FILE": """offer this agent (YAML or JSON, as load_agent reads it); its builtin
            tools work in --workdir (the current folder). ${NAME} is replaced from your
            environment""",
        "--store FILE": """with --agent: keep its conversations in this SQLite file (in memory,
            until the end)""",
        **_BOXED,
        "--http HOST:PORT": """serve streamable HTTP at this address, under /mcp; port 0
            takes any free port""",
        "--token-env NAME": """the environment variable with the token that HTTP clients
            must send""",
        "--allow-host NAME ...": f"with --http: {_HOST}",
        "--name NAME": """the server's name, which clients show (holdfast); with --agent the agent's
            name (that of its file)""",
    },
    defaults={"allow_outside": False, "env": []},
)
SERVE = CommandLine(
    "serve",
    "run conversations for clients, over HTTP",
    """\
Run conversations for clients over HTTP. A program that uses
Conversation(agent) can use RemoteConversation(agent,
workspace=RemoteWorkspace(URL, KEY)) instead. Every conversation is kept in the
store and continues when the server restarts.

Clients send a key. The server takes its first key from --key-file or
HOLDFAST_SERVER_KEY. If neither is given and no key exists yet, the server
makes one and prints it once, with a link that signs in to the server's page.
`holdfast serve keys` makes more, for the same
tenant or for others. A tenant cannot see the conversations and workspaces of
another one through the API. Commands run as the server's user, however, and
can read what that user can read. With --sandbox require they run in a sandbox
and see the workspace of their conversation alone. Tenants who do not trust
each other at all need servers on separate machines.

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
  holdfast serve --sandbox require --network pypi.org
  holdfast serve --agent coder=coder.yaml --variable OPENAI_API_KEY
  holdfast serve --models /etc/holdfast/models

Without --sandbox require, anyone with a key can run commands as the user who
started the server. To listen on other addresses than this machine's own, give
a TLS certificate, or --insecure if a proxy provides TLS. Modules that clients
name for their tools are imported if an installed package declares them (entry
point holdfast.tools) or --allow-tools names them; other tools run at the
client.

Exit code 130, 143: ended by SIGINT or SIGTERM, after running work has stopped;
a second signal ends the server at once. 1: the store cannot be used. 2: a
wrong option, an address that is not available, a store that another server
uses.""",
    {
        "what [WHAT] {keys}": "keys: manage the server's keys (see above)",
        "action [ACTION] {add,list,remove}": "add, list, remove",
        "id [ID]": "keys remove: the key's id, as `keys list` shows it",
        "address and files": _FILES,
        "access": _ACCESS,
        "permissions and limits": _LIMITS,
        "--access-log": "write a line to stderr for each request",
        **observer_options("the texts of conversations are left out"),
    },
)
WORKER = CommandLine(
    "worker",
    "drive the conversations of a store, beside other workers",
    """\
Drive the conversations of a store that have work: a message, a decision, a
result, a due timer, or an owner that died. Any number of workers serve one
store, on any machines if it is in Postgres. A conversation continues in
another worker when its worker is killed, frozen or cut off.

examples:
  holdfast worker --store agents.db --agent coder.yaml
  holdfast worker --store postgresql://db.example/agents --agent coder.yaml \\
      --variable OPENAI_API_KEY --concurrency 32 --ready 0.0.0.0:8080

SIGTERM and Ctrl-C drain the worker: each run ends at its next step and
continues in another worker. A run that is still working after --grace is
interrupted.

All workers of a queue take the same --backend. The password of a database is
better kept in PGPASSWORD or ~/.pgpass than in the address.

Exit code 130, 143: ended by SIGINT or SIGTERM. 1: the store cannot be used.
2: a wrong option or agent.""",
    {
        "--agent FILE": Option("the agent, as YAML or JSON", required=True),
        "--workdir DIR": "the folder of the builtin tools (default: the present one)",
        "--variable NAME[=VALUE] ...": "a variable that the agent's file refers to",
        **_FLEET,
        "--concurrency N = 16": "conversations that run at once",
        "--tenant-limit N": "the same for one tenant in all workers of the queue",
        "--grace S": Option(
            "seconds to drain (default 30)",
            type=number("seconds from 0", float, 0, 86_400),
            default=30.0,
        ),
        "--ready ADDRESS": "answer GET /ready at this HOST:PORT",
    },
    function="fleet.worker",
)
FLEET = CommandLine(
    "fleet",
    "show the workers and the queue of a store",
    """\
Show the workers of a store, how many conversations they drive, how many wait
and for how long, and how many come to rest per second.

example:
  holdfast fleet status --store postgresql://db.example/agents""",
    {
        "what WHAT {status}": "status",
        **_FLEET,
        "--json": "print JSON",
    },
)
COMPLETION = CommandLine(
    "completion",
    "print a script that completes commands and options in a shell",
    """\
Print a script with which a shell completes the commands of holdfast, their
options and the names of files.

examples:
  holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
  holdfast completion zsh > ~/.zfunc/_holdfast      # a folder of your fpath
  holdfast completion fish > ~/.config/fish/completions/holdfast.fish""",
    {"shell SHELL {bash,zsh,fish}": "bash, zsh or fish"},
)
