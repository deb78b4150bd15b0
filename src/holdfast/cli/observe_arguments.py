"""The options that observe: `--log` and `--trace`, and `holdfast stats`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

STATS = """\
Show what conversations took: time, tokens and cost by model and tool, errors,
the longest calls, and how much of the input providers had cached. With ID that
conversation and all that its calls spawned, without it all of the store, which
is only read: conversations may run meanwhile.

examples:
  holdfast stats ~/agent.db
  holdfast stats ~/agent.db 4f0c
  holdfast stats ~/agent.db --json | jq '.whole.tools'"""

Add = Callable[[str, str, str, str], argparse.ArgumentParser]


def add_observing(parser: argparse._ActionsContainer, said: str) -> None:  # pyright: ignore[reportPrivateUsage]: the base of parser and group
    """Add the options; `said` says what of conversations the log holds."""
    parser.add_argument(
        "--log",
        metavar="FILE",
        help=f"append a line of JSON to this file for each event and each span of time; {said}",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help=(
            "spans and metrics for OpenTelemetry, as `opentelemetry-instrument holdfast ...`"
            " exports them"
        ),
    )


def add_stats(add: Add, count: Callable[[str], int]) -> None:
    """Add the command by `add(name, summary, description, epilog)`."""
    stats = add("stats", "what conversations took: time, tokens, cost", STATS, "")
    stats.add_argument("file", metavar="FILE", help="the SQLite file given as --store")
    stats.add_argument(
        "id",
        metavar="ID",
        nargs="?",
        help="the conversation, or the first letters of its id; none: all",
    )
    stats.add_argument(
        "--limit",
        metavar="N",
        type=count,
        default=20,
        help="at most so many conversations, and rows of a table (20)",
    )
    stats.add_argument("--json", action="store_true", help="one JSON object: whole, conversations")
