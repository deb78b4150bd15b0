"""Programs with a language of their own, which may write or run something: find, xargs, grep,
sed, awk, test."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.agent.security.paths import LOW, UNKNOWN, FileNames, word_set
from holdfast.agent.security.script import UNKNOWN_WORD, ShellWord
from holdfast.agent.security.use import Options, ProgramUse

# Options of grep that leave lines as they are, so that names of files stay names.
_WHOLE_LINES = word_set(
    "-v -i -E -F -P -w -x -e --invert-match --ignore-case --extended-regexp --fixed-strings"
)


def grep(use: ProgramUse, found: Options) -> Sequence[ShellWord]:
    """Judge the files that grep and ripgrep search."""
    ripgrep, listing = use.name == "rg", found.has("--files", "--type-list")
    pattern_given = listing or found.has("-e", "--regexp", "-f", "--file")
    files = found.operands[0 if pattern_given else 1 :]
    deep = ripgrep or "*" in found.flags
    if ripgrep:
        everything = ("-g", "--glob", "--iglob", "-u", "--unrestricted", "--hidden", "-.")
        names = FileNames(hidden=found.has(*everything, "--no-ignore"))
    else:
        names = _included(found)
    # Ripgrep also ignores an input that is no pipe and no file, such as /dev/null.
    files = [ShellWord(".")] if deep and not files else files
    searched = [word._replace(tree=word.tree or names) for word in files] if deep else files
    use.paths("r", files if listing else searched)
    if found.has("-l", "-L", "--files-with-matches", "--files-without-match", "--files"):
        if not found.has("-H", "-n", "-c", "--json"):
            use.reader.yields = tuple([word._replace(tree=word.tree or names) for word in files])
    elif not files and use.stdin is not None and {name for name, _ in found.given} <= _WHOLE_LINES:
        use.reader.yields = use.stdin.names
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


# --- sed, awk ---

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
    elif files and not files[0].glob and files[0].tree is None:
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
    r"[@`|]|\b(?:system|getline|close|fflush|ENVIRON|PROCINFO|ARGV|ARGC|SYMTAB|FUNCTAB|nextfile"
    r"|load|include|func|function)\b"
)
# A comparison stands before a rule's braces, or in parentheses.
_AWK_COMPARISON = re.compile(
    r"(?:if|while) ?\([\w$. ]+(?:\(\$\d\))? ?>=? ?[\w.]+\)|\$?\w+ ?>= ?\d+|\} ?NR ?> ?\d+ ?(?=\{)"
)


def awk(use: ProgramUse, found: Options) -> Sequence[ShellWord]:
    """Judge a program of awk, which writes with `>` and runs with `|` and some names."""
    first = found.operands[0] if found.operands else UNKNOWN_WORD
    program = "@" if first.glob or first.tree is not None or not first.known else first.text
    program = re.sub(r"^/[^/{}\"\\\[]*/", "", program.replace("||", " "))
    action = _AWK_COMPARISON.sub("", program.partition("{")[2])
    if _AWK_RUNS.search(program) or ">" in action or len(program) > 5000:
        use.note(UNKNOWN, "has a program that may run, read or write something")
    files = [word for word in found.operands[1:] if not re.match(r"[A-Za-z_]\w*=", word.text)]
    return [ShellWord(""), *files]


# --- find, xargs ---

_FIND_ALONE = word_set(
    "-print -print0 -ls -prune -quit -depth -d -mount -xdev -empty -true -false -readable -writable"
    " -executable -noleaf -daystart -a -and -o -or -not ! ( ) -help --help -version --version"
)
_FIND_VALUED = word_set(
    "-name -iname -path -ipath -regex -iregex -wholename -iwholename -lname -printf -type -xtype"
    " -size -mtime -mmin -atime -amin -ctime -cmin -perm -user -newer -group -maxdepth -mindepth"
    " -regextype -newermt"
)


def find(use: ProgramUse) -> None:
    """Judge find: the files that it may find, and what it runs on them."""
    words = list(use.args)
    starts = [at for at, word in enumerate(words) if re.match(r"-(?![LPH]$)|[(!]", word.text)]
    index = (starts or [len(words)])[0]
    roots = [word for word in words[:index] if word.text not in ("-L", "-P", "-H")]
    follows = any(word.text == "-L" for word in words)
    use.note(LOW, "only looks")
    for root in roots:
        use.operand("l", root)
    exact = {"!", "-not", "-o", "-or"}.isdisjoint([word.text for word in words])
    tests, lists = list[tuple[str, str]](), not follows
    while index < len(words):
        text = words[index].text
        value = words[index + 1].text if index + 1 < len(words) else ""
        index += 2 if text in _FIND_VALUED else 1
        if text in ("-exec", "-delete"):
            command = [ShellWord("rm"), ShellWord("{}")]
            if text == "-exec":
                ends = [at for at in range(index, len(words)) if words[at].text in (";", "+")]
                stop = (ends or [len(words)])[0]
                command, index = words[index:stop], stop + 1
            if any("{}" in one.text and one.text != "{}" for one in command) or follows:
                use.note(UNKNOWN, "makes up words from what it finds, or follows links to it")
            trees = _found_trees(roots, tests, exact)
            use.run([word for one in command for word in (trees if one.text == "{}" else [one])])
        elif text not in _FIND_VALUED and text not in _FIND_ALONE:
            use.note(UNKNOWN, f"has a word {text[:40]} that is not in its table")
        lists = lists and text not in ("-exec", "-delete", "-ls", "-printf")
        if text not in ("(", ")", "-type", "-print", "-print0"):
            tests.append((text, value))
    use.reader.yields = tuple(_found_trees(roots, tests, exact)) if lists else None


def _found_trees(
    roots: Sequence[ShellWord], tests: Sequence[tuple[str, str]], exact: bool
) -> Sequence[ShellWord]:
    """Return words for what find finds. The tests are `exact` if all must hold; else the names of
    what is found are known if the tests are names with `-o` between them."""
    patterns = [value for test, value in tests if test in ("-name", "-iname")]
    named = [test in ("-name", "-iname") for test, _ in tests[::2]]
    joined = [test in ("-o", "-or") for test, _ in tests[1::2]]
    known = exact or (all(named) and all(joined) and len(named) > len(joined))
    if not known or any(re.search(r"[\[\\]", one) for one in patterns):
        patterns = []
    names = FileNames(tuple(patterns))
    return [root._replace(tree=names) for root in roots or [ShellWord(".")]]


def xargs(use: ProgramUse, found: Options) -> Sequence[ShellWord]:
    """Judge the program that xargs runs on what it is fed: names of files, if that is known."""
    mark = next(iter(found.values("-I", "--replace")), "")
    command = found.operands or [ShellWord("echo")]
    names = use.stdin.names if use.stdin is not None else None
    split = () if names is None or found.has("-0", "--null") else names
    if any(use.reader.is_odd(word, use.scope) for word in split):
        use.note(UNKNOWN, "may take a name for several, or for an option")
    if any(mark and mark in word.text and word.text != mark for word in command):
        use.note(UNKNOWN, "makes up words from what it is fed")
    fed = [UNKNOWN_WORD] if names is None else names
    words = [word for one in command for word in (fed if mark and one.text == mark else [one])]
    use.run(words if mark else [*words, *fed])
    return ()


# --- test ---

_BINARY = word_set("= == != -nt -ot -ef")
_NUMERIC = word_set("-eq -ne -lt -le -gt -ge")
_UNARY = word_set("-b -c -d -e -f -g -h -k -L -N -O -G -p -r -s -S -t -u -w -x -z -n")


def test(use: ProgramUse) -> None:
    """Judge `test`, `[` and `[[`: some operators evaluate what they are given, and words that are
    not known may be operators."""
    words = [word for word in use.args if word.text not in ("]", "]]", "!") or not word.known]
    operator = words[0] if len(words) == 2 else words[1] if len(words) == 3 else ShellWord("")
    binary = _BINARY if use.name == "[[" else _BINARY | _NUMERIC
    use.note(LOW, "only looks")
    allowed = {2: _UNARY, 3: binary}.get(len(words), {""})
    if len(words) > 3 or not operator.known or operator.text not in allowed:
        use.note(UNKNOWN, "may evaluate what it is given")
    if use.name != "[[" and any(
        word.split or (word.glob and word.text[0] in "*?[") for word in words
    ):
        use.note(UNKNOWN, "is given what may be an operator")
