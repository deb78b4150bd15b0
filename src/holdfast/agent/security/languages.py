"""Programs with a language of their own, which may write or run something: grep, sed, awk, find."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.agent.security.grammar import ShellWord
from holdfast.agent.security.paths import HIGH, LOW, UNKNOWN, FileNames, made_again, word_set
from holdfast.agent.security.use import Options, ProgramUse


def grep(use: ProgramUse, found: Options) -> Sequence[ShellWord]:
    """Judge the files that grep and ripgrep search."""
    ripgrep, listing = use.name == "rg", found.has("--files")
    pattern_given = listing or found.has("-e", "-f")
    files = found.operands[0 if pattern_given else 1 :]
    deep = ripgrep or "*" in found.flags
    if ripgrep:
        names = FileNames(hidden=found.has("-g", "--glob", "-u", "--hidden", "-.", "--no-ignore"))
    else:
        names = _included(found)
    # Ripgrep also ignores an input that is no pipe and no file, such as /dev/null.
    files = [ShellWord(".")] if deep and not files else files
    if listing or not deep:
        use.paths("r", files)
    else:
        for word in files:
            use.reader.search(word, use.cwd, names, f"{use.name} reads")
    return ()


def _included(found: Options) -> FileNames:
    """Return the names that `--include` and `--exclude` leave; of both the last one decides."""
    filters = [(name, value) for name, value in found.given if name in ("--include", "--exclude")]
    patterns = tuple([value for name, value in filters if name == "--include"])
    if any(re.search(r"[/\\\[]", value) for _, value in filters):
        return FileNames()
    if not patterns:
        return FileNames(without=tuple([value for _, value in filters]))
    return FileNames() if filters[0][0] == "--exclude" else FileNames(patterns)


_SED_PLACE = r"(?:[+~]?\d+(?:~\d+)?|\$|/(?:[^/\\\n]|\\[^\n])*/[IM]*)"
_SED_PART = r"(?:(?!\4)[^\\\n]|\\(?:.|\n))*\4"
_SED_COMMAND = re.compile(
    rf"(?:[ \t\n;{{}}]|#[^\n]*(?:\n|\Z)|(?:{_SED_PLACE}[ \t]*(?:,[ \t]*{_SED_PLACE})?)?[ \t!]*(?:{{"
    r"|([aic])(?:[^\\\n]|\\[^\n]|\\\n)*(?:\n|\Z)"
    r"|(?:[dDgGhHnNpPxzF=]|[lqQ][ \t]*\d*|[btT][ \t]*\w*|:[ \t]*\w+"
    rf"|(?:(s)|(y))([/|#,@:!%~_+=]){_SED_PART}{_SED_PART}(?(2)[gpiIMm0-9]*|))"
    r"[ \t]*(?=[;}\n#]|\Z)))",
    re.ASCII,
)


def sed(use: ProgramUse, found: Options) -> Sequence[ShellWord]:
    """Judge a script of sed, which may run programs and read and write files: one that is not
    plainly without that is not proven."""
    scripts, files = found.values("-e", "--expression"), found.operands
    if scripts:
        if not all(re.fullmatch(r"[\w./*?-]+", word.text) for word in files):
            use.note(UNKNOWN, "has files with the names of scripts")
    elif files and not files[0].glob:
        scripts, files = [files[0].text], files[1:]
    text, at = "\n".join(scripts), 0
    while at < len(text) < 20_000 and (match := _SED_COMMAND.match(text, at)) and match.end() > at:
        at = match.end()
    copies = found.values("-i", "--in-place")
    if at < len(text) or not scripts or text.endswith("\\"):
        use.note(UNKNOWN, "has a script that may write or run something")
    if any(re.search(r"[/*]", value) for value in copies):
        use.note(UNKNOWN, "keeps what it replaces elsewhere")
    if not copies:
        return files
    use.paths("w", files, "changes")
    return ()


_AWK_RUNS = re.compile(
    r"[@`|]|\{.*>|\b(?:system|getline|close|fflush|ENVIRON|PROCINFO|ARGV|ARGC|SYMTAB|FUNCTAB"
    r"|nextfile|load|include|func|function)\b",
    re.DOTALL,
)


def awk(use: ProgramUse, found: Options) -> Sequence[ShellWord]:
    """Judge a program of awk, which writes with `>` and runs with `|` and some names."""
    program = found.operands[0] if found.operands else ShellWord("", glob=True)
    text = program.text.replace("||", " ")
    if program.glob or len(text) > 5000 or _AWK_RUNS.search(text):
        use.note(UNKNOWN, "has a program that may run, read or write something")
    files = [word for word in found.operands[1:] if not re.match(r"[A-Za-z_]\w*=", word.text)]
    return [ShellWord(""), *files]


_FIND_ALONE = word_set(
    "-print -print0 -ls -prune -quit -depth -d -mount -xdev -empty -true -false -readable -writable"
    " -executable -noleaf -daystart -a -and -o -or -not ! ( ) -help --help -version --version"
)
_FIND_VALUED = word_set(
    "-name -iname -path -ipath -regex -iregex -wholename -iwholename -lname -printf -type -xtype"
    " -size -mtime -mmin -atime -amin -ctime -cmin -perm -user -newer -group -maxdepth -mindepth"
    " -regextype -newermt"
)
# Programs that only read the files behind their other words.
_READERS = word_set("cat echo egrep fgrep file grep head ls md5sum sha256sum stat tail wc")


def find(use: ProgramUse) -> None:
    """Judge find: the files that it may find, and what it does with them."""
    words = list(use.args)
    starts = [at for at, word in enumerate(words) if re.match(r"-(?![LPH]$)|[(!]", word.text)]
    index = (starts or [len(words)])[0]
    roots = [word for word in words[:index] if word.text not in ("-L", "-P", "-H")]
    use.note(LOW, "only looks")
    use.paths("l", roots)
    texts = [word.text for word in words]
    exact = {"!", "-not", "-o", "-or"}.isdisjoint(texts) and not any(word.glob for word in words)
    names = list[str]()  # that the files have which a program gets
    while index < len(words):
        text = words[index].text
        value = words[index + 1].text if index + 1 < len(words) else ""
        index += 2 if text in _FIND_VALUED else 1
        if text in ("-name", "-iname") and exact and not re.search(r"[\[\\]", value):
            names.append(value)
        if text in ("-exec", "-delete") and "-L" in texts:
            use.note(UNKNOWN, "follows links to what it works on")
        if text == "-exec":
            ends = [at for at in range(index, len(words)) if words[at].text in (";", "+")]
            stop = (ends or [len(words)])[0]
            _executes(use, words[index:stop], roots, names)
            index = stop + 1
        elif text == "-delete":
            _deletes(use, roots, names)
        elif text not in _FIND_VALUED and text not in _FIND_ALONE:
            use.note(UNKNOWN, f"has a word {text[:40]} that is not in its table")


def _executes(
    use: ProgramUse, command: Sequence[ShellWord], roots: Sequence[ShellWord], names: Sequence[str]
) -> None:
    """Judge the command that find runs on files with these names: rm, or a program that reads."""
    texts = [word.text for word in command]
    if texts in (["rm", "{}"], ["rm", "-f", "{}"], ["rm", "-r", "{}"], ["rm", "-rf", "{}"]):
        _deletes(use, roots, names)
    elif texts[-1:] != ["{}"] or "{}" in "".join(texts[:-1]) or texts[0] not in _READERS:
        use.note(UNKNOWN, "runs a program that may do more than read what it finds")
    else:
        use.run(command[:-1])
        # Of a folder that is found, `grep -r` reads files of any name.
        recursive = any(re.match(r"--?\w*[rR]", text) for text in texts)
        files = FileNames(() if recursive else tuple(names))
        for root in roots or [ShellWord(".")]:
            use.reader.search(root, use.cwd, files, f"{texts[0]} reads")


def _deletes(use: ProgramUse, roots: Sequence[ShellWord], names: Sequence[str]) -> None:
    """Judge deleting what find finds: high, but for what tools make again."""
    if not names or not all(map(made_again, names)):
        use.note(HIGH, "deletes what is found")
    use.paths("w", roots or [ShellWord(".")])
