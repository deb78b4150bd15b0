"""The `holdfast` command: an agent in a terminal. The only room that reads the environment and
writes to the standard streams."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (None: the process's own) and return its exit code.
    Raises nothing."""
    from holdfast.cli.command import command

    return command(argv)
