"""Programs with a language of their own, which may write or run something: find, grep, sed, awk, jq, xargs, test."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from holdfast.agent.security.options import Options
from holdfast.agent.security.use import Use
from holdfast.agent.security.words import Names, Word

ALL = Names()
# Options of grep that leave lines as they are, so that names of files stay names.
_WHOLE_LINES = frozenset(
    ("-v", "-i", "-E", "-F", "-P", "-w", "-x", "-e", "--invert-match", "--ignore-case", "--extended-regexp", "--fixed-strings")
)


def _grep(use: Use, found: Options) -> Sequence[Word]:
    ripgrep = use.name == "rg"
    files = found.operands[0 if found.has("-e", "--regexp", "-f", "--file", "--files", "--type-list") else 1 :]
    deep = ripgrep or found.has("-r", "-R", "--recursive", "--dereference-recursive") or "recurse" in found.values("-d", "--directories")
    names = _names(found, ripgrep)
    if deep and not files and (use.stdin is None or not ripgrep):
        files = [Word(".")]
    use.reads(files, names if deep and not found.has("--files", "--type-list") else None)
    if found.has("-l", "-L", "--files-with-matches", "--files-without-match", "--files") and not found.has("-H", "-n", "-c", "--json"):
        use.reader.yields = tuple([word._replace(tree=word.tree or names) for word in files])
    elif not files and use.stdin is not None and {name for name, _ in found.given} <= _WHOLE_LINES:
        use.reader.yields = use.stdin.names
    return ()


def _names(found: Options, ripgrep: bool) -> Names:
    """The names of files that a search looks at, as far as that is sure."""
    filters = [(name, value) for name, value in found.given if name in ("--include", "--exclude")]
    patterns = tuple([value for name, value in filters if name == "--include"])
    without = tuple([value for name, value in filters if name == "--exclude"])
    if ripgrep:
        every = found.has("-g", "--glob", "--iglob", "-u", "--unrestricted", "--hidden", "-.", "--no-ignore")
        return Names(hidden=every)
    if any(re.search(r"[/\\\[]", value) for _, value in filters) or (patterns and without and filters[0][0] == "--exclude"):
        return Names()
    return Names(patterns, () if patterns else without)  # of both the last that fits decides


# --- sed ---

_SED_ADDRESS = re.compile(r"[ \t]*(?:[+~]?\d+(?:~\d+)?|\$|/(?:[^/\\\n]|\\[^\n])*/[IM]*)")
_SED_MARKS = "/|#,@:!%~_+="
_SED_END = re.compile(r"[ \t]*(?:[;}\n]|#[^\n]*(?:\n|\Z)|\Z)")
_SED_ALONE = re.compile(r"[dDgGhHnNpPxzF=]|[lqQ][ \t]*\d*|[btT][ \t]*[A-Za-z0-9_]*|:[ \t]*[A-Za-z0-9_]+")
_SED_TEXT = re.compile(r"[aic](?:[^\\\n]|\\[^\n]|\\\n)*(?:\n|\Z)")


def sed_is_simple(script: str) -> bool:
    """Whether a script of sed neither runs a program nor reads or writes another file. A script that is not plainly so is not simple."""
    at, end = 0, len(script)
    while at < end:
        if script[at] in " \t\n;{}":
            at += 1
            continue
        if script[at] == "#":
            at = script.find("\n", at) if "\n" in script[at:] else end
            continue
        address = _SED_ADDRESS.match(script, at)
        if address is not None:
            at = address.end()
            if script[at : at + 1] == ",":
                address = _SED_ADDRESS.match(script, at + 1)
                if address is None:
                    return False
                at = address.end()
        while at < end and script[at] in " \t!":
            at += 1
        letter = script[at : at + 1]
        if letter == "{":
            at += 1
        elif letter and letter in "sy":
            mark = script[at + 1 : at + 2]
            if not mark or mark not in _SED_MARKS:
                return False
            other = rf"(?:[^{re.escape(mark)}\\\n]|\\.|\\\n)*{re.escape(mark)}"
            body = re.compile(other + other + (r"[gpiIMm0-9]*" if letter == "s" else "")).match(script, at + 2)
            if body is None or (ended := _SED_END.match(script, body.end())) is None:
                return False
            at = ended.end()
        elif letter and letter in "aic":
            text = _SED_TEXT.match(script, at)
            if text is None or text[0].endswith("\\"):
                return False
            at = text.end()
        else:
            alone = _SED_ALONE.match(script, at)
            if alone is None or (ended := _SED_END.match(script, alone.end())) is None:
                return False
            at = ended.end()
    return True


def _sed(use: Use, found: Options) -> Sequence[Word]:
    scripts, files = found.values("-e", "--expression"), found.operands
    if not found.has("-e", "--expression"):
        if files[:1] and (files[0].glob or files[0].tree is not None):
            use.unknown("has a script that is not known beforehand")
        scripts, files = [word.text for word in files[:1]], files[1:]
    if not scripts or not all(len(one) < 20_000 and not one.endswith("\\") and sed_is_simple(one) for one in scripts):
        use.unknown("has a script that may write or run something")
    if found.has("-i", "--in-place"):
        if any(re.search(r"[/*]", value) for value in found.values("-i", "--in-place")):
            use.unknown("keeps what it replaces in another folder")
        use.writes(files, "changes")
        use.medium("changes files in their place")
        return ()
    return files


# --- awk ---

_AWK_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<comment>#[^\n]*)|(?P<name>[A-Za-z_]\w*)|(?P<number>\d[\w.]*)|(?P<blank>[ \t]+|\\\n)|(?P<other>>=|\|\||.)', re.DOTALL,
)  # fmt: skip
_AWK_REGEX = re.compile(r"/(?:[^/\\\n\[\]]|\\.|\[[^/\\\n\[\]]+\])*/")
_AWK_RUNS = frozenset(
    [
        "system",
        "getline",
        "close",
        "fflush",
        "ENVIRON",
        "PROCINFO",
        "ARGV",
        "SYMTAB",
        "FUNCTAB",
        "ARGC",
        "nextfile",
        "load",
        "include",
        "length",
        "function",
        "func",
    ]
)
_AWK_WORDS = frozenset(["print", "printf", "return", "in", "case", "do", "else", "delete", "exit"])


def _awk_is_simple(program: str) -> bool:
    """Whether a program of awk neither runs, writes nor reads anything else. A `>` is a comparison in parentheses, or in the pattern before
    a rule's braces; a program where that cannot be told is not simple."""
    at, end, braces, round_, before = 0, len(program), 0, 0, "\n"
    program = re.sub(r"\blength\b(?=[ \t]*\()", "substr", program)  # without parentheses what follows it may be a regular expression
    while at < len(program):
        if program[at] == "/":
            if before in "(,{;!&|~=\n}":
                regex = _AWK_REGEX.match(program, at)
                if regex is None:
                    return False
                at, before = regex.end(), "0"
                continue
            if before not in ("0", "]"):
                return False
        match = _AWK_TOKEN.match(program, at)
        if match is None:
            return False
        at = match.end()
        kind, text = match.lastgroup, match[0]
        if kind in ("blank", "comment"):
            continue
        if kind == "name" and text in _AWK_RUNS:
            return False
        if kind in ("name", "string", "number"):
            before = "word" if text in _AWK_WORDS else "0"
            continue
        if text in ('"', "@", "|", "\\", "`"):
            return False
        braces += (text == "{") - (text == "}")
        round_ += (text in "([") - (text in ")]")
        if text == ">" and round_ <= 0 and braces > 0:
            return False
        before = text[-1]
    return braces == 0 and round_ == 0 and end < 5000


def _awk(use: Use, found: Options) -> Sequence[Word]:
    program = found.operands[0] if found.operands else Word("", False)
    if not program.known or program.glob or program.tree is not None or not _awk_is_simple(program.text):
        use.unknown("has a program that may run, read or write something")
    return [Word(""), *[word for word in found.operands[1:] if not re.match(r"[A-Za-z_]\w*=", word.text)]]


def _jq(use: Use, found: Options) -> Sequence[Word]:
    program = re.sub(r'"(?:[^"\\(]|\\[^(])*"', '""', found.operands[0].text if found.operands else "")
    if re.search(r"\$ENV|(?<![.\w$])env\b", program):
        use.medium("shows the environment")
    if re.search(r"\b(?:import|include|input_filename|get_search_list)\b|\$__prog", program):
        use.unknown("has a program that reads other files")
    return found.operands


# --- find, xargs ---

_FIND_ALONE = frozenset(
    [
        "-print",
        "-print0",
        "-ls",
        "-prune",
        "-quit",
        "-depth",
        "-d",
        "-mount",
        "-xdev",
        "-follow",
        "-empty",
        "-true",
        "-false",
        "-readable",
        "-writable",
        "-executable",
        "-nouser",
        "-nogroup",
        "-noleaf",
        "-daystart",
        "-warn",
        "-nowarn",
        "-a",
        "-and",
        "-o",
        "-or",
        "-not",
        "!",
        "(",
        ")",
        ",",
        "-help",
        "--help",
        "-version",
        "--version",
    ]
)
_FIND_VALUED = frozenset(
    [
        "-name",
        "-iname",
        "-path",
        "-ipath",
        "-regex",
        "-iregex",
        "-wholename",
        "-iwholename",
        "-lname",
        "-ilname",
        "-printf",
        "-type",
        "-xtype",
        "-size",
        "-mtime",
        "-mmin",
        "-atime",
        "-amin",
        "-ctime",
        "-cmin",
        "-perm",
        "-user",
        "-newer",
        "-anewer",
        "-cnewer",
        "-used",
        "-uid",
        "-gid",
        "-maxdepth",
        "-mindepth",
        "-group",
        "-fstype",
        "-inum",
        "-links",
        "-regextype",
        "-newermt",
        "-newerct",
        "-newerat",
    ]
)


def _found(tokens: Sequence[tuple[str, str]], whole: bool) -> tuple[str, ...]:
    """Patterns of which the name of each path fits one that gets to the end of these tests of `find`; `whole`: that any of them lets through."""
    names = [name for name, _ in tokens]
    if "(" in names:
        begin, end = names.index("("), (names.index(")") if ")" in names else 0)
        outside = [*tokens[:begin], *tokens[end + 1 :]]
        if names.count("(") > 1 or end < begin or {"-o", "-or", ",", "!", "-not"} & {name for name, _ in outside}:
            return ()
        return _found(outside, False) or _found(tokens[begin + 1 : end], True)
    segments = list[list[str]]([[]])
    for index, (name, value) in enumerate(tokens):
        if name in ("-o", "-or"):
            segments.append([])
        elif name in ("-name", "-iname") and not re.search(r"[\[\\]", value) and names[index - 1 : index] not in (["!"], ["-not"]):
            segments[-1].append(value)
    if "," in names or (whole and not all(segments)):
        return ()
    return tuple([value for segment in segments for value in segment] if whole else segments[-1])


def find(use: Use) -> None:
    args = list(use.args)
    use.low("only looks")
    while args and args[0].text in ("-L", "-P", "-H"):
        args.pop(0)
    roots, tokens, index, actions = list[Word](), list[tuple[str, str]](), 0, list[str]()
    while args and not args[0].text.startswith(("-", "(", "!")):
        roots.append(args.pop(0))
    roots = roots or [Word(".")]
    for root in roots:
        use.operand("l", root)
    while index < len(args):
        text = args[index].text
        index += 1
        if text in ("-exec", "-delete"):
            actions.append(text)
            patterns = _found(tokens, False)
            stop = next((at for at in range(index, len(args)) if args[at].text in (";", "+")), len(args))
            command = args[index:stop] if text == "-exec" else [Word("rm")]
            index = stop + 1 if text == "-exec" else index
            if any("{}" in one.text and one.text != "{}" for one in command):
                use.unknown(f"{text} makes up words from what it finds")
            trees = [root._replace(tree=Names(patterns)) for root in roots]
            _run_on(use, command if text == "-exec" else [Word("rm"), *trees], trees, "{}")
        elif text in _FIND_VALUED and index < len(args):
            tokens.append((text, args[index].text))
            index += 1
        else:
            tokens.append((text, ""))
            if text not in _FIND_ALONE:
                use.unknown(f"has a word {text[:40]} that is not in its table")
            if text in ("-print", "-print0", "-ls"):
                actions.append(text)
    names = [name for name, _ in tokens]
    if "-ls" not in names and "-printf" not in names and actions in ([], ["-print"], ["-print0"]):
        patterns = _found(tokens, True) if not actions else _found(tokens[: names.index(actions[0])], False)
        use.reader.yields = tuple([root._replace(tree=Names(patterns)) for root in roots])


def _run_on(use: Use, command: Sequence[Word], trees: Sequence[Word], mark: str) -> None:
    """A program is run on paths below `trees`, which stand for the word `mark`, or at the end."""
    words = list[Word]()
    for word in command:
        words += trees if mark and word.text == mark else [word]
    if not mark or not any(word.text == mark for word in command):
        words += trees if not mark else []
    if words:
        use.run(words)


def _xargs(use: Use, found: Options) -> Sequence[Word]:
    mark, command = next(iter(found.values("-I", "--replace")), ""), found.operands or [Word("echo")]
    names = use.stdin.names if use.stdin is not None else None
    for word in names or () if not found.has("-0", "--null") else ():
        for cwd in use.scope.cwds:
            walk = use.reader.places.walk(use.reader.places.real(word.text, cwd), ALL.keep, foreign=True)
            if use.reader.disturbed or walk.odd or not walk.whole:
                use.unknown(f"may take a name in {word.text[:80]} for several, or for an option")
    if any(mark and mark in word.text and word.text != mark for word in command):
        use.unknown("makes up words from what it is fed")
    _run_on(use, command, [Word("", False, split=True)] if names is None else names, mark)
    return ()


# --- test, printf ---

_BINARY = frozenset(["=", "==", "!=", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef", "-a", "-o"])
_UNARY = frozenset(
    ["-b", "-c", "-d", "-e", "-f", "-g", "-h", "-k", "-L", "-N", "-O", "-G", "-p", "-r", "-s", "-S", "-t", "-u", "-w", "-x", "-z", "-n"]
)


def test(use: Use) -> None:
    use.low("only looks")
    words = [word for word in use.args if word.text != "]" or not word.known]
    for word in words:
        if word.known and word.text.startswith("-") and word.text not in _BINARY | _UNARY and not re.fullmatch(r"-\d+", word.text):
            use.unknown(f"has {word.text[:20]!r}, which may evaluate what it is given")
        if word.split or (word.glob and word.text[0] in "*?["):
            use.unknown("is given what may become an operator")
    if not all(word.known for word in words):
        words = words[1:] if words[0].known and words[0].text == "!" else words
        operator = words[0] if len(words) == 2 else words[1] if len(words) == 3 else Word("-n")
        if len(words) > 3 or not operator.known or operator.text not in (_UNARY if len(words) < 3 else _BINARY):
            use.unknown("is given what may be an operator")


def printf(use: Use) -> None:
    """`printf`, `wait` and `jobs`: some of their options set a variable or run something."""
    use.low("only says something")
    if any(not word.known or word.text.startswith("-") for word in (use.args[:1] if use.name == "printf" else use.args)):
        use.unknown("is given what may be an option that sets a variable")


def _ps(use: Use, found: Options) -> Sequence[Word]:
    if any("e" in word.text and word.text.isalpha() for word in found.operands) and not found.has("-o", "-C", "-u", "-U", "-p"):
        if not re.fullmatch(r"[a-zA-Z]*o", found.operands[0].text):
            use.high("shows the environment of other processes")
    return found.operands


SPECIAL: Mapping[str, Callable[[Use, Options], Sequence[Word]]] = {
    **dict.fromkeys(("grep", "egrep", "fgrep", "rg"), _grep), "sed": _sed, **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk), "jq": _jq, "xargs": _xargs, "ps": _ps,
}  # fmt: skip
