"""The `holdfast` command: an agent in a terminal. Only this package reads the environment and
writes to the standard streams."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (None: the arguments of the process) and return its
    exit code. Never raises."""
    from holdfast.cli.command import command

    return command(argv)
