"""The edit tools of a model: the ones that its family was trained with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, get_args

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.tools import Tool

Editor = Literal["edit_file", "apply_patch", "str_replace"]

_CLAUDE = re.compile(r"claude", re.IGNORECASE)
# V4A patches came with GPT-4.1; earlier models do not write them well.
_PATCHES = re.compile(
    r"(?:^|[^a-z0-9])(?:gpt-?(?:4\.1|4\.5|[5-9]|oss)|codex|o[34](?![a-z0-9]))", re.IGNORECASE
)
# The tools of each editor for reading and writing files.
_TOOLS: Mapping[Editor, tuple[str, ...]] = {
    "edit_file": ("read_file", "write_file", "edit_file"),
    "apply_patch": ("read_file", "apply_patch"),
    "str_replace": ("str_replace_based_edit_tool",),
}
_BEFORE, _AFTER = ("terminal", "terminal_input"), ("glob", "grep")


def editor_for(model: str) -> Editor:
    """Return the editor of a model's family, by the model's name.

    | model | editor |
    |---|---|
    | Claude | `str_replace`: the tool `str_replace_based_edit_tool` |
    | GPT-4.1, 4.5, 5 and later, gpt-oss, Codex, o3, o4 | `apply_patch` |
    | any other | `edit_file`: the tools `read_file`, `write_file` and `edit_file` |
    """
    if _CLAUDE.search(model):
        return "str_replace"
    return "apply_patch" if _PATCHES.search(model) else "edit_file"


def choose_tools(every: Mapping[str, Tool], editor: Editor, also: Iterable[str]) -> list[Tool]:
    """Return the terminal, the editor's tools, search, and the tools of the names in `also`. Raises
    `ConfigurationError`."""
    if editor not in _TOOLS:
        raise ConfigurationError(
            f"tools_for: editor takes {', '.join(get_args(Editor))} or None, not {editor!r}."
        )
    names = [*_BEFORE, *_TOOLS[editor], *_AFTER]
    names += [name for name in also if name not in names]
    if unknown := [name for name in names if name not in every]:
        raise ConfigurationError(
            f"tools_for: there is no tool {unknown[0]!r}. There are: {', '.join(every)}."
        )
    return [every[name] for name in names]
