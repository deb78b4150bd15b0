"""Text that Postgres cannot hold: it has no NUL character. A NUL becomes a backslash and a zero,
a backslash two of them; any other text stays readable in SQL."""

from __future__ import annotations

import re

_ESCAPED = re.compile(r"\\[\\0]")


def escaped(text: str) -> str:
    """Return `text` in the form that a column holds. Concatenated texts have concatenated forms."""
    if "\\" not in text and "\0" not in text:
        return text
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def unescaped(text: str) -> str:
    """Return the text of a column."""
    if "\\" not in text:
        return text
    return _ESCAPED.sub(lambda match: "\0" if match[0] == "\\0" else "\\", text)
