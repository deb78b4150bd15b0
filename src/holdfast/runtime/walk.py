"""Which files a search looks at: glob patterns, ignore rules, and the walk over a folder."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from holdfast.errors import RuntimeFault

# Never looked into: what tools put there is not what a search is for.
SKIPPED = frozenset(
    (".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache", ".pytest_cache", ".ruff_cache")
)


# --- patterns ------------------------------------------------------------------------------------


def _braces(pattern: str) -> list[str]:
    """`*.{js,ts}` as `*.js` and `*.ts`. At most a hundred come out of nested ones."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    expanded: list[str] = []
    for choice in found[1].split(","):
        expanded += _braces(pattern[: found.start()] + choice + pattern[found.end() :])
        if len(expanded) > 100:
            raise RuntimeFault(f"The pattern {pattern!r} stands for too many patterns. Use fewer {{braces}}.")
    return expanded


def _part(part: str) -> str:
    """One part of a path pattern, without slashes, as a regular expression.

    What stands between two stars is taken where it fits first, for good (an atomic group): what follows the second star fits there if it
    fits at all, and a mismatch takes no longer for every star.
    """
    out, at = "", 0
    star = -1  # where in `out` what follows the last star begins
    while at < len(part):
        char = part[at]
        at += 1
        if char == "*":
            # Several stars are one; each of them on its own would multiply the time that a mismatch takes.
            while part[at : at + 1] == "*":
                at += 1
            if star >= 0:
                out = f"{out[:star]}(?>[^/]*?{out[star + len('[^/]*') :]})"
            star = len(out)
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[" and (end := part.find("]", at + 2 if part[at : at + 1] in "!^" else at + 1)) > 0:
            chosen = (
                part[at:end].replace("\\", "\\\\").replace("[", "\\[").replace("&&", "&\\&").replace("||", "|\\|").replace("~~", "~\\~")
            )
            out += "(?!/)[" + ("^" + chosen[1:] if chosen[0] in "!^" else chosen) + "]"
            at = end + 1
        elif char == "\\" and at < len(part):
            out += re.escape(part[at])
            at += 1
        else:
            out += re.escape(char)
    return out


@lru_cache(maxsize=512)
def compiled(pattern: str) -> re.Pattern[str]:
    """A glob pattern for whole relative paths: `*`, `?`, `[a-z]`, `{a,b}`, and `**` for any number of folders.

    Raises `RuntimeFault` if it is none.
    """
    choices: list[str] = []
    for one in _braces(pattern):
        groups: list[list[str]] = [[]]  # the parts between one `**` and the next
        for part in one.split("/"):
            if part == "**":
                groups.append([])
            elif part not in ("", "."):
                groups[-1].append(_part(part))
        out = "".join(f"{part}/" for part in groups[0]) if len(groups) > 1 else "/".join(groups[0])
        for group in groups[1:-1]:  # likewise where it fits first
            out += f"(?>(?:[^/]*/)*?{''.join(f'{part}/' for part in group)})" if group else ""
        if len(groups) > 1:
            out += f"(?:.*/)?{'/'.join(groups[-1])}" if groups[-1] else ".*"
        choices.append(out)
    try:
        return re.compile("|".join(f"(?:{choice})" for choice in choices) + r"\Z", re.DOTALL)
    except re.error as error:
        raise RuntimeFault(f"{pattern!r} is not a glob pattern: {error}.") from error


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a relative path fits, as `.gitignore` and ripgrep take it: a pattern without a slash fits the name at any depth."""
    rule = compiled(pattern.lstrip("/") if "/" in pattern else f"**/{pattern}")
    return lambda path: rule.match(path) is not None


# --- ignore rules --------------------------------------------------------------------------------


class Ignore:
    """The rules of one folder's `.gitignore`, after those of the folders above it. The last rule that fits decides."""

    def __init__(self, folder: str, prefix: str, above: Ignore | None) -> None:
        self._above = above
        self._prefix = prefix
        self._rules: list[tuple[re.Pattern[str], bool, bool]] = []
        try:
            with open(os.path.join(folder, ".gitignore"), encoding="utf-8", errors="replace") as file:
                lines = file.read(1_000_000).splitlines()
        except OSError:
            return
        for line in lines:
            rule = line.rstrip()
            if not rule or rule.startswith("#"):
                continue
            wanted = rule.startswith("!")
            rule = rule[1:] if wanted else rule
            folders_only = rule.endswith("/")
            rule = rule.rstrip("/")
            try:
                found = compiled(rule.lstrip("/") if "/" in rule else f"**/{rule}")
            except RuntimeFault:
                continue
            self._rules.append((found, wanted, folders_only))

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Whether a path, relative to where the walk began, is ignored."""
        inside = path[len(self._prefix) :]
        for rule, wanted, folders_only in reversed(self._rules):
            if (is_folder or not folders_only) and rule.match(inside):
                return not wanted
        return self._above is not None and self._above.ignores(path, is_folder)


# --- the walk ------------------------------------------------------------------------------------


def files_below(folder: Path, git: str | None, env: Mapping[str, str], stop: Callable[[], bool]) -> Iterator[str]:
    """The files below `folder`, as relative paths: what git knows or would add, else a walk of our own.

    Links to folders are not followed, so there are no loops. Ends early once `stop()` is true.
    """
    names = _from_git(folder, git, env) if git is not None else None
    if names:  # a folder that git ignores has none; whoever names it wants it searched
        seen = ""
        for name in names:
            if name != seen and SKIPPED.isdisjoint(name.split("/")[:-1]):
                if stop():
                    return
                yield name
            seen = name
        return
    yield from _walk(folder, stop)


def _from_git(folder: Path, git: str, env: Mapping[str, str]) -> list[str] | None:
    # core.fsmonitor names a program that git would run: a repository that was cloned must not get to choose one.
    command = [git, "-C", str(folder), "-c", "core.fsmonitor=false", "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, env=dict(env), stdin=subprocess.DEVNULL, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return sorted(os.fsdecode(done.stdout).split("\0")[:-1])


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


def _walk(root: Path, stop: Callable[[], bool]) -> Iterator[str]:
    todo: list[tuple[str, str, Ignore | None]] = [(str(root), "", None)]
    while todo:
        folder, prefix, above = todo.pop()
        ignore = Ignore(folder, prefix, above)
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:  # not readable, or gone meanwhile
            continue
        below: list[tuple[str, str, Ignore | None]] = []
        for entry in entries:
            if stop():
                return
            path = prefix + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if (is_folder and entry.name in SKIPPED) or ignore.ignores(path, is_folder):
                continue
            if is_folder:
                below.append((entry.path, path + "/", ignore))
            elif _is_file(entry):
                yield path
        todo += reversed(below)
