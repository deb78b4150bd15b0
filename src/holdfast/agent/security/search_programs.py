"""Programs that search, sort and transform, and have a language or options of their own that may write or run: grep, jq, sort, sed, awk, find."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.agent.security.declared import declared
from holdfast.agent.security.use import Check, Use
from holdfast.agent.security.words import Word

_GREP = """# -abcEFGHhiIlLnoPqrRsTUuvwxyZz -eABCmdD= -f< --extended-regexp --fixed-strings --basic-regexp --perl-regexp --regexp= --file< --ignore-case --no-ignore-case --word-regexp --line-regexp
    --null-data --no-messages --invert-match --max-count= --byte-offset --line-number --line-buffered --with-filename --no-filename --label= --only-matching --quiet --silent --binary-files= --text
    --directories= --devices= --recursive --dereference-recursive --include= --exclude= --exclude-from< --exclude-dir= --files-without-match --files-with-matches --count --initial-tab --null
    --before-context= --after-context= --context= --color? --colour? --binary --group-separator= --no-group-separator"""
_RG = """# -abcFHhiIlLnNopPqRrsSuUvwxz0 -eABCgmtTjMEd= -f< --after-context= --before-context= --context= --regexp= --file< --glob= --iglob= --type= --type-not= --type-list --files --hidden --no-ignore
    --no-ignore-vcs --no-ignore-parent --ignore-file< --ignore-case --smart-case --case-sensitive --fixed-strings --word-regexp --line-regexp --line-number --no-line-number --count --count-matches
    --files-with-matches --files-without-match --only-matching --invert-match --max-count= --max-depth= --max-columns= --max-filesize= --multiline --multiline-dotall --pcre2 --quiet --replace=
    --sort= --sortr= --stats --text --threads= --trim --unrestricted --vimgrep --with-filename --no-filename --heading --no-heading --json --color= --colors= --column --crlf --debug --encoding= --engine=
    --follow --null --null-data --one-file-system --passthru --pretty --no-messages --no-config --no-require-git --type-add= --context-separator= --search-zip! --pre! --hostname-bin! --pager! --filter!"""


def _grep(use: Use) -> None:
    """grep and those like it: the first operand is what they look for, unless an option gives that."""
    found = declared(use, _RG if use.name in ("rg", "ag", "ack") else _GREP)
    use.low()
    use.not_known(use.args)
    given = found.has("-e", "--regexp", "-f", "--file", "--files", "--type-list")
    deep = found.has("-r", "-R", "--recursive", "--dereference-recursive", "--directories", "-d") or use.name in ("rg", "ag", "ack")
    (use.reads_all if deep else use.reads)(found.operands if given else found.operands[1:])
    if found.has("-r", "-R", "--recursive", "--dereference-recursive") and len(found.operands) == (0 if given else 1):
        use.reads([Word(".")])


_JQ = """-nrjaeCMsScRhVP -L! -f< --null-input --raw-output --raw-output0 --join-output --ascii-output --exit-status --color-output --monochrome-output --slurp --sort-keys --compact-output --raw-input --tab
    --indent= --unbuffered --stream --seq --from-file< --args --jsonargs --arg= --argjson= --rawfile= --slurpfile= --argfile= --prettyPrint --input-format= --output-format= --no-colors --colors --no-doc --unwrapScalar?
    -o= -p= -I="""


def _jq(use: Use) -> None:
    args, taken = list[Word](), 0
    for index, word in enumerate(use.args):
        if taken:
            taken -= 1
            continue
        if re.fullmatch(r"--(?:arg|argj.*|args?f.*|ra.*file|slurpf.*)", word.text) and not word.text.startswith("--args"):
            taken = 2  # a name, and a value or a file
            use.reads(use.args[index + 2 : index + 3] if "file" in word.text or "f" in word.text[5:] else ())
            continue
        args.append(word)
    found = declared(use, _JQ, args=args)
    if use.name == "yq" and found.unsure:
        use.unknown("is given what is not known beforehand")
    text = next((word.text for word in found.operands), "")
    program = re.sub(r'"(?:[^"\\(]|\\[^(])*"', '""', text)
    if re.search(r"\$ENV|(?<![.\w$])env\b|\bstrenv\b|\benvsubst\b|\$__prog", program):
        use.medium("shows the environment, which may hold secrets")
    if re.search(r"\bload|\bimport\b|\binclude\b|\beval\b|\bsystem\b|\bget_search_list\b|\binput_filename\b|\bsplitDoc\b", program):
        use.unknown("has a program that reads other files")
    use.low()
    use.not_known(use.args)
    if found.has("-f", "--from-file"):
        use.medium("goes by a program in a file")
        use.reads(found.operands)
    use.reads(found.operands[1:])


_SORT = """# -bdfghiMnrRVcCmsuz -ktS= -T> -o> --output> --compress-program! --files0-from@ --temporary-directory> --batch-size= --parallel= --buffer-size= --key= --field-separator= --random-source<
    --check? --merge --reverse --unique --stable --zero-terminated --debug --ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort --ignore-nonprinting --month-sort
    --numeric-sort --random-sort --sort= --version-sort --human-numeric-sort"""


def _sort(use: Use) -> None:
    found = declared(use, _SORT)
    use.low()
    use.not_known(use.args)
    use.reads(found.operands)


def _shuf(use: Use) -> None:
    found = declared(use, "-erz -in= -o> --echo --input-range= --head-count= --output> --random-source< --repeat --zero-terminated")
    use.low()
    use.not_known(use.args)
    use.reads([] if found.has("-e", "--echo") else found.operands)


def _uniq(use: Use) -> None:
    found = declared(
        use,
        """# -cdDiuz -fsw= --count --repeated --all-repeated? --skip-fields= --group? --ignore-case --skip-chars= --unique
        --zero-terminated --check-chars=""",
    )
    if found.unsure:
        use.unknown("may write to a path that is not known beforehand")
    use.low()
    use.reads(found.operands[:1])
    use.writes(found.operands[1:])


_TREE = """-aAdfiCDFghilnNpqrsStuUvxXJQc -LPIHT= -o> --noreport --dirsfirst --filesfirst --prune --du --si --gitignore --charset= --filelimit= --sort? --timefmt= --inodes --device --nolinks --matchdirs
    --ignore-case --info --metafirst --hintro< --houtro<"""


def _tree(use: Use) -> None:
    found = declared(use, _TREE)
    use.low()
    use.not_known(use.args)
    use.reads(found.operands)


def _xxd(use: Use) -> None:
    found = declared(use, "-abCdeEiprRuhv -cglosn= --help")
    use.low()
    use.not_known(use.args)
    use.reads(found.operands[:1])
    use.writes(found.operands[1:])


# --- sed, awk ---

_SED_REGEX = re.compile(r"/(?:[^/\\\n]|\\.)*/[IM]*")
_SED_ADDRESS = re.compile(r"(?:\d+(?:~\d+)?|\$)")


def _sed_is_simple(script: str) -> bool:
    """Whether a script of sed neither runs nor writes nor reads another file: what is not plainly so is not."""
    at, end = 0, len(script)
    while at < end:
        while at < end and script[at] in " \t\n;{}!":
            at += 1
        if at >= end:
            return True
        address = _SED_ADDRESS.match(script, at) or _SED_REGEX.match(script, at)
        if address is not None:
            at = address.end()
            while at < end and script[at] in " \t":
                at += 1
            if at < end and script[at] == ",":
                at += 1
                second = re.compile(r"[ \t]*(?:[+~]?\d+|\$)").match(script, at) or _SED_REGEX.match(script, at)
                if second is None:
                    return False
                at = second.end()
            while at < end and script[at] in " \t!{":
                at += 1
            if at >= end:
                return False
        letter = script[at]
        at += 1
        if letter in "pdPDqQnNgGhHxlz=#":
            if letter == "#":
                at = script.find("\n", at) if "\n" in script[at:] else end
                continue
            rest = re.compile(r"[ \t]*\d*[ \t]*(?=[;\n}]|$)").match(script, at)
            if rest is None:
                return False
            at = rest.end()
        elif letter in "aic":
            return True  # text to the end, or to its line's end
        elif letter in "sy":
            if at >= end or script[at] in "\\\n":
                return False
            mark = re.escape(script[at])
            body = re.compile(
                rf"{mark}(?:[^\\\n{mark}]|\\.|\n)*?{mark}(?:[^\\{mark}]|\\.|\\\n)*?{mark}([gpiIMm0-9]*)[ \t]*(?=[;\n}}]|$)", re.DOTALL
            ).match(script, at)
            if body is None:
                return False
            at = body.end()
        else:
            return False
    return True


_SED = """-nErszub -el= -f! -i? --expression= --file! --in-place? --line-length= --quiet --silent --regexp-extended --separate --unbuffered --null-data --posix --debug --follow-symlinks --sandbox
    --binary --zero-terminated"""


def _sed(use: Use) -> None:
    found = declared(use, _SED)
    scripts = found.values("-e", "--expression")
    files = found.operands
    if not scripts and not found.has("-f", "--file"):
        scripts, files = files[:1], files[1:]
    if found.unsure or any(not word.known for word in scripts):
        use.unknown("is given a script that is not known beforehand")
    if not found.has("--sandbox") and not all(len(word.text) < 5000 and _sed_is_simple(word.text) for word in scripts):
        use.unknown("has a script that may write or run something")
    use.low()
    if found.has("-i", "--in-place"):
        if any("/" in word.text or "*" in word.text or not word.known for word in found.values("-i", "--in-place")):
            use.high("keeps what it replaces in another folder")
        use.writes(files, "changes")
        use.medium("changes files in their place")
    else:
        use.reads(files)


_AWK = """-bcCghIMnNOPrsStVk -F= -v= --field-separator= --assign= --sandbox --posix --traditional --re-interval --characters-as-bytes --non-decimal-data --optimize --no-optimize --lint? --lint-old --bignum
    --use-lc-numeric --csv --copyright --gen-pot --dump-variables?>! --profile?>! --pretty-print?>! -d?>! -o?>! -p?>!"""
_AWK_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<comment>#[^\n]*)|(?P<name>[A-Za-z_]\w*)|(?P<number>\d[\w.]*)|(?P<blank>[ \t\r]+|\\\n)|(?P<other>>=|\|\||.)',
    re.DOTALL,
)
_AWK_REGEX = re.compile(r"/(?:[^/\\\n\[\]]|\\.|\[[^/\\\n\[\]]+\])*/")
_AWK_RUNS = frozenset(
    ("system", "getline", "close", "fflush", "ENVIRON", "PROCINFO", "ARGV", "SYMTAB", "FUNCTAB", "ARGC", "nextfile", "load", "include")
)
_AWK_BEFORE_REGEX = frozenset("(,{;!&|~=\n}")


def _awk_is_simple(program: str) -> bool:
    """Whether a program of awk neither runs, writes nor reads anything else. A `>` counts as a comparison where it stands in parentheses, or in the
    pattern before a rule's braces; what cannot be told apart is not simple."""
    at, end, braces, round_, before = 0, len(program), 0, 0, "\n"
    while at < end:
        if program[at] == "/":
            if before in _AWK_BEFORE_REGEX:
                regex = _AWK_REGEX.match(program, at)
                if regex is None:
                    return False
                at, before = regex.end(), "0"
                continue
            if before != "0" and before != "]":
                return False
        match = _AWK_TOKEN.match(program, at)
        if match is None:
            return False
        at = match.end()
        kind, text = match.lastgroup, match[0]
        if kind in ("blank", "comment"):
            continue
        if kind == "name":
            if text in _AWK_RUNS:
                return False
            before = "word" if text in ("print", "printf", "return", "in", "case", "do", "else", "getline", "delete", "exit") else "0"
            continue
        if kind in ("string", "number"):
            before = "0"
            continue
        if text in ('"', "@", "|", "\\", "`"):
            return False
        braces += (text == "{") - (text == "}")
        round_ += (text in "([") - (text in ")]")
        if text == ">" and round_ <= 0 and braces > 0:
            return False
        before = text[-1]
    return braces == 0 and round_ == 0


def _awk(use: Use) -> None:
    found = declared(use, _AWK, stop=True)
    if found.unsure:
        use.unknown("is given what is not known beforehand")
    program = found.operands[:1]
    if not program or not program[0].known:
        use.unknown("is given a program that is not known beforehand")
        return
    if len(program[0].text) > 5000 or not _awk_is_simple(program[0].text):
        use.high("has a program that may run, read or write something")
    use.low()
    use.reads([word for word in found.operands[1:] if not (word.known and re.match(r"[A-Za-z_]\w*=", word.text))])


# --- find ---

_FIND_RUNS = ("-exec", "-execdir", "-ok", "-okdir")
_FIND_ALONE = frozenset((
    "-print", "-print0", "-ls", "-prune", "-quit", "-depth", "-d", "-mount", "-xdev", "-follow", "-empty", "-true", "-false", "-readable", "-writable", "-executable", "-nouser", "-nogroup", "-noleaf",
    "-daystart", "-ignore_readdir_race", "-noignore_readdir_race", "-warn", "-nowarn", "-a", "-and", "-o", "-or", "-not", "!", "(", ")", ",", "-help", "--help", "-version", "--version",
))  # fmt: skip
_FIND_VALUED = frozenset((
    "-name", "-iname", "-path", "-ipath", "-regex", "-iregex", "-wholename", "-iwholename", "-lname", "-ilname", "-printf", "-type", "-xtype", "-size", "-mtime", "-mmin", "-atime", "-amin", "-ctime", "-cmin",
    "-perm", "-user", "-newer", "-anewer", "-cnewer", "-used", "-uid", "-gid", "-maxdepth", "-mindepth", "-group", "-fstype", "-inum", "-samefile", "-links", "-regextype", "-context",
))  # fmt: skip


def _find(use: Use) -> None:
    args = list(use.args)
    use.low()
    index, roots = 0, list[Word]()
    while index < len(args) and args[index].known and re.fullmatch(r"-[HLP]|-O\d|-D.*", args[index].text):
        index += 2 if args[index].text == "-D" else 1
    while index < len(args) and not (args[index].text[:1] in ("-", "(", "!") and args[index].known):
        if not args[index].known and not args[index].text:
            use.unknown("is given what is not known beforehand, which may be -delete or -exec")
        roots.append(args[index])
        index += 1
    use.reads(roots)
    while index < len(args):
        word, text = args[index], args[index].text
        index += 1
        if not word.known and (not text or text.startswith("-")) and not word.quoted:
            use.unknown("is given what is not known beforehand, which may be -delete or -exec")
        if text in _FIND_RUNS:
            command = list[Word]()
            while index < len(args) and args[index].text not in (";", "+"):
                command.append(args[index])
                index += 1
            index += 1
            begins = roots[0].text if len(roots) == 1 and roots[0].known else "" if roots else "."
            use.run([Word(begins.rstrip("/") + "/", False) if "{}" in one.text and place else one for place, one in enumerate(command)])
            if command and "{}" in command[0].text:
                use.high("runs what it finds")
        elif text == "-delete":
            use.high("deletes what it finds")
        elif text.startswith(("-fprint", "-fls")):
            use.writes(args[index : index + 1])
            index += 2 if text == "-fprintf" else 1
        elif text == "-files0-from":
            use.unknown("searches where a file says")
        elif text in _FIND_VALUED or re.fullmatch(r"-newer[aBcm][aBcmt]", text):
            index += 1
        elif text not in _FIND_ALONE:
            use.reads([word])
            use.unknown(f"has a word {text[:40]} that is not known here")


_FD = """# -HIsiFaLp0guqlh1u -deEtTScoj= -x! --hidden --no-ignore --case-sensitive --ignore-case --fixed-strings --absolute-path --list-details --follow --full-path --print0 --max-depth= --min-depth=
    --exact-depth= --exclude= --type= --extension= --size= --changed-within= --changed-before= --owner= --color= --threads= --max-results= --glob --regex --quiet --unrestricted --no-ignore-vcs
    --exec! --exec-batch! -X! --strip-cwd-prefix --one-file-system --prune --and= --base-directory< --search-path<"""


def _fd(use: Use) -> None:
    found = declared(use, _FD)
    use.low()
    use.not_known(use.args)
    use.reads(found.operands[1:])


def table() -> Mapping[str, Check]:
    """What is known of these programs, by name."""
    found: dict[str, Check] = dict.fromkeys(("grep", "egrep", "fgrep", "zgrep", "rg", "ag", "ack"), _grep)
    found.update(dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk))
    found.update(dict.fromkeys(("jq", "yq"), _jq))
    found.update(dict.fromkeys(("fd", "fdfind"), _fd))
    found.update({"sort": _sort, "shuf": _shuf, "uniq": _uniq, "tree": _tree, "xxd": _xxd, "sed": _sed, "gsed": _sed, "find": _find})
    return found
