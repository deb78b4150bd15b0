"""Tools for tests of the doors; a server can import them, too."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast import tool
from holdfast.tools.preset.asking import make_ask_user

ask_user = make_ask_user()
# A script for agents in code mode, with a call to approve and a question.
SCRIPT = ("run_code", {"code": "await pay(amount=3)\nawait ask_user(question='Which colour?')"})


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def write_agent(folder: Path, url: str) -> tuple[str, ...]:
    """Write the file of the agent `painter`, whose model is at `url`. Return the options of
    `holdfast serve` for it."""
    functions = [{"function": f"tests.door_tools:{name}"} for name in ("pay", "ask_user")]
    form = {
        "model": {"name": "m", "base_url": url, "api_key": "sk", "max_retries": 0},
        "tools": {"local_functions": functions},
        "confirm": ["pay"],
    }
    file = folder / "painter.json"
    file.write_text(json.dumps(form))
    return "--agent", f"painter={file}", "--allow-tools", "tests.*"
