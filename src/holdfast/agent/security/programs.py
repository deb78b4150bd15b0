"""What is known of programs: the table, and what is said of those that are not in it."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.agent.security import (
    file_programs,
    git_programs,
    package_programs,
    read_programs,
    run_programs,
    search_programs,
    world_programs,
)
from holdfast.agent.security.paths import HIGH, UNKNOWN
from holdfast.agent.security.use import Check, Use
from holdfast.agent.security.words import Scope, Word

if TYPE_CHECKING:
    from holdfast.agent.security.shell import Reader

# Where a name with its folder is the same program as without.
_SYSTEM = frozenset(("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"))
_NAME = re.compile(r"[A-Za-z0-9_.+:\[-]+", re.ASCII)
_VERSIONED = re.compile(r"(python|pypy|pip|ruby|perl|php|lua|gcc|g\+\+|clang|clang\+\+)-?\d+(?:\.\d+)*")


@functools.cache
def _table() -> Mapping[str, Check]:
    rooms = (world_programs, package_programs, git_programs, run_programs, file_programs, search_programs, read_programs)
    return {name: check for room in rooms for name, check in room.table().items()}


def is_known(name: str) -> bool:
    """Whether the table has a program or builtin of that name."""
    return name in _table() or name in ("[", "test", "export", "declare", "unset", "local", "typeset", "readonly")


def judge(reader: Reader, words: Sequence[Word], scope: Scope, stdin: Any) -> None:
    """Note the risk of a program with its words; the first is its name."""
    first, args = words[0], words[1:]
    name = first.text
    if not first.known or (first.glob and name != "["):
        reader.note(HIGH, "what it runs is made up while it runs")
    if not name:
        if args or not first.quoted:
            reader.note(HIGH, "what it runs has no name")
        return
    if name in scope.defined and "/" not in name:
        if args and f"alias {name}" in scope.defined:
            reader.note(UNKNOWN, f"it gives more words to {name[:40]!r}, a name that it has made itself")
        if f"maybe {name}" in scope.defined:
            reader.note(UNKNOWN, f"it may not have made {name[:40]!r}, which is then another program")
        return  # what it does was looked at where it was defined
    if "/" in name:
        _by_path(reader, name, args, scope, stdin)
        return
    if not _NAME.fullmatch(name):
        reader.note(HIGH, f"the program's name {name[:40]!r} has letters that names of programs do not have")
    _ask(Use(reader, name, args, scope, stdin))


def _ask(use: Use) -> bool:
    check = _table().get(use.name)
    if check is None:
        match = _VERSIONED.fullmatch(use.name)
        check = _table().get(match[1]) if match is not None else None
        if check is None and use.name.startswith("mkfs."):
            check = _table()["mkfs"]
    if check is None:
        use.reader.note(UNKNOWN, f"no rule knows the program {use.name[:60]!r}")
        return False
    check(use)
    return True


def _by_path(reader: Reader, name: str, args: Sequence[Word], scope: Scope, stdin: Any) -> None:
    folder, _, last = name.rpartition("/")
    if folder in _SYSTEM and _NAME.fullmatch(last):
        _ask(Use(reader, last, args, scope, stdin))
        return
    places = reader.places
    inside = bool(scope.cwds) or os.path.isabs(name)
    for cwd in scope.cwds or ("/",):
        try:
            # The folder's place, not the program's: the Python of a virtual environment is a link to the system's.
            inside = inside and places.inside(places.real(folder, cwd))
        except (OSError, ValueError):
            inside = False
    if not inside:
        reader.note(UNKNOWN, f"runs {name[:80]}, outside of the working directory")
    use = Use(reader, last, args, scope, stdin)
    if _NAME.fullmatch(last) and (is_known(last) or _VERSIONED.fullmatch(last)):
        _ask(use)
    reader.note(1, f"runs {name[:80]}, a program of the working directory")
