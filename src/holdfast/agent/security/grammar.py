"""The part of a shell's language that can be judged: a strict parser. Whatever else a command has makes it unjudged.

The parser accepts words, quotes, backslash escapes, simple variables, `$(...)`, pipes, `&&`, `||`, `;`, `&`, newlines, comments, redirections,
quoted here-documents, `( )`, `{ }`, `if`, `while`, `until` and `for NAME in WORDS`. It guesses nothing: arithmetic, arrays, `[[ ]]`,
assignments, functions, `case`, process substitution, backquotes and parameter expansions beyond `$NAME` raise `Unjudged`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

LONGEST = 100_000  # characters of a command
MOST_WORDS = 5000
DEEPEST = 12  # substitutions and compound commands within each other

# Everything but printable ASCII, tabs and newlines. Other printable letters are data where they stand in quotes.
_HIDDEN = re.compile(r"[^\t\n\x20-\x7e]")
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,^-]+")
_BARE = re.compile(r"[A-Za-z0-9_./:=@%+,^*?\[\]!{}-](?:[A-Za-z0-9_./:=@%+,^*?\[\]!{}-]|(?<![:=])~)*")
_BLANKS = re.compile(r"(?:[ \t]+(?:\\\n)?)+")
_COMMENT = re.compile(r"#[^\n]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_QUOTED_RUN = re.compile(r"[^\"\\$`]+")
_REDIRECT = re.compile(r"[012]?(?:>>|>\||>&|<<<|<<|>|<)|&>>?")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[|\+?=)")
_DELIMITER = re.compile(r"[ \t]*(?:'([A-Za-z0-9_]+)'|\"([A-Za-z0-9_]+)\"|([A-Za-z0-9_]+))(?=[ \t\n;|&<>)]|$)")
_LOOP_NAME = re.compile(r"[a-z][a-z0-9_]{0,19}")
_SPECIAL_NAMES = re.compile(r".*_proxy|npm_.*|histchars|auto_resume")
# A prefix assignment of these names with a plain value makes no program run or read something else.
HARMLESS_ASSIGNMENT = re.compile(
    r"(?:LC_[A-Z]+|LANG|LANGUAGE|TZ|TERM|CI|NO_COLOR|FORCE_COLOR|CLICOLOR|COLUMNS|LINES|PYTHONDONTWRITEBYTECODE|PYTHONUNBUFFERED|PYTHONHASHSEED|PYTHONUTF8"
    r"|PYTHONIOENCODING|NODE_ENV|RUST_BACKTRACE|RUST_LOG|GIT_TERMINAL_PROMPT|CGO_ENABLED|GOOS|GOARCH|DEBUG|VERBOSE|PYTHONPATH|DJANGO_SETTINGS_MODULE)"
)
_RESERVED = frozenset(["then", "else", "elif", "fi", "do", "done", "case", "esac", "select", "function", "coproc", "in", "[[", "]]", "}"])
_BRACES = 64  # words that the braces of one word may become

TEXT, QUOTED, VARIABLE, QUOTED_VARIABLE, OUTPUT, QUOTED_OUTPUT = range(6)


class Unjudged(Exception):
    """The command has something that the grammar does not know."""


class Part(NamedTuple):
    """A piece of a word: its kind, and its text, the name of its variable, or the script whose output it is."""

    kind: int
    value: Any


Raw = tuple[Part, ...]


class Redirect:
    """A redirection. `text` is the content of a here-document or here-string, None if it is not known."""

    __slots__ = ("operator", "target", "text")

    def __init__(self, operator: str, target: Raw, text: str | None = None) -> None:
        self.operator, self.target, self.text = operator, target, text


class Simple(NamedTuple):
    """One program with its words, and the harmless variables that it is given."""

    variables: list[tuple[str, str]]
    words: list[Raw]
    redirects: list[Redirect]


class Compound(NamedTuple):
    """A `subshell`, `group`, `if`, `loop` or `for`, with the scripts in it in their order."""

    kind: str
    scripts: list[Any]
    redirects: list[Redirect]
    name: str = ""
    words: tuple[Raw, ...] = ()


class Chain(NamedTuple):
    """Pipelines joined by `&&` and `||`: each has the operator before it. `background`: it ends in `&`."""

    pipelines: list[tuple[str, list[Simple | Compound]]]
    background: bool


Script = list[Chain]


def parse(text: str) -> Script:
    """Parse a whole command. Raises `Unjudged`."""
    if len(text) > LONGEST:
        raise Unjudged(f"it has more than {LONGEST:,} characters")
    if reason := hidden(text):
        raise Unjudged(reason)
    parser = _Parser(text)
    script = parser.script(())
    if parser.at < len(text) or parser.pending:
        raise Unjudged("it ends in the middle, or goes on where it should end")
    return script


def literal(raw: Raw) -> str | None:
    """The text of a word that has no variables, substitutions, globs or braces; None for another."""
    if any(part.kind > QUOTED or (part.kind == TEXT and not _PLAIN.fullmatch(part.value) and part.value not in "[]!") for part in raw):
        return None
    return "".join([part.value for part in raw])


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.pending: list[tuple[Redirect, str, bool]] = []  # here-documents whose text begins at the next newline
        self._depth = 0
        self._substitutions = 0
        self._words = 0

    # --- scripts ---

    def script(self, ends: tuple[str, ...]) -> Script:
        """Parse commands up to one of the words or signs in `ends`, which is left; or to the end of the text."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unjudged("it is nested deeper than is read")
        found: Script = []
        while True:
            self._lines()
            if self.at >= len(self.text) or self._next(*ends):
                break
            pipelines = [("", self._pipeline())]
            while operator := self._next("&&", "||"):
                self.at += 2
                self._lines()
                pipelines.append((operator, self._pipeline()))
            after = self.text[self.at : self.at + 1]
            found.append(Chain(pipelines, after == "&"))
            if after in (";", "&"):
                self.at += 1
                if self.text[self.at : self.at + 1] in (";", "&", "|"):
                    raise Unjudged("it has operators that do not go together")
            elif after not in ("\n", "", ")"):
                raise Unjudged(f"it has {after!r} where a command ends")
        self._depth -= 1
        if ends and not found:
            raise Unjudged("it has a part without a command")
        return found

    def _lines(self) -> None:
        """Skip blanks, comments and newlines; take the here-documents that begin after a newline."""
        while True:
            self._blanks()
            if self.text[self.at : self.at + 1] != "\n":
                return
            self.at += 1
            for redirect, end, quoted in self.pending:
                redirect.text = self._document(end, quoted)
            self.pending = []

    def _blanks(self) -> None:
        blanks = _BLANKS.match(self.text, self.at)
        if blanks is not None:
            self.at = blanks.end()
        if self.text[self.at : self.at + 1] == "#":
            if self._substitutions or self.pending or (self.at and self.text[self.at - 1] not in " \t\n"):
                raise Unjudged("it has a # where a comment is not expected")
            comment = _COMMENT.match(self.text, self.at)
            self.at = comment.end() if comment is not None else self.at

    def _next(self, *signs: str) -> str:
        """The first of these that is next: an operator, or a word that ends there."""
        for sign in signs:
            if self.text.startswith(sign, self.at):
                behind = self.text[self.at + len(sign) : self.at + len(sign) + 1]
                if not sign.isalpha() or not behind or behind in " \t\n;&|()<>":
                    return sign
        return ""

    def _pipeline(self) -> list[Simple | Compound]:
        self._blanks()
        while self._next("!", "time") and self.text[self.at + (1 if self.text[self.at] == "!" else 4) :][:1] in (" ", "\t"):
            self.at += 1 if self.text[self.at] == "!" else 4
            self._blanks()
            if self.text.startswith("-", self.at):
                raise Unjudged("it has an option behind a keyword")
        found = [self._command()]
        while self._next("|") and not self._next("||"):
            self.at += 2 if self.text.startswith("|&", self.at) else 1
            self._lines()
            found.append(self._command())
        return found

    def _command(self) -> Simple | Compound:
        self._blanks()
        text = self.text
        if text.startswith("(", self.at):
            if text.startswith("((", self.at):
                raise Unjudged("it has arithmetic")
            self.at += 1
            return self._closed("subshell", [self.script((")",))], ")")
        if self._next("{") and text[self.at + 1 : self.at + 2] in (" ", "\t", "\n"):
            self.at += 1
            return self._closed("group", [self.script(("}",))], "}")
        word = self._next("if", "while", "until", "for")
        if word == "if":
            scripts = list[Script]()
            self.at += 2
            while True:
                scripts.append(self._until("then"))
                scripts.append(self.script(("elif", "else", "fi")))
                if not self._next("elif"):
                    break
                self.at += 4
            if self._next("else"):
                self.at += 4
                scripts.append(self.script(("fi",)))
            return self._closed("if", scripts, "fi")
        if word in ("while", "until"):
            self.at += 5
            return self._closed("loop", [self._until("do"), self.script(("done",))], "done")
        return self._for() if word else self._simple()

    def _until(self, end: str) -> Script:
        found = self.script((end,))
        self._take(end)
        return found

    def _take(self, sign: str) -> None:
        if not self._next(sign):
            raise Unjudged(f"it lacks a {sign!r}")
        self.at += len(sign)

    def _closed(self, kind: str, scripts: list[Script], end: str, name: str = "", words: tuple[Raw, ...] = ()) -> Compound:
        self._take(end)
        found = Compound(kind, scripts, [], name, words)
        while True:
            self._blanks()
            if not self._redirect(found.redirects):
                return found

    def _for(self) -> Compound:
        self.at += 3
        self._blanks()
        name = _LOOP_NAME.match(self.text, self.at)
        if name is None or _SPECIAL_NAMES.fullmatch(name[0]):
            raise Unjudged("it has a loop over a name that may have a meaning of its own")
        self.at = name.end()
        self._blanks()
        self._take("in")
        words = list[Raw]()
        while True:
            self._blanks()
            if self.text[self.at : self.at + 1] in (";", "\n"):
                break
            words.append(self._word())
        if self.text[self.at] == ";":
            self.at += 1
        self._lines()
        self._take("do")
        return self._closed("for", [self.script(("done",))], "done", name[0], tuple(words))

    def _simple(self) -> Simple:
        found = Simple([], [], [])
        while True:
            self._blanks()
            next_ = self.text[self.at : self.at + 1]
            if self._redirect(found.redirects):
                continue
            if not next_ or next_ in "\n;&|)":
                break
            word = self._word()
            if not found.words:
                assigned = _ASSIGNMENT.match(word[0].value) if word and word[0].kind == TEXT else None
                if assigned is not None:
                    value = literal(word)
                    if assigned[2] != "=" or not HARMLESS_ASSIGNMENT.fullmatch(assigned[1]) or value is None:
                        raise Unjudged(f"it sets the variable {assigned[1][:40]}")
                    value = value[assigned.end() :]
                    if not re.fullmatch(r"[A-Za-z0-9._@-]*", value) and assigned[1] != "PYTHONPATH":
                        raise Unjudged(f"it gives the variable {assigned[1]} a value that is not plain")
                    found.variables.append((assigned[1], value))
                    continue
                if len(word) == 1 and word[0].kind == TEXT and word[0].value in _RESERVED:
                    raise Unjudged(f"it has {word[0].value!r}, which is not read")
                if any(part.kind == TEXT and set(part.value) & set("*?{}[]") and part.value != "[" for part in word):
                    raise Unjudged("it has a program whose name is made up while it runs")
            found.words.append(word)
        if not found.words and (found.variables or not found.redirects):
            raise Unjudged("it sets a variable for all that comes later" if found.variables else "it has a part without a command")
        return found

    # --- redirections ---

    def _redirect(self, found: list[Redirect]) -> bool:
        match = _REDIRECT.match(self.text, self.at)
        if match is None:
            return False
        operator = match[0].lstrip("012")
        self.at = match.end()
        if operator == ">&":
            to = re.compile(r"[12](?=[ \t\n;|&)<>]|$)").match(self.text, self.at)
            if to is None:
                raise Unjudged("it redirects to a descriptor that is not known")
            self.at = to.end()
            return True
        if operator == "<<":
            end = _DELIMITER.match(self.text, self.at)
            if end is None or self._substitutions:
                raise Unjudged("it has a here-document that is not read")
            self.at = end.end()
            redirect = Redirect(operator, ())
            self.pending.append((redirect, end[1] or end[2] or end[3], not end[3]))
            found.append(redirect)
            return True
        if self.text[self.at : self.at + 1] in ("(", "&", ">", "<", "|"):
            raise Unjudged("it has a redirection that is not read")
        self._blanks()
        target = self._word()
        found.append(Redirect(operator, target, literal(target) if operator == "<<<" else None))
        return True

    def _document(self, end: str, quoted: bool) -> str:
        """The text of a here-document, whose lines begin here."""
        match = re.compile(rf"^{end}(?=\n|\Z)", re.MULTILINE).search(self.text, self.at)
        if match is None:
            raise Unjudged("it has a here-document without an end")
        found = self.text[self.at : match.start()]
        if not quoted and re.search(r"[$`\\]", found):
            raise Unjudged("it has a here-document with expansions")
        self.at = min(match.end() + 1, len(self.text))
        return found

    # --- words ---

    def _word(self) -> Raw:
        self._words += 1
        if self._words > MOST_WORDS:
            raise Unjudged("it has more words than are read")
        text, begin, parts = self.text, self.at, list[Part]()
        while self.at < len(text):
            bare = _BARE.match(text, self.at)
            if bare is not None:
                parts.append(Part(TEXT, bare[0]))
                self.at = bare.end()
                continue
            letter = text[self.at]
            if letter in " \t\n;&|()<>":
                break
            if letter == "'":
                end = text.find("'", self.at + 1)
                if end < 0:
                    raise Unjudged("it has a quote without an end")
                parts.append(Part(QUOTED, self._data(text[self.at + 1 : end])))
                self.at = end + 1
            elif letter == '"':
                self.at += 1
                parts += self._double()
            elif letter == "\\":
                escaped = text[self.at + 1 : self.at + 2]
                if not escaped or not " " <= escaped <= "~":
                    raise Unjudged("it breaks a word across lines, or escapes what is no letter")
                parts.append(Part(QUOTED, escaped))
                self.at += 2
            elif letter == "$":
                parts.append(self._dollar(False))
            elif letter == "~" and self.at == begin and text[begin + 1 : begin + 2] in ("", "/", " ", "\t", "\n", ";", "&", "|", ")"):
                parts.append(Part(VARIABLE, "~"))
                self.at += 1
            else:
                raise Unjudged(f"it has {ascii(letter)[1:-1]} where that has a meaning of its own")
        if self.at == begin:
            raise Unjudged(f"it has {text[begin : begin + 1]!a} where a word is expected")
        if text[self.at : self.at + 1] in ("<", ">") and parts[0].kind == TEXT and re.fullmatch(r"\d+|\{.*", parts[0].value):
            raise Unjudged("it redirects a descriptor that is not known")
        _check_braces(parts)
        return tuple(parts)

    def _data(self, text: str) -> str:
        if self.pending and "\n" in text:
            raise Unjudged("it has a line break in quotes behind a here-document")
        return text

    def _double(self) -> list[Part]:
        """What stands in double quotes, up to and with the closing one."""
        text, parts, run = self.text, list[Part](), ""
        while True:
            match = _QUOTED_RUN.match(text, self.at)
            if match is not None:
                run += self._data(match[0])
                self.at = match.end()
            letter = text[self.at : self.at + 1]
            if letter == '"':
                self.at += 1
                return [*parts, Part(QUOTED, run)]
            if letter == "\\" and (escaped := text[self.at + 1 : self.at + 2]) and escaped != "\n":
                run += escaped if escaped in '$`"\\' else letter + escaped
                self.at += 2
            elif letter == "$":
                part = self._dollar(True)
                if part.kind == QUOTED:
                    run += part.value
                else:
                    parts += [Part(QUOTED, run), part]
                    run = ""
            else:
                raise Unjudged("it has a quote without an end, or backquotes, or a broken line in quotes")

    def _dollar(self, quoted: bool) -> Part:
        text = self.text
        self.at += 1
        name = _NAME.match(text, self.at) or _BRACED.match(text, self.at)
        if name is not None:
            self.at = name.end()
            return Part(QUOTED_VARIABLE if quoted else VARIABLE, name[0].strip("{}"))
        next_ = text[self.at : self.at + 1]
        if next_ == "?":
            self.at += 1
            return Part(QUOTED_VARIABLE, "?")
        if next_ == "(" and not text.startswith("((", self.at):
            if self.pending:
                raise Unjudged("it has a substitution behind a here-document")
            self.at += 1
            self._substitutions += 1
            script = self.script((")",))
            self._take(")")
            self._substitutions -= 1
            return Part(QUOTED_OUTPUT if quoted else OUTPUT, script)
        if next_ in ((" ", '"', "/", "|", ")", ",", ".", ";", ":", "&", "]", "}", "'", "=", "%") if quoted else ("", " ", "\t", "\n")) or (
            quoted and text.startswith("\\|", self.at)
        ):
            return Part(QUOTED, "$")
        raise Unjudged("it has an expansion that is not read")


def _check_braces(parts: list[Part]) -> None:
    """Raise `Unjudged` for braces that a shell might expand and `expand_braces` does not."""
    if not any(part.kind == TEXT and "{" in part.value for part in parts):
        return
    whole = "".join([part.value for part in parts if part.kind == TEXT])
    if ("," in whole or ".." in whole) and len(parts) > 1:
        raise Unjudged("it has braces together with quotes or expansions")
    if len(parts) == 1:
        expand_braces(whole)


def expand_braces(text: str) -> list[str]:
    """The words that `{a,b}` and `{1..3}` become. Raises `Unjudged` for nested, open, long or other ones."""
    done, todo = list[str](), [text]
    while todo:
        one = todo.pop()
        begin = one.find("{")
        end = one.find("}", begin)
        if begin < 0 or (end == begin + 1 and "{" not in one[end:]):
            done.append(one)
            continue
        inner = one[begin + 1 : end]
        if end < 0 or "{" in inner or len(todo) + len(done) > _BRACES or len(text) > 1000:
            raise Unjudged("it has braces that are not read")
        span = re.fullmatch(r"(0|[1-9]\d{0,3})\.\.(0|[1-9]\d{0,3})", inner)
        if span is not None and abs(int(span[1]) - int(span[2])) < _BRACES:
            first, last = int(span[1]), int(span[2])
            choices = [str(number) for number in range(first, last + (1 if last >= first else -1), 1 if last >= first else -1)]
        elif "," in inner and ".." not in inner:
            choices = inner.split(",")
        elif re.fullmatch(r"[A-Za-z0-9_-]*", inner) and "{" not in one[end:] and "," not in one and ".." not in one:
            done.append(one)  # stash@{0}, {}
            continue
        else:
            raise Unjudged("it has braces that are not read")
        todo += [one[:begin] + choice + one[end + 1 :] for choice in reversed(choices)]
    if not all(done):
        raise Unjudged("it has braces that become an empty word")
    return done


def hidden(text: str) -> str:
    """Why a text may look like another one than it is; "" if it does not."""
    if text.isascii() and text.isprintable():
        return ""
    for letter in _HIDDEN.findall(text):
        if ord(letter) < 0xA0 or not letter.isprintable() or letter.isspace():
            return "it has characters that cannot be seen, or that look like others"
    return ""
