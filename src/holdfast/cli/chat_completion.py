"""Completion of what the user types in `chat`: commands, models, files and @paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

_MOST_FILES = 40  # in the menu


class ChatCompleter(Completer):
    """Completes a command at the start of a line, the argument of a command in `arguments`, and
    the path behind an @, relative to `folder`."""

    def __init__(
        self,
        commands: Mapping[str, str],
        arguments: Mapping[str, Callable[[], Sequence[str]]],
        folder: Path,
    ) -> None:
        self._commands = commands
        self._arguments = arguments
        self._folder = folder

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        command, blank, rest = text.partition(" ")
        word = text.rsplit(maxsplit=1)[-1] if text and not text[-1].isspace() else ""
        if text.startswith("/") and not blank and "/" not in text[1:]:
            for name, what in self._commands.items():
                if name.startswith(text):
                    yield Completion(name, -len(text), display_meta=what)
        elif command == "/attach" and "\n" not in text:
            yield from self._paths(rest.rsplit(" ", 1)[-1])
        elif command in self._arguments and " " not in rest:
            for name in self._arguments[command]():
                if name.startswith(rest):
                    yield Completion(name, -len(rest))
        elif word.startswith("@"):
            yield from self._paths(word[1:])

    def _paths(self, typed: str) -> Iterator[Completion]:
        head, _, start = typed.rpartition("/")
        folder = self._folder / os.path.expanduser(f"{head}/" if "/" in typed else "")
        try:
            with os.scandir(folder) as entries:
                matches = sorted(
                    (entry.name, entry.is_dir())
                    for entry in entries
                    if entry.name.startswith(start) and (start or entry.name[0] != ".")
                )
        except OSError:
            return
        for name, is_folder in matches[:_MOST_FILES]:
            yield Completion(f"{name}/" if is_folder else name, -len(start))
