"""The options of `holdfast serve` and their help texts."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from holdfast.cli.observe_arguments import add_observing

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

Add = Callable[[str, str, str, str], argparse.ArgumentParser]


def add_serve(add: Add) -> None:
    """Add the command through `add(name, summary, description, epilog)`."""
    serve = add("serve", "run conversations for clients, over HTTP", SERVE, "")
    serve.add_argument(
        "what",
        metavar="WHAT",
        nargs="?",
        choices=["keys"],
        help="keys: manage the server's keys (see above)",
    )
    serve.add_argument(
        "action",
        metavar="ACTION",
        nargs="?",
        choices=["add", "list", "remove"],
        help="add, list, remove",
    )
    serve.add_argument(
        "id", metavar="ID", nargs="?", help="keys remove: the key's id, as `keys list` shows it"
    )
    place = serve.add_argument_group("address and files")
    place.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:8765",
        help="the address to listen on (127.0.0.1:8765); port 0 takes any free port",
    )
    place.add_argument(
        "--store",
        metavar="FILE",
        default="holdfast-server.db",
        help="the SQLite file of all journals (holdfast-server.db)",
    )
    place.add_argument(
        "--root", metavar="DIR", help="the folder that holds the workspaces (FILE.workspaces)"
    )
    place.add_argument(
        "--tls-cert", metavar="FILE", help="serve https: the certificate with its chain, in PEM"
    )
    place.add_argument(
        "--tls-key",
        metavar="FILE",
        help="the certificate's private key; not needed if it is in the same file",
    )
    place.add_argument(
        "--insecure", action="store_true", help="let other machines connect without TLS"
    )
    who = serve.add_argument_group("access")
    who.add_argument(
        "--key-file",
        metavar="FILE",
        help="a file that contains a client key (or HOLDFAST_SERVER_KEY)",
    )
    who.add_argument(
        "--tenant",
        metavar="T",
        help="keys: the tenant of the keys; serve: the tenant of the given key (default)",
    )
    who.add_argument(
        "--label", metavar="TEXT", default="", help="keys add: a note on the purpose of the key"
    )
    who.add_argument(
        "--cors-origin",
        metavar="O",
        action="append",
        default=[],
        help="let web pages of this origin use the server; repeatable",
    )
    who.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="another Host header to accept; repeatable",
    )
    may = serve.add_argument_group("permissions and limits")
    may.add_argument(
        "--allow-tools",
        metavar="PATTERN",
        action="append",
        default=[],
        help=(
            "modules that clients may name for tools, such as acme_tools.* ('*' allows all; only"
            " for a server of your own); repeatable"
        ),
    )
    may.add_argument(
        "--variable",
        metavar="[PROVIDER:]NAME[=VALUE]",
        action="append",
        default=[],
        help=(
            "the value of ${NAME} in agents: VALUE, or the value in the environment. Tenants other"
            " than `default` may use it only as the key for models of one provider: PROVIDER, or"
            " the provider known for that name; repeatable"
        ),
    )
    may.add_argument(
        "--agent",
        metavar="NAME=FILE",
        action="append",
        default=[],
        help=(
            "offer the agent of this file (YAML or JSON, as load_agent reads it) to clients of"
            " OpenAI's API, as the model NAME at /v1; repeatable"
        ),
    )
    may.add_argument(
        "--webhook-allow",
        metavar="HOST",
        action="append",
        default=[],
        help=(
            "a host that webhooks may call although it is not public, also without TLS: a name, an"
            " address or a network; repeatable"
        ),
    )
    may.add_argument(
        "--webhook-days",
        metavar="N",
        type=_count,
        default=3,
        help="the number of days for which a failed webhook delivery is repeated (3)",
    )
    may.add_argument(
        "--max-running",
        metavar="N",
        type=_count,
        default=64,
        help="conversations that run at once; others wait (64)",
    )
    may.add_argument(
        "--isolation",
        choices=["thread", "process"],
        default="thread",
        help=(
            "where conversations run: in threads of the server, or each in a process of its own,"
            " so that a crash affects no other (thread)"
        ),
    )
    may.add_argument(
        "--worker-memory",
        metavar="MB",
        type=_memory,
        default=0,
        help="the address space of each process of --isolation process; 256 or more (no limit)",
    )
    may.add_argument(
        "--max-body",
        metavar="BYTES",
        type=_count,
        default=32 * 1024 * 1024,
        help="the largest body of a request (33554432)",
    )
    may.add_argument(
        "--rate",
        metavar="N",
        type=_rate,
        default=500.0,
        help="requests per second for each key (500; 0: no limit)",
    )
    serve.add_argument(
        "--access-log", action="store_true", help="write a line to stderr for each request"
    )
    add_observing(serve, "the texts of conversations are left out")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 2**40:
        raise argparse.ArgumentTypeError(f"takes a whole number from 1, not {text!r}")
    return int(text)


def _memory(text: str) -> int:
    if not text.isdecimal() or not (int(text) == 0 or 256 <= int(text) <= 2**30):
        raise argparse.ArgumentTypeError(f"takes a whole number from 256, or 0, not {text!r}")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1e6:
        raise argparse.ArgumentTypeError(f"takes a number from 0, not {text!r}")
    return rate
