"""Judging a program by its row of the table."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from holdfast.agent.security import special, table
from holdfast.agent.security.grammar import ANYTHING, ShellWord
from holdfast.agent.security.paths import HIGH, LOW, MEDIUM, UNKNOWN, word_set
from holdfast.agent.security.script import ScriptReader, changes
from holdfast.agent.security.use import PUBLISHES, ProgramUse, commanded, parse_options, row, rows

# Folders where a name with its folder is the same program as without.
_SYSTEM = word_set("/bin /usr/bin /usr/local/bin /sbin /usr/sbin /usr/local/sbin")
_NUMBERED = re.compile(r"(python|pip|gcc|g\+\+|clang|clang\+\+)-?\d+(?:\.\d+)*")
# Programs for which no option does more than their row allows.
_GLOB_SAFE = word_set("echo ls cat head grep egrep fgrep stat touch basename dirname")
_BUILTINS = word_set("set source . printf jobs wait command export read test [ [[")
_OUTSIDE = re.compile(r"(?:^|[:=,'\" ])(?:/(?!dev/null)|~|\.\./)")


def judge(reader: ScriptReader, words: Sequence[ShellWord], cwd: str, stdin: str) -> str:
    """Note the risk of a program with its words, see `script.ProgramJudge`."""
    path, args = words[0].text, words[1:]
    folder, slash, name = path.rpartition("/")
    match = _NUMBERED.fullmatch(name)
    name = match[1] if match is not None and name not in rows() else name
    local = slash and folder not in _SYSTEM
    use, known = ProgramUse(reader, name, args, cwd, stdin), row(name)
    if globs := [word for word in args if word.glob]:
        if name not in _GLOB_SAFE and any(reader.may_be_option(word, cwd) for word in globs):
            use.note(UNKNOWN, "is given names of files that may be options")
        if any(ANYTHING in one.text for one in globs) and name != "printf" and known.kind != "x*":
            use.note(UNKNOWN, "is given words that are not known beforehand")
            return cwd
    if path == "cd":
        return _cd(use)
    if local:
        # The folder's place counts: the Python of a virtual environment is a link to the system's.
        inside = reader.paths.is_inside(folder, cwd) and ":" not in folder
        where = "a program" if inside else "outside"
        use.note(MEDIUM if inside else UNKNOWN, f"is {where} of the working directory")
    asks = "" if stdin or len(args) != 1 else use.text(0)
    if path in _BUILTINS:
        if name in ("source", ".") and len(words) == 2 and use.text(0).endswith("bin/activate"):
            use.runs_code(args[0])
        elif changes(words):
            use.note(UNKNOWN, "changes the shell, or may run what does")
        use.note(LOW, "only says something")
    elif name in table.VERSIONED and asks in ("--version", "-V", "-v", "--help", "-h"):
        use.note(LOW, "only says something")
    elif asks in ("--version", "--help") and (known.kind or known.signs or f"{name}.run" in rows()):
        use.note(MEDIUM, "may run what the settings of the project name")
    elif name in special.WHOLE:
        special.WHOLE[name](use)
    elif name in commanded():
        _command(use, args)
    elif name in rows():
        _by_row(use, args)
    elif local:
        for word in args:
            use.argument(word)
    else:
        use.note(UNKNOWN, "is no program that is in a table")
    return cwd


def _command(use: ProgramUse, words: Sequence[ShellWord]) -> None:
    """Judge a command of a program, such as `git log` or `gh pr list`."""
    if before := rows().get(f"{use.name}."):
        found = parse_options(use, before.options, words, stop=True)
        words = found.operands
        use = special.git(use, found) if use.name == "git" else use
    what = words[0].text if words else "install" if use.name in ("yarn", "pnpm") else ""
    name, rest = f"{use.name}.{what}", words[1:]
    if len(words) > 1 and f"{name}.{words[1].text}" in rows():
        name, rest = f"{name}.{words[1].text}", words[2:]
    inner = use._replace(name=name, args=rest)
    if name in special.WHOLE:
        special.WHOLE[name](inner)
    elif name == "uv.pip":
        _command(use._replace(name="pip"), rest)
    elif name in rows():
        _by_row(inner, rest)
    elif use.name in ("yarn", "pnpm") and special.is_project(what):
        use.run(words)
    elif use.name in rows():
        _by_row(use, words)
    elif PUBLISHES & {word.text for word in words}:
        use.note(HIGH, "sends something out")
    else:
        use.note(UNKNOWN, f"has no command {what[:40]!r} in its table")


def _by_row(use: ProgramUse, words: Sequence[ShellWord]) -> None:
    letters, signs, options = row(use.name)
    if "^" in signs or letters == "x*":
        use.note(*((HIGH, options) if "^" in signs else (LOW, "only says something")))
        return
    split, project = len(words), "!" in signs
    if project:
        split = next((at for at, word in enumerate(words) if word.text == "--"), split)
        for word in words[split + 1 :]:  # for a program of the project
            plain = use.name.startswith(("npm.", "yarn.", "pnpm.", "cargo."))
            use.operand("a" if plain else "p", word)
    found = parse_options(use, options, words[:split], use.name in table.STOPS)
    if project and any(_OUTSIDE.search(value) for _, value in found.given):
        use.note(UNKNOWN, "has an option with a path outside of the working directory")
    part = special.PART.get(use.name) or special.PART.get(use.name[:4])
    operands = found.operands if part is None else part(use, found)
    if letters[-1:] == "X":  # a program, behind some words
        for kind, word in zip(letters[:-1], operands, strict=False):
            use.operand(kind, word)
        use.run(operands[len(letters) - 1 :])
        return
    if "*" in found.flags:
        letters = letters.replace("r", "R").replace("w", "D" if use.name == "rm" else "w")
    # Of the letters before a star the last is repeated; those behind it are for the last operands.
    head, star, last = letters.partition("*")
    for index, word in enumerate(operands):
        behind = len(operands) - index
        if behind <= len(last):
            use.operand(last[len(last) - behind], word)
        else:
            use.operand(head[index] if index < len(head) else head[-1:] if star else "", word)
    use.note(LOW, "only says something" if letters in ("t*", "0") else "only reads")
    changing = "+" in signs or ("%" in signs and operands and "*" not in found.flags)
    if project or changing:
        use.reader.use_path(ShellWord("."), use.cwd, "use", f"{use.name} works in")
    if project or changing or "@" in signs:
        use.note(MEDIUM, "runs the project's own code" if project else "changes something")
    use.reader.rearranged = use.reader.rearranged or "~" in signs


def _cd(use: ProgramUse) -> str:
    """Judge `cd`. Return the folder that it goes to."""
    operands, paths = parse_options(use, "-LPe", use.args).operands, use.reader.paths
    target = operands[0] if operands else ShellWord(paths.home)
    reached = target.text.startswith("/") or use.cwd
    unsure = target.glob or target.text in ("-", "") or use.reader.rearranged or len(operands) > 1
    if unsure or not reached or len(target.text) > 1000:
        use.note(UNKNOWN, "goes to a folder that is not known beforehand")
        return ""
    use.note(LOW, "goes to another folder")
    found = paths.real(target.text, use.cwd)
    use.paths("l", [ShellWord(found)])
    # After a link, a shell takes `..` off the link's name, and a program off the real folder.
    if found != os.path.normpath(os.path.join(use.cwd, target.text)):
        use.note(UNKNOWN, "goes to a folder by a link")
        return ""
    return found
