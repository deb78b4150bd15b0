"""Instructions: the `AGENTS.md` files of a repository by folder.

The file nearest to a changed file takes precedence (https://agents.md).
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from holdfast.content import Data
from holdfast.errors import ConfigurationError
from holdfast.runtime.walk import SKIPPED
from holdfast.tools.arguments import wrong
from holdfast.tools.skills_files import text_below, with_home

_log = logging.getLogger(__name__)

# Bounds of the search below the working directory, which takes some 50 ms. Larger trees have their
# own ways to state which instructions apply.
_MAX_FOLDERS, _MAX_FILES = 5_000, 200
# Maximum characters: of one file, and of all files in the prompt or added to a conversation.
MAX_FILE_CHARS, MAX_TOTAL_CHARS = (20_000, 60_000)


class Instructions(Data, frozen=True):
    """The texts of instruction files by path relative to the working directory, with slashes.

    Paths are such as `../AGENTS.md`, `AGENTS.md`, `src/AGENTS.md`. Files of the working
    directory and above are in the system prompt. Each file of a subfolder is shown once a call
    touches a file below that folder.
    """

    texts: dict[str, str] = {}

    @classmethod
    def read(
        cls, workdir: str | os.PathLike[str], names: Sequence[str] = ("AGENTS.md",)
    ) -> Instructions:
        """Read the files from the repository's root down to `workdir`, and those below it.

        The root is the nearest folder with `.git`; without one, `workdir` itself. Of `names`, such
        as `("AGENTS.md", "CLAUDE.md")`, the first that exists in a folder is read. A file that is
        larger than 1 MB, not UTF-8, or a link out of the repository is left out, and logged. Raises
        `ConfigurationError` if `workdir` does not exist.
        """
        if isinstance(names, str) or not names or not all(_is_name(name) for name in names):
            raise wrong(
                "Instructions.read: names", "a list of file names such as 'AGENTS.md'", names
            )
        folder = Path(os.path.realpath(with_home(workdir)))
        if not folder.is_dir():
            raise ConfigurationError(
                f"Instructions.read takes a folder; there is none at {folder}."
            )
        root = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
        texts: dict[str, str] = {}
        above = [one for one in reversed((folder, *folder.parents)) if one.is_relative_to(root)]
        for one in (*above, *_below(folder)):
            name = next((name for name in names if os.path.lexists(one / name)), None)
            if name is None:
                continue
            if len(texts) >= _MAX_FILES:
                text = "Of the instructions below %s, no more than %d files are read."
                _log.warning(text, folder, _MAX_FILES)
                break
            try:
                path = (one / name).resolve()
                if root not in path.parents:
                    raise ValueError(f"it is a link to {path}, outside of {root}")
                text = _with_imports(root, path, set())
            # A loop of links raises RuntimeError.
            except (OSError, ValueError, RuntimeError) as error:
                _log.warning("The instructions %s were left out: %s", one / name, error)
                continue
            if text:
                texts[os.path.relpath(one / name, folder).replace(os.sep, "/")] = text
        return cls(texts)

    def __post_init__(self) -> None:
        texts: Any = self.texts
        if not isinstance(texts, Mapping):
            raise wrong("Instructions: texts", "a mapping of paths to texts", self.texts)
        for path, text in cast("Mapping[Any, Any]", texts).items():
            relative = isinstance(path, str) and path != "" and not path.startswith("/")
            if not relative or posixpath.normpath(path) != path or not isinstance(text, str):
                form = "paths relative to the working directory, such as 'src/AGENTS.md',"
                raise wrong("Instructions: texts", f"{form} and their texts", path)

    def in_prompt(self) -> Iterator[tuple[str, str]]:
        """Yield path and text of the files of the working directory and above, outermost first. The
        text has a heading."""
        paths = [path for path in self.texts if not posixpath.dirname(path).strip("./")]
        room = MAX_TOTAL_CHARS
        for number, path in enumerate(sorted(paths, key=lambda path: -path.count("../"))):
            text = _shorten(path, self.texts[path], min(MAX_FILE_CHARS, room))
            room = max(0, room - len(text))
            wins = " (Where it differs from those above, it wins.)" if number else ""
            yield path, f"# {path}{wins}\n\n{text}"

    def below(self) -> dict[str, str]:
        """Return the paths of the files of subfolders, by folder."""
        folders = {posixpath.dirname(path): path for path in self.texts}
        return {folder: path for folder, path in folders.items() if folder.strip("./")}

    def text_for_model(self, path: str, room: int) -> str:
        """Return the text of a subfolder's file for the model, with at most `room` characters of
        the file."""
        folder = posixpath.dirname(path)
        text = _shorten(path, self.texts[path], min(MAX_FILE_CHARS, room))
        return (
            f"# {path}\n\n(For all files below {folder}/. Where it differs from other instructions,"
            f" it wins there.)\n\n{text}"
        )


# A line of its own; within a line `@path` may be anything, such as an address. Texts alone: a file
# with settings may hold secrets, and a prompt is sent without a decision.
_IMPORT = re.compile(r"^(?:[-*] )?@(\.?[\w./-]+\.(?:md|mdc|txt))[ \t]*$", re.MULTILINE)
_MAX_IMPORTS = 50


def _with_imports(root: Path, path: Path, imported: set[Path]) -> str:
    """Return a file of a repository with the files that it imports, each once."""
    imported.add(path)

    def text_of(match: re.Match[str]) -> str:
        try:
            other = (path.parent / match[1]).resolve()
            if root not in other.parents or other in imported or len(imported) > _MAX_IMPORTS:
                return match[0]
            return _with_imports(root, other, imported)
        except (OSError, ValueError, RuntimeError):  # no file, or none of text
            return match[0]

    return _IMPORT.sub(text_of, text_below(root, *path.relative_to(root).parts).strip())


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\0"} & {*name}


def _shorten(path: str, text: str, most: int) -> str:
    if len(text) <= most:
        return text
    note = (
        f"[{len(text) - most:,} of {len(text):,} characters are left out here to save room; the"
        f" file {path} has them.]"
    )
    return f"{text[:most]}\n\n{note}" if most else note


def _below(folder: Path) -> Iterator[Path]:
    """Yield the folders below a folder, nearest first, without links and hidden folders."""
    pending, count = deque([folder]), 0
    while pending:
        one = pending.popleft()
        try:
            with os.scandir(one) as entries:
                names = sorted(
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".")
                    and entry.name not in SKIPPED
                    and entry.is_dir(follow_symlinks=False)
                )
        except OSError:
            continue
        for name in names:
            count += 1
            if count > _MAX_FOLDERS:
                text = "Instructions are looked for in %d folders below %s; it has more."
                _log.warning(text, _MAX_FOLDERS, folder)
                return
            yield one / name
            pending.append(one / name)


def instructions_of(value: Any) -> Instructions:
    """Return the instructions of `Agent(instructions=)`. Raises `ConfigurationError`."""
    if value is None:
        return Instructions()
    if isinstance(value, Instructions):
        return value
    if not isinstance(value, str | os.PathLike):
        form = "the folder to read AGENTS.md from, or Instructions"
        raise wrong("Agent: instructions", form, value)
    folder = os.fspath(cast("str | os.PathLike[str]", value))
    try:
        return Instructions.read(folder)
    except ConfigurationError:
        raise ConfigurationError(
            f"Agent: instructions has the folder {folder!r}, which does not exist. It takes the"
            " folder of AGENTS.md files; the text of a prompt is system_prompt."
        ) from None
