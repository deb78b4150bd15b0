"""The options of `holdfast serve`, and the help that teaches them."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from holdfast.cli.observe_arguments import add_observing

SERVE = """\
Run conversations for clients: a program that has Conversation(agent) has
RemoteConversation(agent, workspace=RemoteWorkspace(URL, KEY)) instead. Every
conversation is in the store, and goes on when the server is started again.

Clients bring a key. It is taken from --key-file or HOLDFAST_SERVER_KEY; if there
is neither, and the server has none yet, one is made and printed once. More of
them, for the same or other tenants, are made with `holdfast serve keys`; what
belongs to one tenant does not exist for another. That is what the API shows:
commands run as the server's user, and read what that user may read. Tenants who
do not trust each other need servers of their own users or machines.

  serve                          serve, until Ctrl-C or SIGTERM
  serve keys add [--tenant T] [--label L]
                                 make a key, and print it
  serve keys list [--tenant T]   whose keys there are; not the keys
  serve keys remove [ID] [--tenant T]
                                 the key of that ID, or all of T

examples:
  holdfast serve
  holdfast serve --store agents.db --root ~/work --allow-tools 'acme_tools.*'
  holdfast serve --listen 0.0.0.0:8765 --tls-cert server.pem --tls-key server.key
  holdfast serve keys add --tenant alice --store agents.db
  holdfast serve --agent coder=coder.yaml --variable OPENAI_API_KEY

Whoever has a key can run commands as the user who started the server. Beyond
this machine it wants TLS, or --insecure where a proxy does that. Modules that
clients name for their tools are imported if an installed package declares them
(entry point holdfast.tools) or --allow-tools names them; other tools run at the
client.

Exit code 130, 143: SIGINT, SIGTERM, after what was running has ended; a second
one ends it at once. 1: the store cannot be used. 2: an option that does not fit,
an address that cannot be had, a store that another server has."""

Add = Callable[[str, str, str, str], argparse.ArgumentParser]


def add_serve(add: Add) -> None:
    """Add the command by `add(name, summary, description, epilog)`."""
    serve = add("serve", "run conversations for clients, over HTTP", SERVE, "")
    serve.add_argument("what", metavar="WHAT", nargs="?", choices=["keys"], help="keys: see above")
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
    place = serve.add_argument_group("where it is")
    place.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:8765",
        help="127.0.0.1:8765; port 0 takes any that is free",
    )
    place.add_argument(
        "--store",
        metavar="FILE",
        default="holdfast-server.db",
        help="the SQLite file of all journals (holdfast-server.db)",
    )
    place.add_argument(
        "--root", metavar="DIR", help="the folder that workspaces are made in (FILE.workspaces)"
    )
    place.add_argument(
        "--tls-cert", metavar="FILE", help="serve https: the certificate with its chain, in PEM"
    )
    place.add_argument(
        "--tls-key", metavar="FILE", help="its key; not needed if it is in the same file"
    )
    place.add_argument(
        "--insecure", action="store_true", help="listen beyond this machine without TLS"
    )
    who = serve.add_argument_group("who may use it")
    who.add_argument(
        "--key-file", metavar="FILE", help="a file with a key in it (or HOLDFAST_SERVER_KEY)"
    )
    who.add_argument(
        "--tenant", metavar="T", help="keys: whose (default); serve: whose the given key is"
    )
    who.add_argument("--label", metavar="TEXT", default="", help="keys add: what it is for")
    who.add_argument(
        "--cors-origin",
        metavar="O",
        action="append",
        default=[],
        help="let pages of this origin use it; repeatable",
    )
    who.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a Host header to take as one's own; repeatable",
    )
    may = serve.add_argument_group("what they may do")
    may.add_argument(
        "--allow-tools",
        metavar="PATTERN",
        action="append",
        default=[],
        help=(
            "modules to import for tools, such as acme_tools.* ('*': all, for a server of your"
            " own); repeatable"
        ),
    )
    may.add_argument(
        "--variable",
        metavar="[PROVIDER:]NAME[=VALUE]",
        action="append",
        default=[],
        help=(
            "what ${NAME} in agents stands for: VALUE, or the environment's. Other tenants than"
            " `default` may have it as the key of its own provider's models alone: the one that is"
            " known by that name, or PROVIDER; repeatable"
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
            "a host that webhooks may send to though it is not public, also without TLS: a name, an"
            " address or a network; repeatable"
        ),
    )
    may.add_argument(
        "--webhook-days",
        metavar="N",
        type=_count,
        default=3,
        help="for so long webhooks send again what is not taken (3)",
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
            " whose end harms no other (thread)"
        ),
    )
    may.add_argument(
        "--worker-memory",
        metavar="MB",
        type=_memory,
        default=0,
        help="address space of such a process; 256 or more (any)",
    )
    may.add_argument(
        "--max-body",
        metavar="BYTES",
        type=_count,
        default=32 * 1024 * 1024,
        help="of a request (33554432)",
    )
    may.add_argument(
        "--rate",
        metavar="N",
        type=_rate,
        default=500.0,
        help="requests per second of one key (500; 0: any number)",
    )
    serve.add_argument(
        "--access-log", action="store_true", help="a line on stderr for each request"
    )
    add_observing(serve, "without what was said")


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
