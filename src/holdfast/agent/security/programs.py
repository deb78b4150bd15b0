"""Judging a program by its row of the table. Some programs need more than a row: those with their
own language, those that run another program, and git, whose settings may name programs."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping

from holdfast.agent.security import table
from holdfast.agent.security.grammar import ShellWord
from holdfast.agent.security.paths import (
    HIGH,
    LOW,
    MEDIUM,
    UNKNOWN,
    FileNames,
    bytes_of,
    is_ignored_by_git,
    is_regenerated,
    is_url,
    repository,
    split_glob,
)
from holdfast.agent.security.script import (
    ProgramOptions,
    ProgramUse,
    ScriptReader,
    Words,
    changes_shell,
    parse_options,
    row,
    rows,
)
from holdfast.tools.names import word_set

# Folders where a name with its folder is the same program as without.
_SYSTEM = word_set("/bin /usr/bin /usr/local/bin /sbin /usr/sbin /usr/local/sbin")
_NUMBERED = re.compile(r"(python|pip|gcc|g\+\+|clang|clang\+\+)-?\d+(?:\.\d+)*")
# Programs for which no option does more than their row allows.
_GLOB_SAFE = word_set("echo ls cat head grep egrep fgrep stat touch basename dirname")
_BUILTINS = word_set("set source . printf wait command export test [")
_OUTSIDE = re.compile(r"(?:^|[:=,'\" ])(?:/(?!dev/null)|~|\.\./)")


def judge(reader: ScriptReader, words: Words, cwd: str, stdin: str) -> str:
    """Note the risk of a program with its words, see `script.ProgramJudge`."""
    path, args = words[0].text, words[1:]
    folder, slash, name = path.rpartition("/")
    match = _NUMBERED.fullmatch(name)
    name = match[1] if match is not None and name not in rows() else name
    local = slash and folder not in _SYSTEM
    use = ProgramUse(reader, name, args, cwd, stdin)
    asks = args[0].text if len(args) == 1 and not stdin else ""
    globs = [] if name in _GLOB_SAFE else [one for one in args if one.glob and one.text[0] in "*?["]
    if any(reader.odd_names(word, cwd) > 1 for word in globs):
        use.note(UNKNOWN, "is given names of files that may be options")
    if path == "cd":
        return _cd(use)
    if local:
        use.runs_written(path)
        # The folder's place counts: the Python of a virtual environment is a link to the system's.
        inside = reader.paths.is_inside(folder, cwd) and ":" not in folder
        where = "a program" if inside else "outside"
        use.note(MEDIUM if inside else UNKNOWN, f"is {where} of the working directory")
    if path in _BUILTINS:
        if name in ("source", ".") and asks.endswith("bin/activate"):
            use.runs_code(args[0])
        elif changes_shell(words):
            use.note(UNKNOWN, "changes the shell, or may run a command that does")
        use.note(LOW, "only says something")
    elif asks in ("--version", "-V", "-v", "--help", "-h") and name in table.VERSIONED:
        # Of Rust, a file of the folder may say which toolchain is run.
        use.note(MEDIUM if name in ("cargo", "rustc") else LOW, "only says something")
    elif name in _WHOLE:
        _WHOLE[name](use)
    elif f"{name}." in rows() and name != "python":
        _command(use, args)
    elif name in rows():
        _by_row(use, args)
    elif local:
        use.arguments(args)
    else:
        use.note(UNKNOWN, "is no program that is in a table")
    return cwd


def _command(use: ProgramUse, words: Words) -> None:
    """Judge a command of a program, such as `git log` or `gh pr list`."""
    if (before := row(f"{use.name}.")).kind:
        options = parse_options(use, before.options, words, stop=True)
        words = options.operands
        use = _git(use, options) if use.name == "git" else use
    what = words[0].text if words else "install" if use.name in ("yarn", "pnpm") else ""
    name, rest = f"{use.name}.{what}", words[1:]
    if len(words) > 1 and f"{name}.{words[1].text}" in rows():
        name, rest = f"{name}.{words[1].text}", words[2:]
    inner = use._replace(name=name, args=rest)
    if name in _WHOLE:
        _WHOLE[name](inner)
    elif name == "uv.pip":
        _command(use._replace(name="pip"), rest)
    elif what and name in rows():
        _by_row(inner, rest)
    elif use.name in ("yarn", "pnpm") and is_project(what):
        use.run(words)
    elif use.name in rows():
        _by_row(use, words)
    else:
        use.note(UNKNOWN, f"has no command {what[:40]!r} in its table")


def _by_row(use: ProgramUse, words: Words) -> None:
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
    program_options = parse_options(use, options, words[:split], use.name in table.STOPS)
    if project:
        use.runs_written()
    if project and any(_OUTSIDE.search(value) for _, value in program_options.pairs):
        use.note(UNKNOWN, "has an option with a path outside of the working directory")
    part = _PART.get(use.name) or _PART.get(use.name[:4])
    operands = program_options.operands if part is None else part(use, program_options)
    if letters[-1:] == "X":  # a program, behind some words
        for kind, word in zip(letters[:-1], operands, strict=False):
            use.operand(kind, word)
        use.run(operands[len(letters) - 1 :])
        return
    if "*" in program_options.flags:
        letters = letters.replace("r", "R").replace("w", "D" if use.name == "rm" else "w")
    # The last letter before a star is repeated; the letters after it are for the last operands.
    head, star, last = letters.partition("*")
    for index, word in enumerate(operands):
        behind = len(operands) - index
        if behind <= len(last):
            use.operand(last[len(last) - behind], word)
        else:
            use.operand(head[index] if index < len(head) else head[-1:] if star else "", word)
    use.note(LOW, "only says something" if letters in ("t*", "0") else "only reads")
    changing = "+" in signs or ("%" in signs and operands and "*" not in program_options.flags)
    if project or changing:
        where = use.name.startswith("git.") and use.cwd and repository(use.cwd)
        use.reader.use_path(ShellWord(where or "."), use.cwd, "use", f"{use.name} works in")
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
    folder = paths.real(target.text, use.cwd)
    use.paths("l", [ShellWord(folder)])
    # After a link, a shell takes `..` off the link's name, and a program off the real folder.
    if folder != os.path.normpath(os.path.join(use.cwd, target.text)):
        use.note(UNKNOWN, "goes to a folder by a link")
        return ""
    return folder


# --- searching ---


def _grep(use: ProgramUse, options: ProgramOptions) -> Words:
    """Judge the files that grep and ripgrep search."""
    ripgrep, listing = use.name == "rg", options.has("--files")
    files = options.operands[0 if listing or options.has("-e", "-f") else 1 :]
    deep, included = ripgrep or "*" in options.flags, options.values("--include")
    names = FileNames()
    if ripgrep:
        names = FileNames(hidden=options.has("-g", "--glob", "-u", "--hidden", "-.", "--no-ignore"))
    elif not options.has("--exclude") and not re.search(r"[/\\\[]", "".join(included)):
        names = FileNames(tuple(included))  # of both options the last one decides
    # Ripgrep also ignores an input that is no pipe and no file, such as /dev/null.
    files = files or ([ShellWord(".")] if deep else [])
    use.paths("R" if deep and not listing else "r", files, names=names)
    return ()


def _find_options(use: ProgramUse, words: Words) -> tuple[ProgramOptions, tuple[str, ...]]:
    """Return the options of find, and the names of the files that it finds; none: any."""
    texts, first = [word.text for word in words], re.compile(r"-(?![LPH]$)|[(!]")
    begin = next(at for at, text in enumerate([*texts, "-"]) if first.match(text))
    # Words behind the first test are no options of a shell's making, see `odd_names`.
    tests = [ShellWord(text) for text in texts[begin:] if text not in ("(", ")", "!")]
    where = parse_options(use, row("find").options, words[:begin])
    test_options = parse_options(use, row("find").options, tests)
    if test_options.operands:
        use.note(
            UNKNOWN, f"has a word {test_options.operands[0].text[:40]!r} that is not in its table"
        )
    names = test_options.values("-name", "-iname")
    exact = {"!", "-not", "-o", "-or"}.isdisjoint(texts) and not any(word.glob for word in words)
    exact = exact and not where.pairs and not re.search(r"[\[\\]", "".join(names))
    test_options = test_options._replace(operands=where.operands or [ShellWord(".")])
    return test_options, tuple(names) if exact else ()


def _find(use: ProgramUse) -> None:
    """Judge find: the files that it may find, and the one program that it may run at its end."""
    texts = [word.text for word in use.args]
    at = next((at for at, text in enumerate(texts) if text in ("-exec", "-delete")), len(texts))
    options, names = _find_options(use, use.args[:at])
    use.note(LOW, "only looks")
    use.paths("l", options.operands)
    if texts[at : at + 1] == ["-delete"] or texts[at + 1 : at + 2] == ["rm"]:
        plain = re.fullmatch(r"-delete|-exec rm( -r?f?)? \{\} [;+]", " ".join(texts[at:]))
        if not (plain and names and all(map(is_regenerated, names))):
            use.note(HIGH, "deletes the found files")
        use.paths("w", options.operands)
    elif texts[at:]:
        if not {";", "+"} & set(texts[-1:]) or {"-L", ";"} & set(texts[:-1]):
            use.note(UNKNOWN, "has actions on the found files that are not judged")
        _reads_found(use, use.args[at + 1 : -1], options.operands, names)


def _reads_found(use: ProgramUse, command: Words, roots: Words, names: tuple[str, ...]) -> None:
    """Judge a program that is given files with these names in these folders, in place of `{}`."""
    texts = [word.text for word in command]
    if "{}" in "".join(texts[:-1]) or texts[-1:] != ["{}"] or texts[0] not in table.READERS:
        use.note(UNKNOWN, "runs a program that may do more than read the found files")
        return
    use.run(command[:-1])
    # Of a folder that is found, `grep -r` reads files of any name.
    recursive = any(re.match(r"--?\w*[rR]", text) for text in texts)
    use.paths("R", roots, names=FileNames(() if recursive else names))


def _xargs(use: ProgramUse) -> None:
    """Judge xargs: it gives the files that the pipeline has found to a program that reads them."""
    options, reader = parse_options(use, row("xargs").options, use.args, stop=True), use.reader
    feeds: Words = reader.feeds[0] if len(reader.feeds) == 1 else []
    if not feeds or feeds[0].text != "find" or reader.wrote or reader.highest.rank > LOW:
        use.note(UNKNOWN, "runs a program with words that are not known beforehand")
        return
    find_options, names = _find_options(use, feeds[1:])
    if find_options.has("-printf", "-ls") or not use.cwd or reader.rearranged:
        use.note(UNKNOWN, "is given words that are no names")
    elif not (find_options.has("-print0") and options.has("-0", "--null")) and any(
        re.search(r"[\s'\"\\]", one.text)
        or reader.paths.scan(use.at(one.text), FileNames(names), everywhere=True).odd
        for one in find_options.operands
    ):
        use.note(UNKNOWN, "is given names that may be several, or options")
    words = [word for word in options.operands if word.text != "{}"]
    _reads_found(use, [*words, ShellWord("{}")], find_options.operands, names)


# --- sed and awk ---

_SED_PLACE = r"(?:[+~]?\d+(?:~\d+)?|\$|/(?:[^/\\\n]|\\[^\n])*/[IM]*)"
_SED_PART = r"(?:(?!\2)[^\\\n]|\\(?:.|\n))*\2"
_SED_COMMAND = re.compile(
    rf"(?:[ \t\n;{{}}]|#[^\n]*(?:\n|\Z)|(?:{_SED_PLACE}[ \t]*(?:,[ \t]*{_SED_PLACE})?)?[ \t!]*(?:{{"
    r"|([aic])(?:[^\\\n]|\\[^\n]|\\\n)*(?:\n|\Z)|(?:[dDgGhHnNpPxzF=]|[qQ][ \t]*\d*|[btT][ \t]*\w*"
    rf"|:[ \t]*\w+|s([/|#,@:!%~_+=]){_SED_PART}{_SED_PART}[gpiIMm0-9]*)[ \t]*(?=[;}}\n#]|\Z)))",
    re.ASCII,
)


def _sed(use: ProgramUse, options: ProgramOptions) -> Words:
    """Judge a script of sed, which may run programs and read and write files."""
    scripts, files = options.values("-e", "--expression"), options.operands
    if scripts:
        if not all(re.fullmatch(r"[\w./*?-]*", word.text) for word in files):
            use.note(UNKNOWN, "has files with the names of scripts")
    elif files and not files[0].glob:
        scripts, files = [files[0].text], files[1:]
    text, at = "\n".join(scripts), 0
    while at < len(text) < 20_000 and (match := _SED_COMMAND.match(text, at)) and match.end() > at:
        at = match.end()
    copies = options.values("-i", "--in-place")
    if at < len(text) or not scripts or text.endswith("\\"):
        use.note(UNKNOWN, "has a script that may write or run something")
    if any(re.search(r"[/*]", value) for value in copies):
        use.note(UNKNOWN, "keeps replaced files elsewhere")
    use.paths("w", files if copies else (), "changes")
    return () if copies else files


_AWK_RUNS = re.compile(
    r"[@`|]|\{.*>|\b(?:system|getline|close|fflush|ENVIRON|PROCINFO|ARGV|ARGC|SYMTAB|FUNCTAB"
    r"|nextfile|load|include|func|function)\b",
    re.DOTALL,
)


def _awk(use: ProgramUse, options: ProgramOptions) -> Words:
    """Judge a program of awk, which writes with `>` and runs with `|` and some names."""
    program = options.operands[0] if options.operands else ShellWord("", glob=True)
    text = program.text.replace("||", " ")
    if program.glob or len(text) > 5000 or _AWK_RUNS.search(text):
        use.note(UNKNOWN, "has a program that may run, read or write something")
    files = [one for one in options.operands[1:] if not re.match(r"[A-Za-z_]\w*=", one.text)]
    return [ShellWord(""), *files]


# --- git ---

# Settings in a repository's configuration that run nothing of the repository's choice.
_PLAIN_LINE = re.compile(
    r"\s*(?:[#;].*|\[[\w-]+(?:\s+\"[^\"\\]*\")?\]|(?:clean|smudge|process)\s*=\s*git-lfs (?:clean"
    r"|smudge|filter-process)(?: --skip)?(?: --)?(?: %f)?"
    rf"|(?:{'|'.join(table.GIT_SETTINGS.split())})(?:\s*=.*|\s*))?",
    re.IGNORECASE,
)


def _git(use: ProgramUse, options: ProgramOptions) -> ProgramUse:
    """Judge the options before git's command, and the repository's settings, which may name
    programs. The settings are under `.git`, where no proven command writes. Return the use in git's
    folder."""
    paths = use.reader.paths
    for value in options.values("-C"):  # later paths are relative to that folder
        if not value or use.reader.rearranged or not paths.is_inside(value, use.cwd):
            use.note(UNKNOWN, "works outside of the working directory")
        use = use._replace(cwd=paths.real(value, use.cwd) if use.cwd else "")
    root = repository(use.cwd) if use.cwd else ""
    # A folder without its own repository may become one that looks like a repository.
    moved = use.reader.wrote or use.reader.rearranged or not os.path.isdir(use.cwd)
    if not use.cwd or (root != use.cwd and moved):
        use.note(UNKNOWN, "works in a folder that is not known beforehand")
    folder = os.path.join(root, ".git")
    if root and not paths.inside(root):
        use.note(MEDIUM, "reads a repository around the working directory")
    if root and (os.path.islink(folder) or not os.path.isdir(folder)):
        use.note(
            UNKNOWN, "works in a folder that looks like a repository, and may run its settings"
        )
    elif root:
        files = [bytes_of(os.path.join(folder, name)) for name in ("config", "config.worktree")]
        text = b"\n".join(files).decode(errors="replace")
        if re.search(r"worktree\s*=|\[\s*include", text, re.IGNORECASE):
            use.note(UNKNOWN, "works where the settings of the repository say")
        hook = os.path.lexists(os.path.join(folder, "hooks", "post-index-change"))
        if hook or not all(_PLAIN_LINE.fullmatch(line) for line in text.splitlines()):
            use.note(MEDIUM, "runs programs of the repository's settings, or a hook")
        # A repository within this one, whose settings count as well, has this mode in the index.
        looks = {"status", "diff", "diff-index", "describe", "lfs"} & {
            one.text for one in options.operands[:1]
        }
        index = bytes_of(os.path.join(folder, "index")) if looks else b""
        if any(one.endswith(b"\0\0") for one in index.split(b"\xe0\0")[:-1]):
            use.note(MEDIUM, "runs programs of a nested repository's settings")
    return use


_CREDENTIAL = re.compile(r"header|insteadof|token|password|credential|proxy", re.IGNORECASE)


def _git_part(use: ProgramUse, options: ProgramOptions) -> Words:
    """Judge a command of git beside its row."""
    name, words, has, paths = use.name[4:], options.operands, options.has, use.reader.paths
    if name in ("add", "stash", "stash.push"):  # takes files to where changes are shown
        whole = has("-A", "--all", "-u", "--include-untracked") or (name == "add" and not words)
        for text in ["."] if whole else [one.text for one in words if name == "add"]:
            # A pattern may be for git, or stand for folders.
            real = paths.real(split_glob(text)[0] if re.search(r"[*?[]", text) else text, use.cwd)
            if any(not is_ignored_by_git(real, secret) for secret in paths.scan(real).secrets):
                use.note(HIGH, "takes a secret")
            if text.startswith(":"):
                use.note(UNKNOWN, "has a pattern that is not read")
    elif name in ("clone", "fetch", "pull", "ls-remote"):
        what = words[0].text if words else ""
        if not re.fullmatch(r"[\w.-]*", what):
            use.reader.writing.append(use.cwd)
        if is_url(what):
            use.reader.note(*paths.fetch(what))
        plain = r"(?:https?|git)://(?!.*::).*|git@[\w.-]+:[\w./-]+"
        if not re.fullmatch(plain if name == "clone" else rf"{plain}|[\w.-]*", what):
            use.note(UNKNOWN, "fetches in a way that is not judged")
        if name == "clone":
            folder = re.sub(r"\.git$", "", what.rstrip("/")).rpartition("/")[2]
            use.paths("w", words[1:2] or [ShellWord(folder)])
        return ()
    elif name == "grep":
        use.paths("R", [ShellWord(".")])
        return words if has("-e") else [ShellWord(""), *words[1:]]
    elif name == "config" and not has("--get", "--get-all", "--list", "-l"):
        if len(words) != 1 or "." not in words[0].text:
            use.note(HIGH, "changes settings, which may run programs")
    elif name == "config" and any(_CREDENTIAL.search(word.text) for word in words):
        use.note(HIGH, "may show a secret")
    elif name == "apply":
        use.reader.writing.append(use.cwd)
    elif name == "rm" and not has("--cached", "-n", "--dry-run"):
        if has("-r") or any(word.glob for word in words):
            use.note(HIGH, "deletes files")
    elif name == "clean" and (has("-f", "--force") or not has("-n", "--dry-run")):
        use.note(HIGH, "deletes files that git does not know")
    elif name in ("checkout", "restore") and has("-b", "--orphan", "-S", "--staged"):
        return ()
    return words


# --- files and the network ---


def _copies(use: ProgramUse, options: ProgramOptions) -> Words:
    """Judge cp, mv and install: the files that they read, and those that they may replace."""
    deep, moves, paths = "*" in options.flags, use.name == "mv", use.reader.paths
    targets = [ShellWord(value) for value in options.values("-t", "--target-directory")]
    sources = options.operands if targets else options.operands[:-1]
    targets = targets or options.operands[-1:]
    use.paths("R" if deep else "r", sources)
    names = [os.path.basename(one.text.rstrip("/")) for one in sources if not one.glob]
    inside = [ShellWord(os.path.join(one.text, name)) for one in targets for name in names]
    use.paths("w", [*targets, *inside, *(sources if moves else ())])
    if use.reader.written_files or not all(paths.is_inside(one.text, use.cwd) for one in sources):
        use.reader.writing += [paths.real(word.text, use.cwd) for word in targets]
    for word in targets:
        if moves and not paths.is_inside(word.text, use.cwd):
            # A sandbox keeps such a write from the host, but the files are gone with the sandbox.
            use.note(HIGH, "takes files out of the working directory")
        # A file of the folder that is replaced may be a link.
        scan = paths.scan(paths.real(word.text, use.cwd), deep=deep, everywhere=True)
        if not moves and (scan.leads_out or not scan.whole):
            use.note(UNKNOWN, f"writes to {word.text[:80]}, which has links out")
    globbed = len(names) < len(sources)  # may be names that git obeys
    use.reader.rearranged = use.reader.rearranged or deep or moves or globbed
    return ()


def _asks(use: ProgramUse, options: ProgramOptions) -> Words:
    """Judge the addresses of curl and wget, and the data that they send."""
    headers = options.values("-H", "--header")
    methods = {*options.values("-X", "--request", "--method")} - {"GET", "HEAD"}
    credential = re.compile(r"(?:proxy-)?authorization|cookie|x-.*(?:key|token)", re.IGNORECASE)
    sends = "$" in options.flags or methods or any(map(credential.match, headers))
    names_file = options.has("-O", "--remote-name", "--output-document", "--spider")
    for url in [word.text for word in options.operands]:
        if re.search(r"[{}\[\]]", re.sub(r"//\[[0-9a-fA-F:.]+\]", "", url)):
            use.note(UNKNOWN, "asks addresses that it makes up")
        what = "sends data" if sends else ""
        use.reader.note(*use.reader.paths.fetch(url, what))
        file = url.partition("?")[0].rpartition("/")[2] or "index.html"
        use.paths("w", [ShellWord(file)] if names_file == (use.name == "curl") else ())
    return ()


# --- programs that run another one ---


def is_project(name: str) -> bool:
    """Return whether a program runs the project's own code, and takes names and paths of it."""
    return row(name).kind == "p*" and "!" in row(name).signs


def _runs(use: ProgramUse) -> None:
    """Judge `uv run`, `poetry run` and similar programs; `npx` may have to fetch its program."""
    words = list(itertools.dropwhile(lambda one: one.text in table.RUN_OPTIONS, use.args))
    name = words[0].text if words else "-"
    installed = os.path.exists(use.at(f"node_modules/.bin/{os.path.basename(name)}"))
    if use.name in ("npx", "npm.exec") and name not in table.NODE_TOOLS and not installed:
        use.note(HIGH, "fetches a program and runs it")
    elif name.startswith("-"):
        use.note(UNKNOWN, "has options that are not in its table")
    use.note(MEDIUM, "runs a program of the project")
    use.run(words)


def _interpreter(use: ProgramUse, options: ProgramOptions) -> Words:
    """Judge an interpreter: its first operand is code."""
    if not options.operands and not options.has("--test"):
        fed = use.stdin == "pipe" and use.name in ("bash", "sh", "dash", "zsh")
        use.note(HIGH if fed else UNKNOWN, "runs code that stands in the command, or is fed to it")
    return options.operands


def _python(use: ProgramUse) -> None:
    """Judge Python: a file of the project, or a module of it or in the table."""
    use, options = use._replace(name="python"), row("python").options
    before = [*itertools.takewhile(lambda word: word.text != "-m", use.args)]
    program_options = parse_options(use, options, before, stop=True)
    rest = use.args[len(before) + 1 :]
    if program_options.operands or len(before) == len(use.args):
        for word in _interpreter(use, program_options)[:1]:
            use.runs_code(word)
        use.arguments(program_options.operands[1:])
        use.arguments(rest)
        return
    module = rest[0].text if rest else ""
    use.note(MEDIUM, f"runs the module {module[:60]}")
    program = module.replace("_", "-")
    files = [use.at(os.path.join(source, *module.split("."))) for source in ("", "src")]
    if f"python.{module}" in rows():
        use.run([ShellWord(f"python.{module}"), *rest[1:]])
    elif is_project(program) or module == "pip":
        use.run([ShellWord(program), *rest[1:]])
    elif re.fullmatch(r"[A-Za-z_][\w.]*", module) and any(
        os.path.isfile(f"{one}.py") or os.path.isfile(f"{one}/__init__.py") for one in files
    ):
        use.runs_written()
        use.arguments([ShellWord("."), *rest[1:]])
    else:
        use.note(UNKNOWN, f"runs the module {module[:60]}, which is not of the project")


# Functions that judge a program without its row, and functions that judge it in addition. The
# latter return the operands that are left for the row.
_WHOLE: Mapping[str, Callable[[ProgramUse], None]] = {
    "find": _find,
    "xargs": _xargs,
    **dict.fromkeys(("npx", *table.RUNNERS), _runs),
    **dict.fromkeys(("python", "python2", "python3"), _python),
}
_PART: Mapping[str, Callable[[ProgramUse, ProgramOptions], Words]] = {
    "sed": _sed,
    "git.": _git_part,  # all commands of git
    **dict.fromkeys(("grep", "egrep", "fgrep", "rg"), _grep),
    **dict.fromkeys(("awk", "gawk", "mawk"), _awk),
    **dict.fromkeys(("cp", "mv", "install"), _copies),
    **dict.fromkeys(("curl", "wget"), _asks),
    **dict.fromkeys(table.INTERPRETERS, _interpreter),
}
