"""A tool for tests of the doors, which a server can import too."""

from __future__ import annotations

from holdfast import tool


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"
