"""The options for observation, `--log` and `--trace`, and the options of `holdfast stats`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

STATS = """\
Show the time, tokens and cost of conversations by model and tool, their
errors, their longest calls, and the share of the input that providers had
cached. With ID, that conversation and all conversations that its calls spawned
are counted; without ID, all conversations of the store. The store is opened
for reading only, and conversations may run meanwhile.

examples:
  holdfast stats ~/agent.db
  holdfast stats ~/agent.db 4f0c
  holdfast stats ~/agent.db --json | jq '.whole.tools'"""

Add = Callable[[str, str, str, str], argparse.ArgumentParser]


def add_observing(parser: argparse._ActionsContainer, said: str) -> None:  # pyright: ignore[reportPrivateUsage]: the base of parser and group
    """Add `--log` and `--trace`. `said` describes the conversation content in the log."""
    parser.add_argument(
        "--log",
        metavar="FILE",
        help=f"append one JSON line to this file for each event and each span; {said}",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help=(
            "emit OpenTelemetry spans and metrics, which `opentelemetry-instrument holdfast ...`"
            " exports"
        ),
    )


def add_stats(add: Add, count: Callable[[str], int]) -> None:
    """Add the command through `add(name, summary, description, epilog)`."""
    stats = add("stats", "show the time, tokens and cost of conversations", STATS, "")
    stats.add_argument("file", metavar="FILE", help="the SQLite file given as --store")
    stats.add_argument(
        "id",
        metavar="ID",
        nargs="?",
        help="the conversation's id, or its beginning; without it, all conversations",
    )
    stats.add_argument(
        "--limit",
        metavar="N",
        type=count,
        default=20,
        help="the largest number of conversations, and of rows in a table (20)",
    )
    stats.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object with the keys whole and conversations",
    )
