"""Memory in two folders: notes about the user, and notes about the project, which come first."""

from __future__ import annotations

import os
from contextlib import suppress

from holdfast.errors import ToolNotFound, ToolValidationError
from holdfast.tools.context import ToolContext
from holdfast.tools.policy import LOCAL_READ, ToolAnnotations
from holdfast.tools.preset.memory import Action, Notes, notes_finder
from holdfast.tools.skills_files import with_home
from holdfast.tools.tool import Tool

_MAX_LIST_CHARS = 10_000  # of each folder
_USER = "user/"  # the beginning of a user note's path


def make_two_tier_memory(
    user: str | os.PathLike[str], project: str | os.PathLike[str] | None = None
) -> list[Tool]:
    """Return the tools `memory_read` and `memory_write` over two folders of notes.

    A path that begins with `user/` belongs to the user's folder, any other to the project's. Both
    tools work as those of `make_memory`. Lists and searches show the project's notes first. A read
    of a path finds the project's note before a note of the user with the same path.

    Args:
        user: The folder of the notes about the user, such as `~/.config/agent/memory`.
        project: The folder of the notes about the project. None for `.holdfast/memory` in the
            working directory of the runtime that runs the call.
    """
    users = Notes(os.path.abspath(with_home(user)))
    projects = notes_finder(project, "make_two_tier_memory(user, project)")

    def memory_read(context: ToolContext, path: str = "", search: str = "", offset: int = 0) -> str:
        """Read your notes of earlier work: those about this project, and those about the user,
        whose paths begin with user/. Without arguments it lists all notes, with `path` it shows one
        note, with `search` it shows the lines that contain these words. Where notes contradict each
        other, the project's note holds. Look here before work for which earlier notes may help.

        Args:
            path: The note to read.
            search: The words to search for, ignoring case.
            offset: The first character of the note to show, if you know the beginning already.
        """
        if path and search:
            raise ToolValidationError("Give a path or a search, not both.")
        notes = projects(context)
        if path:
            return _read(notes, users, path)[max(0, offset) :] or "(The note has no more text.)"
        if search:
            return f"{notes.search(search)}\n\nAbout the user:\n{users.search(search)}"
        return _listing(notes.index(_MAX_LIST_CHARS), users.index(_MAX_LIST_CHARS))

    def memory_write(
        context: ToolContext, path: str, text: str = "", action: Action = "write", old: str = ""
    ) -> str:
        """Note down facts that help later work. What holds for this project alone (how it is built,
        decisions) has a plain path. What holds for the user in every project (preferences, habits)
        has a path that begins with user/. No secrets. Begin a note with a line that says what it
        contains.

        Args:
            path: The note's path, such as build.md or user/style.md.
            text: The whole note. With append, the text to add at its end. With replace, the text
                that replaces `old`.
            action: write creates or overwrites a note; append adds to a note and creates it if
                necessary; replace and delete change an existing note.
            old: With replace: the text to replace, which occurs in the note exactly once.
        """
        if path.startswith(_USER):
            return users.write(path.removeprefix(_USER), text, action, old)
        return projects(context).write(path, text, action, old)

    destructive = ToolAnnotations(open_world=False)
    return [
        Tool.from_function(memory_read, annotations=LOCAL_READ, category="memory"),
        Tool.from_function(memory_write, annotations=destructive, category="memory"),
    ]


def two_tier_index(
    user: str | os.PathLike[str], project: str | os.PathLike[str], budget: int = 4000
) -> str:
    """Return an overview of both folders for a system prompt, as `memory_index` does for one:
    `Agent(system_prompt_extensions=[two_tier_index(user, project)])`. Each folder gets half of the
    `budget` in characters; "" if there are no notes."""
    lists = [
        Notes(os.path.abspath(with_home(folder))).index(budget // 2) for folder in (project, user)
    ]
    if not any(lists):
        return ""
    return (
        "# Notes of earlier work\n\nRead one with memory_read(path=...) when it may help. The"
        f" project's notes come before the user's.\n\n{_listing(*lists)}"
    )


def _read(notes: Notes, users: Notes, path: str) -> str:
    if path.startswith(_USER):
        return users.read(path.removeprefix(_USER))
    try:
        return notes.read(path)
    except ToolNotFound:
        with suppress(ToolNotFound):
            return users.read(path)
        raise


def _listing(project: str, user: str) -> str:
    parts = [
        f"About this project:\n{project or '(none)'}",
        f"About the user (their paths begin with {_USER}):\n{user or '(none)'}",
    ]
    return "\n\n".join(parts) if project or user else "There are no notes yet."
