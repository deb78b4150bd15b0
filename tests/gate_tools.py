"""Tools that tests hold back by files, so that a test controls a worker process, too."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast import tool


@tool
def hold(folder: str, name: str) -> str:
    """Write the file `entered-NAME`, and return once there is a file `open`. Ignores its
    cancellation."""
    Path(folder, f"entered-{name}").touch()
    while not Path(folder, "open").exists():
        time.sleep(0.005)
    return "held"


@tool
def step(folder: str) -> str:
    """Return at once, so that the conversation takes another step."""
    return "open" if Path(folder, "open").exists() else "closed"
