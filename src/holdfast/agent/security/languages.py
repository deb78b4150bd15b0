"""Programs with a language of their own, which may write or run something: find, xargs, grep, sed, awk, jq, test."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.agent.security.use import Options, Use
from holdfast.agent.security.words import Names, Word, listed

# Options of grep that leave lines as they are, so that names of files stay names.
_WHOLE_LINES = listed("-v -i -E -F -P -w -x -e --invert-match --ignore-case --extended-regexp --fixed-strings")


def grep(use: Use, found: Options) -> Sequence[Word]:
    """grep and ripgrep: the files that they search."""
    ripgrep, listing = use.name == "rg", found.has("--files", "--type-list")
    files = found.operands[0 if listing or found.has("-e", "--regexp", "-f", "--file") else 1 :]
    deep = ripgrep or found.has("-r", "-R", "--recursive", "--dereference-recursive") or "recurse" in found.values("-d", "--directories")
    filters = [(name, value) for name, value in found.given if name in ("--include", "--exclude")]
    patterns, without = (tuple([value for name, value in filters if name == f"--{kind}"]) for kind in ("include", "exclude"))
    names = Names(patterns, () if patterns else without)  # of both the last one that fits decides
    if any(re.search(r"[/\\\[]", value) for _, value in filters) or (patterns and filters[0][0] == "--exclude"):
        names = Names()
    if ripgrep:
        names = Names(hidden=found.has("-g", "--glob", "--iglob", "-u", "--unrestricted", "--hidden", "-.", "--no-ignore"))
    if deep and not files:  # also ripgrep with an input: it ignores one that is no pipe and no file, such as /dev/null
        files = [Word(".")]
    use.reads(files, names if deep and not listing else None)
    if found.has("-l", "-L", "--files-with-matches", "--files-without-match", "--files") and not found.has("-H", "-n", "-c", "--json"):
        use.reader.yields = tuple([word._replace(tree=word.tree or names) for word in files])
    elif not files and use.stdin is not None and {name for name, _ in found.given} <= _WHOLE_LINES:
        use.reader.yields = use.stdin.names
    return ()


# --- sed, awk, jq ---

_SED_PLACE = r"(?:[+~]?\d+(?:~\d+)?|\$|/(?:[^/\\\n]|\\[^\n])*/[IM]*)"
_SED_PART = r"(?:(?!\4)[^\\\n]|\\(?:.|\n))*\4"
_SED_COMMAND = re.compile(
    rf"(?:[ \t\n;{{}}]|#[^\n]*(?:\n|\Z)|(?:{_SED_PLACE}[ \t]*(?:,[ \t]*{_SED_PLACE})?)?[ \t!]*(?:{{"
    r"|([aic])(?:[^\\\n]|\\[^\n]|\\\n)*(?:\n|\Z)"
    r"|(?:[dDgGhHnNpPxzF=]|[lqQ][ \t]*\d*|[btT][ \t]*\w*|:[ \t]*\w+"
    rf"|(?:(s)|(y))([/|#,@:!%~_+=]){_SED_PART}{_SED_PART}(?(2)[gpiIMm0-9]*|))[ \t]*(?=[;}}\n#]|\Z)))",
    re.ASCII,
)


def sed(use: Use, found: Options) -> Sequence[Word]:
    """A script of sed may run programs and read and write files: one that is not plainly without that is not proven."""
    scripts, files = found.values("-e", "--expression"), found.operands
    if not found.has("-e", "--expression"):
        scripts, files = [word.text for word in files[:1] if not word.glob and word.tree is None], files[1:]
    text, at = "\n".join(scripts), 0
    while at < len(text) < 20_000 and (match := _SED_COMMAND.match(text, at)) and match.end() > at:
        at = match.end()
    if found.has("-e", "--expression") and not all(re.fullmatch(r"[\w./*?-]+", word.text) for word in files):
        use.unknown("has files with the names of scripts")
    if at < len(text) or not scripts or text.endswith("\\") or any(re.search(r"[/*]", value) for value in found.values("-i", "--in-place")):
        use.unknown("has a script that may write or run something, or keeps what it replaces elsewhere")
    if not found.has("-i", "--in-place"):
        return files
    use.writes(files, "changes")
    return ()


_AWK_RUNS = re.compile(
    r"[@`|]|\b(?:system|getline|close|fflush|ENVIRON|PROCINFO|ARGV|ARGC|SYMTAB|FUNCTAB|nextfile|load|include|func|function)\b"
)


def awk(use: Use, found: Options) -> Sequence[Word]:
    """A program of awk writes with `>` and runs with `|` and some names. A comparison stands before a rule's braces, or in parentheses."""
    program = found.operands[0].text if found.operands and not found.operands[0].glob and found.operands[0].tree is None else "@"
    program = re.sub(r"^/[^/{}\"\\\[]*/", "", program.replace("||", " "))
    _, _, action = program.partition("{")
    action = re.sub(r"(?:if|while) ?\([\w$. ]+>=? ?[\w.]+\)|\$?\w+ ?>= ?\d+", "", action)
    if _AWK_RUNS.search(program) or ">" in action or len(program) > 5000:
        use.unknown("has a program that may run, read or write something")
    return [Word(""), *[word for word in found.operands[1:] if not re.match(r"[A-Za-z_]\w*=", word.text)]]


def jq(use: Use, found: Options) -> Sequence[Word]:
    """A program of jq may read the environment and modules."""
    program = found.operands[0].text if found.operands else ""
    if re.search(r"\$ENV|(?<![.\w$\"])env\b", program):
        use.medium("shows the environment")
    if re.search(r"\b(?:import|include|input_filename|get_search_list)\b|\$__prog", program):
        use.unknown("has a program that reads other files")
    return found.operands


# --- find, xargs ---

_FIND_ALONE = listed(
    "-print -print0 -ls -prune -quit -depth -d -mount -xdev -empty -true -false -readable -writable -executable -noleaf -daystart -a -and -o -or -not ! ( ) -help --help -version --version"
)
_FIND_VALUED = listed(
    "-name -iname -path -ipath -regex -iregex -wholename -iwholename -lname -printf -type -xtype -size -mtime -mmin -atime -amin -ctime -cmin -perm -user -newer -group -maxdepth -mindepth -regextype -newermt"
)


def find(use: Use) -> None:
    """find: what it runs on the files that it finds, and the files that it may find."""
    args, roots, names, exact, actions, index = list(use.args), list[Word](), list[str](), True, list[str](), 0
    use.low("only looks")
    while index < len(args) and (args[index].text in ("-L", "-P", "-H") or not args[index].text.startswith(("-", "(", "!"))):
        roots += [args[index]] if args[index].text not in ("-L", "-P", "-H") else []
        index += 1
    for root in roots:
        use.operand("l", root)
    begin = index
    exact = not {"(", "!", "-not", "-o", "-or"} & {word.text for word in args[begin:]}
    alternatives = [word.text for word in args[begin:] if word.text not in ("(", ")", "-type", "f", "-print", "-print0")]
    if (
        [one for one in alternatives[::3] if one not in ("-name", "-iname")]
        == []
        == [one for one in alternatives[2::3] if one not in ("-o", "-or")]
    ):
        names = [one for one in alternatives[1::3] if not re.search(r"[\[\\]", one)] if len(alternatives) % 3 == 2 else []
        names = names if len(names) == len(alternatives[1::3]) else []
    while index < len(args):
        text, value = args[index].text, args[index + 1].text if index + 1 < len(args) else ""
        index += 2 if text in _FIND_VALUED else 1
        names += [value] if text in ("-name", "-iname") and exact and value not in names and not re.search(r"[\[\\]", value) else []
        trees = [root._replace(tree=Names(tuple(names))) for root in roots or [Word(".")]]
        if text == "-exec" and any(word.text == "-L" for word in args):
            use.unknown("follows links, and runs a program on what it finds")
        if text in ("-exec", "-delete"):
            stop = next((at for at in range(index, len(args)) if args[at].text in (";", "+")), len(args)) if text == "-exec" else index
            command, index = args[index:stop] if text == "-exec" else [Word("rm"), Word("{}")], stop + (text == "-exec")
            if any("{}" in one.text and one.text != "{}" for one in command) or not command:
                use.unknown("makes up words from what it finds")
            use.run([word for one in command for word in (trees if one.text == "{}" else [one])])
        elif text not in _FIND_VALUED and text not in _FIND_ALONE:
            use.unknown(f"has a word {text[:40]} that is not in its table")
        actions += [text] if text in ("-exec", "-delete", "-ls", "-printf") else []
    use.reader.yields = (
        tuple([root._replace(tree=Names(tuple(names))) for root in roots or [Word(".")]])
        if not actions and not any(word.text == "-L" for word in args)
        else None
    )


def xargs(use: Use, found: Options) -> Sequence[Word]:
    """xargs runs a program on what it is fed: names of files, if that is known."""
    mark, command = next(iter(found.values("-I", "--replace")), ""), found.operands or [Word("echo")]
    names = use.stdin.names if use.stdin is not None else None
    if names is not None and not found.has("-0", "--null") and any(use.reader.odd(word, use.scope) for word in names):
        use.unknown("may take a name for several, or for an option")
    if any(mark and mark in word.text and word.text != mark for word in command):
        use.unknown("makes up words from what it is fed")
    fed = [Word("", False, split=True)] if names is None else names
    use.run([word for one in command for word in (fed if mark and one.text == mark else [one])] + ([] if mark else list(fed)))
    return ()


# --- test, printf ---

_BINARY = listed("= == != < > -eq -ne -lt -le -gt -ge -nt -ot -ef")
_UNARY = listed("-b -c -d -e -f -g -h -k -L -N -O -G -p -r -s -S -t -u -w -x -z -n")


def test(use: Use) -> None:
    """`test`, `[` and `[[`: some operators evaluate what they are given, and words that are not known may be operators."""
    words = [word for word in use.args if word.text not in ("]", "]]", "!") or not word.known]
    operators = (_UNARY | _BINARY | {"-a", "-o"}) - (listed("-eq -ne -lt -le -gt -ge < >") if use.name == "[[" else listed(""))
    use.low("only looks")
    if any(
        word.known and (word.text.startswith("-") or word.text == "=~") and word.text not in operators and not word.text[1:].isdecimal()
        for word in words
    ):
        use.unknown("may evaluate what it is given")
    operator = words[0] if len(words) == 2 else words[1] if len(words) == 3 else Word("")
    sure = len(words) < 2 or (operator.known and operator.text in (_UNARY if len(words) == 2 else _BINARY))
    if (not all(word.known for word in words) and not sure) or any(
        word.split or (word.glob and word.text[0] in "*?[") for word in words if use.name != "[["
    ):
        use.unknown("is given what may be an operator")


def ps(use: Use, found: Options) -> Sequence[Word]:
    """ps shows the environment of processes if it is given an e without a dash."""
    first = found.operands[0].text if found.operands else ""
    if first.isalpha() and "e" in first and not found.has("-o", "-C", "-u", "-U", "-p"):
        use.high("shows the environment of other processes")
    return found.operands
