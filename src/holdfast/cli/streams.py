"""The process's three streams, made fit for use at its start and for its end."""

from __future__ import annotations

import os
import sys


def make_streams_safe() -> None:
    """Streams that are there, and that show characters which the terminal's encoding lacks as `?`
    instead of raising."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if (
            getattr(sys, name) is None
        ):  # closed by whoever started us (`>&-`); the next file that is opened must not take its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def forget_output() -> None:
    """After a broken pipe: what the interpreter still flushes at its end goes nowhere, instead of
    raising."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(null)
