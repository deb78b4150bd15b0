"""Tools for tests of the doors, which a server can import too."""

from __future__ import annotations

from holdfast import tool
from holdfast.tools.preset.asking import make_ask_user

ask_user = make_ask_user()


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"
