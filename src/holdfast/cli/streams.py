"""Preparation of the process's three streams at its start, and for its end."""

from __future__ import annotations

import os
import sys


def make_streams_safe() -> None:
    """Open missing streams, and print characters that the terminal's encoding lacks as `?`
    instead of raising."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # The parent process closed it (`>&-`). The next opened file must not get its number.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def forget_output() -> None:
    """Redirect standard output to nowhere after a broken pipe, so that the interpreter's last
    flush does not raise."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(null)
