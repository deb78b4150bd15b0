"""The options that name an agent server, the options of `holdfast list`, and their help texts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

LIST = """\
List the conversations of a store or an agent server, the newest first.

examples:
  holdfast list ~/agent.db
  holdfast list --server http://127.0.0.1:8765
  holdfast list ~/agent.db --status waiting
      list the conversations with a call that waits for you
  holdfast list --server https://agents.example:8765 --limit 5 --json
      print one JSON object per line

Exit code 0: listed, also if there are none. 1: the server cannot be reached.
2: no such file or status, or a wrong key."""

ON_SERVER = """\
With --server, the agent works on an agent server (`holdfast serve`), in a
folder of its own there; the output here is the same. Your model key is sent
along, sealed; with --model-key-name the server uses a key of its own. If the
connection is lost, the agent works on. Ctrl-C pauses it, and leaving stops it.
--id with the id of an existing conversation continues that one with its own
model, tools and folder, so that no other option is needed."""

# show, tell and list take either a file or an address as their first argument.
PLACE = "the SQLite file given as --store, or an agent server's URL"

Add = Callable[[str, str, str, str], argparse.ArgumentParser]


def place_first(args: Sequence[str]) -> list[str]:
    """Return the arguments with `--server URL` moved to the first place, where a file may stand
    too. Raises `ValueError`."""
    words = list(args)
    end = words.index("--") if "--" in words else len(words)
    for at, word in enumerate(words[:end]):
        if word == "--server" and at + 1 < end:
            url, rest = words[at + 1], [*words[:at], *words[at + 2 :]]
        elif word.startswith("--server="):
            url, rest = word.partition("=")[2], [*words[:at], *words[at + 1 :]]
        else:
            continue
        if not url.startswith(("http://", "https://")):  # it would look like a file
            raise ValueError(
                "--server takes an agent server's address such as http://127.0.0.1:8765, not"
                f" {url!r}"
            )
        return [url, *rest]
    return words


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command whose first argument is a file or an address."""
    parser.takes_place = True  # pyright: ignore[reportAttributeAccessIssue]: `Parser` has it
    parser.add_argument("--server", metavar="URL", help="an agent server, instead of FILE")
    _add_key(parser)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that runs an agent."""
    there = parser.add_argument_group("where it runs")
    there.add_argument(
        "--server",
        metavar="URL",
        help="run the agent on this agent server, such as http://127.0.0.1:8765",
    )
    _add_key(there)
    there.add_argument(
        "--workspace",
        metavar="W",
        help="the server's folder to work in, which is created if it does not exist (a new one)",
    )
    there.add_argument(
        "--model-key-name",
        metavar="NAME",
        help="the variable of the server that holds the model's key (serve --variable)",
    )


def _add_key(
    # The common base class of parser and group.
    parser: argparse._ActionsContainer,  # pyright: ignore[reportPrivateUsage]
) -> None:
    parser.add_argument(
        "--server-key-file",
        metavar="F",
        help="a file that contains the server's key (or HOLDFAST_SERVER_KEY)",
    )


def add_list(add: Add, count: Callable[[str], int]) -> None:
    """Add the command through `add(name, summary, description, epilog)`."""
    listed = add("list", "list the conversations of a store or an agent server", LIST, "")
    listed.add_argument("file", metavar="FILE", help=PLACE)
    add_place_options(listed)
    listed.add_argument(
        "--status",
        metavar="S",
        help="only conversations that are idle, running, paused, waiting, finished, error or stuck",
    )
    listed.add_argument(
        "--limit",
        metavar="N",
        type=count,
        default=100,
        help="the largest number of conversations to list (100)",
    )
    listed.add_argument("--json", action="store_true", help="print JSON lines")
