"""The files that a search covers: glob patterns, ignore rules, and the walk over a folder."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.runtime import globs
from holdfast.runtime.grep_child import open_folder
from holdfast.tools.launch import Launcher, start

# Folders that are never searched: tools fill them with files that a search is not about.
_SKIPPED_NAMES = """\
.git .hg .svn node_modules __pycache__ .venv venv .tox .mypy_cache .pytest_cache .ruff_cache"""
SKIPPED = frozenset(_SKIPPED_NAMES.split())
_MAX_IGNORE_BYTES = 256 * 1024
_MAX_RULES = 2_000  # of one file: compiling one rule takes 0.2 ms


def matcher(pattern: str) -> Callable[[str], object]:
    """Return a predicate for relative paths, with the rules of `.gitignore` and ripgrep. A pattern
    without a slash matches the name at any depth."""
    return globs.glob(pattern.lstrip("/") if "/" in pattern else f"**/{pattern}").match


class Ignore:
    """The rules of one folder's `.gitignore`, after those of the folders above it. The last
    matching rule decides. At most `_MAX_IGNORE_BYTES` and `_MAX_RULES` of a file are read; the rest
    has no effect."""

    def __init__(self, folder: int, prefix: str, above: Ignore | None) -> None:
        self._above = above
        self._prefix = prefix
        self._rules: list[tuple[re.Pattern[str], bool, bool]] = []
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(".gitignore", flags, dir_fd=folder)
            with open(fd, "rb") as file:
                text = file.read(_MAX_IGNORE_BYTES).removeprefix(b"\xef\xbb\xbf").decode("latin-1")
        except OSError:
            return
        for line in text.split("\n"):
            rule = _trimmed(line.removesuffix("\r"))
            if not rule or rule.startswith("#") or len(rule) > globs.MAX_PATTERN:
                continue
            negated = rule.startswith("!")
            rule = rule[1:] if negated else rule
            folders_only = rule.endswith("/")
            pattern = globs.ignored(rule[:-1] if folders_only else rule)
            if pattern is not None:
                self._rules.append((pattern, negated, folders_only))
                if len(self._rules) >= _MAX_RULES:
                    break

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Return True if a path, relative to the start of the walk, is ignored."""
        above: Ignore | None = self
        data = os.fsencode(path).decode("latin-1")
        while above is not None:
            inside = data[len(os.fsencode(above._prefix)) :]
            for rule, negated, folders_only in reversed(above._rules):
                if (is_folder or not folders_only) and rule.match(inside):
                    return not negated
            above = above._above
        return False


def _trimmed(line: str) -> str:
    """Return a line without trailing spaces; a space after a backslash is kept."""
    end = len(line)
    while end and line[end - 1] == " ":
        end -= 1
    slashes = end - len(line[:end].rstrip("\\"))
    return line[: end + 1] if slashes % 2 and end < len(line) else line[:end]


def files_below(
    folder: Path, from_git: Callable[[], list[str] | None], stop: Callable[[], bool]
) -> Iterator[str]:
    """Yield the files below `folder` as relative paths. `from_git` returns the files that git
    tracks or would add. Without git, a walk finds the files by the same rules. Links to folders are
    not followed, so there are no loops. The iteration ends once `stop()` is true."""
    names = from_git()
    # Git lists no files of an ignored folder, but a caller who names it wants it searched.
    if not names:
        yield from _walk(folder, stop)
        return
    for name in dict.fromkeys(names):
        if SKIPPED.isdisjoint(name.split("/")[:-1]):
            if stop():
                return
            yield name


def git_files(
    folder: str, git: str, env: Mapping[str, str], launcher: Launcher
) -> list[str] | None:
    """Return the files that git tracks or would add below a folder, None if git cannot tell.
    `folder` is the path that the launcher's processes see."""
    # core.fsmonitor names a program that git would run: a cloned repository must not choose one.
    command = [git, "-C", folder, "-c", "core.fsmonitor=false", "ls-files", "-co"]
    command += ["--exclude-standard", "-z"]
    try:
        process = start(launcher, command, cwd=None, env=env, stderr=subprocess.DEVNULL)
    except OSError:
        return None
    with process:
        try:
            names = process.communicate(timeout=20)[0]
        except BaseException as error:
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                return None
            raise
    return None if process.returncode else sorted(os.fsdecode(names).split("\0")[:-1])


def _walk(root: Path, stop: Callable[[], bool]) -> Iterator[str]:
    todo: list[tuple[str, Ignore | None]] = [("", None)]
    while todo:
        prefix, above = todo.pop()
        listing = _entries(root, prefix, above)
        if listing is None:  # not readable, or removed meanwhile
            continue
        ignore, entries = listing
        below: list[tuple[str, Ignore | None]] = []
        for name, is_folder, is_file in entries:
            if stop():
                return
            path = prefix + name
            if (is_folder and name in SKIPPED) or ignore.ignores(path, is_folder):
                continue
            if is_folder:
                below.append((path + "/", ignore))
            elif is_file:
                yield path
        todo += reversed(below)


def _entries(
    root: Path, prefix: str, above: Ignore | None
) -> tuple[Ignore, list[tuple[str, bool, bool]]] | None:
    """Return a folder's rules, and its sorted entries: name, True for a folder, True for a file or
    a link to one. None if it cannot be read."""
    try:
        fd = open_folder(str(root / prefix))
        try:
            readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
    except OSError:
        return None
    entries: list[tuple[str, bool, bool]] = []
    try:
        ignore = Ignore(readable, prefix, above)
        with suppress(OSError), os.scandir(readable) as scan:
            for entry in scan:
                is_file = False
                with suppress(OSError):  # a link to itself
                    is_file = entry.is_file()
                entries.append((entry.name, entry.is_dir(follow_symlinks=False), is_file))
    finally:
        os.close(readable)
    return ignore, sorted(entries)
