"""The part of a shell's language that can be judged: a strict parser. Whatever else a command has makes it unjudged.

The parser accepts words, quotes, backslash escapes, `$NAME`, `$(...)`, `<(...)`, pipes, `&&`, `||`, `;`, `&`, newlines, comments, redirections,
here-documents without expansions, `( )`, `{ }`, `if`, `while`, `until`, `for NAME in WORDS`, and values for names that nothing acts on. It guesses
nothing: arithmetic, arrays, functions, `case`, backquotes and other expansions raise `Unjudged`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

LONGEST = 100_000  # characters of a command
_MOST_WORDS, _MOST_PARTS, _MOST_DOCUMENTS, _MOST_BRACES, _DEEPEST = 1500, 200, 20, 64, 12

_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,^-]+|\[\[?|\]\]?|!")
_BARE = re.compile(r"[A-Za-z0-9_./:=@%+,^*?\[\]!{}-](?:[A-Za-z0-9_./:=@%+,^*?\[\]!{}-]|(?<![:=])~)*")
_BLANKS = re.compile(r"(?:[ \t]+(?:\\\n)?)+")
_PREFIX = re.compile(r"(?:!|time)[ \t]+(?!-)")
_NUMBERS = re.compile(r"\(\([0-9+*%/ -]+\)\)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\}|\?")
_QUOTED_RUN = re.compile(r"[^\"\\$`]+")
_REDIRECT = re.compile(r"[012]?(?:>>|>\||>&|<<<|<<|>|<)(?![&<>|])|&>>?(?![&<>|])")
_DOCUMENT = re.compile(r"[ \t]*(['\"]?)([A-Za-z0-9_]+)\1(?=[ \t\n;|&<>)])((?:[^'\"\\$`#(\n]|'[^'\n]*'|\"[^\"\\$`\n]*\")*)\n")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[|\+?=)")
_BRACE = re.compile(r"\{((?:[\w.*/-]*,)+[\w.*/-]*|\d{1,3}\.\.\d{1,3})\}", re.ASCII)
_BRACES = re.compile(rf"(?:[^{{}}]|{_BRACE.pattern})*|(?:[^{{}}]|\{{[\w-]*\}})*", re.ASCII)
_END = re.compile(r"[ \t\n;&|()<>]|\Z")
# Names that neither a shell nor a program acts on, so that values of any text may be given to them.
LOCAL = re.compile(
    r"(?!.*_proxy$|npm_|histchars$|auto_resume$)[a-z][a-z0-9_]{0,19}|[A-Z]|FOO|BAR|BAZ|NAME|FILE|FILES|DIR|RESULT|OUTPUT|OUT|COUNT|MSG|TOTAL|NUM|COMMIT|BRANCH|PATTERN"
)
# Names whose values make no program run or read something else, as long as the value is plain.
HARMLESS = re.compile(
    r"LC_[A-Z]+|LANG|LANGUAGE|TZ|TERM|CI|NO_COLOR|FORCE_COLOR|CLICOLOR|COLUMNS|LINES|PYTHON(?:DONTWRITEBYTECODE|UNBUFFERED|HASHSEED|UTF8|IOENCODING|PATH)|NODE_ENV|RUST_BACKTRACE|RUST_LOG"
    r"|CGO_ENABLED|GOOS|GOARCH|DEBUG|VERBOSE|DJANGO_SETTINGS_MODULE|FLASK_APP|FLASK_ENV|ENVIRONMENT|LOG_LEVEL|PORT|HOST|FOO|BAR"
)
_RESERVED = frozenset(("then", "else", "elif", "fi", "do", "done", "esac", "select", "function", "coproc", "in", "}", "case"))

TEXT, QUOTED, VARIABLE, QUOTED_VARIABLE, OUTPUT, QUOTED_OUTPUT, FILE = range(7)


class Unjudged(Exception):
    """The command has something that the grammar does not know."""


class Part(NamedTuple):
    """A piece of a word: its kind, and its text, the name of its variable, or the script whose output it is (`FILE`: as a file)."""

    kind: int
    value: Any


Raw = tuple[Part, ...]


class Redirect(NamedTuple):
    """A redirection: to or from `target`, or from a here-document with this `text`."""

    operator: str
    target: Raw = ()
    text: str | None = None


class Command(NamedTuple):
    """A `program` with its words, or a `subshell`, `group`, `if`, `loop` or `for` with the scripts in it; `variables` are given values."""

    kind: str
    scripts: list[Any]
    redirects: list[Redirect]
    words: list[Raw]
    variables: list[tuple[str, Raw]]


class Chain(NamedTuple):
    """Pipelines joined by `&&` and `||`: each has the operator before it. `background`: the chain ends in `&`."""

    pipelines: list[tuple[str, list[Command]]]
    background: bool


Script = list[Chain]


def parse(text: str) -> Script:
    """Parse a whole command. Raises `Unjudged`."""
    if len(text) > LONGEST or hidden(text):
        raise Unjudged(hidden(text[:LONGEST]) or f"it has more than {LONGEST:,} characters")
    parser = _Parser(text)
    script = parser.script()
    if parser.at < len(parser.text):
        raise Unjudged("it goes on where it should end")
    return script


def hidden(text: str) -> str:
    """The reason why a text is not what it looks like; "" if there is none."""
    if text.isascii() and text.isprintable():
        return ""
    odd = [letter for letter in set(text) if letter not in "\t\n" and (not letter.isprintable() or (letter.isspace() and letter != " "))]
    return "it has characters that cannot be seen, or that look like others" if odd else ""


def literal(raw: Raw) -> str | None:
    """The text of a word that has no variables, substitutions, globs or braces; None for another."""
    if any(part.kind > QUOTED or (part.kind == TEXT and not _PLAIN.fullmatch(part.value)) for part in raw):
        return None
    return "".join([part.value for part in raw])


def braces(text: str) -> list[str]:
    """The words that `{a,b}` and `{1..3}` become. Raises `Unjudged` for nested, open, long or other ones."""
    if not _BRACES.fullmatch(text) or len(text) > 1000:
        raise Unjudged("it has braces that are not read")
    words = [text]
    while match := _BRACE.search(words[0]):
        first, dots, last = match[1].partition("..")
        choices = match[1].split(",")
        if dots and len(choices) == 1:
            step = 1 if int(last) >= int(first) else -1
            choices = [str(number) for number in range(int(first), int(last) + step, step)]
        words = [_BRACE.sub(choice, one, count=1) for one in words for choice in choices]
        if len(words) > _MOST_BRACES:
            raise Unjudged("it has braces that are not read")
    if "" in words:
        raise Unjudged("it has braces that become an empty word")
    return words


def _known(part: Part) -> Part:
    """A substitution whose output is known: a here-document, the present folder, a number."""
    chain = part.value[0] if len(part.value) == 1 else Chain([], False)
    program = chain.pipelines[0][1][0] if len(chain.pipelines) == 1 and len(chain.pipelines[0][1]) == 1 else None
    words = [literal(raw) for raw in program.words] if program is not None else []
    texts = [redirect.text for redirect in program.redirects] if program is not None else []
    if words == ["cat"] and len(texts) == 1 and texts[0] is not None and part.kind == QUOTED_OUTPUT:
        return Part(QUOTED, texts[0].rstrip("\n"))
    if texts or words not in (["pwd"], ["nproc"]):
        return part
    return Part(QUOTED, "4") if words == ["nproc"] else Part(QUOTED_VARIABLE if part.kind == QUOTED_OUTPUT else VARIABLE, "PWD")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self._depth = self._substitutions = self._words = self._documents = 0

    def script(self, *ends: str) -> Script:
        """Parse commands up to one of the words or signs in `ends`, which is left; or to the end of the text."""
        self._depth += 1
        found: Script = []
        self._blanks(lines=True)
        while self.at < len(self.text) and not self._next(*ends) and self._depth <= _DEEPEST:
            pipelines = [("", self._pipeline())]
            while operator := self._next("&&", "||"):
                self._skip(operator, lines=True)
                pipelines.append((operator, self._pipeline()))
            after = self.text[self.at : self.at + 1]
            if after not in ("", "\n", ";", "&", ")") or self.text[self.at : self.at + 2] in (";;", ";&", "&;"):
                raise Unjudged(f"it has {after!r} where a command ends")
            found.append(Chain(pipelines, after == "&"))
            self._skip(after if after in (";", "&") else "", lines=True)
        self._depth -= 1
        if ends and not found:
            raise Unjudged("it has a part without a command, or nests more than is read")
        return found

    def _blanks(self, lines: bool = False) -> None:
        """Skip blanks and comments, and newlines where they may stand."""
        while True:
            blanks = _BLANKS.match(self.text, self.at)
            self.at = blanks.end() if blanks is not None else self.at
            if self.text.startswith("#", self.at):
                if self._substitutions or (self.at and self.text[self.at - 1] not in " \t\n"):
                    raise Unjudged("it has a # where a comment is not expected")
                end = self.text.find("\n", self.at)
                self.at = end if end >= 0 else len(self.text)
            if not lines or not self.text.startswith("\n", self.at):
                return
            self.at += 1

    def _next(self, *signs: str) -> str:
        """The first of these that is next: an operator, or a word that ends there."""
        for sign in signs:
            if self.text.startswith(sign, self.at) and (not sign[0].isalpha() or _END.match(self.text, self.at + len(sign))):
                return sign
        return ""

    def _skip(self, sign: str, lines: bool = False) -> None:
        if sign and not self._next(sign):
            raise Unjudged(f"it lacks a {sign!r}")
        self.at += len(sign)
        self._blanks(lines)

    def _pipeline(self) -> list[Command]:
        while prefix := _PREFIX.match(self.text, self.at):
            self.at = prefix.end()
        found = [self._command()]
        while self._next("|") and not self._next("||"):
            self._skip("|&" if self._next("|&") else "|", lines=True)
            found.append(self._command())
        return found

    def _command(self) -> Command:
        sign = self._next("((", "(", "{ ", "{\n", "if", "while", "until", "for").strip()
        if not sign or sign == "((":
            return self._program()
        self._skip(sign)
        word = ""
        kind, end, name, words, scripts = "loop", "done", "", list[Raw](), list[Script]()
        if sign in ("(", "{"):
            kind, end = ("subshell", ")") if sign == "(" else ("group", "}")
            scripts = [self.script(end)]
        elif sign == "if":
            kind, end = "if", "fi"
            while word != "fi":
                if word != "else":
                    scripts.append(self.script("then"))
                    self._skip("then")
                scripts.append(self.script("elif", "else", "fi"))
                word = self._next(*(("fi",) if word == "else" else ("elif", "else", "fi")))  # pyright: ignore[reportUnnecessaryComparison]: it changes in the loop
                self._skip(word or "fi")
        else:
            if sign == "for":
                kind, match = "for", _VARIABLE.match(self.text, self.at)
                if match is None or not LOCAL.fullmatch(match[0]):
                    raise Unjudged("it has a loop over a name that may have a meaning of its own")
                name = match[0]
                self._skip(name)
                self._skip("in")
                while not self._next(";", "\n"):
                    words.append(self._word())
                    self._blanks()
                self._skip(";" if self._next(";") else "", lines=True)
            else:
                scripts = [self.script("do")]
            self._skip("do")
            scripts.append(self.script("done"))
        if end != "fi":
            self._skip(end)
        found = Command(kind, scripts, [], words, [(name, ())] if name else [])
        while self._redirect(found.redirects):
            self._blanks()
        return found

    def _program(self) -> Command:
        found = Command("program", [], [], [], [])
        while True:
            self._blanks()
            if self._redirect(found.redirects):
                continue
            if _END.match(self.text, self.at) and not self.text.startswith(("<(", "("), self.at):
                break
            word = self._word()
            if not found.words and not self._assigned(found, word):
                first = word[0].value if len(word) == 1 and word[0].kind == TEXT else ""
                if first in _RESERVED or (
                    first not in ("[", "[[") and any(part.kind == TEXT and set(part.value) & set("*?{}[]") for part in word)
                ):
                    raise Unjudged(f"it has {first!r}, which is not read, or makes up what it runs")
                found.words.append(word)
            elif found.words:
                found.words.append(word)
        if not found.words and not found.redirects and not found.variables:
            raise Unjudged("it has a part without a command")
        if found.words and any(not HARMLESS.fullmatch(name) for name, _ in found.variables):
            raise Unjudged(f"it gives a program the variable {found.variables[0][0][:40]}")
        return found

    def _assigned(self, found: Command, word: Raw) -> bool:
        """Whether a word before a program's name gives a variable its value. Raises `Unjudged` for a name that may be acted on."""
        match = _ASSIGNED.match(word[0].value) if word and word[0].kind == TEXT else None
        if match is None:
            return False
        value = (Part(TEXT, word[0].value[match.end() :]), *word[1:]) if match.end() < len(word[0].value) else word[1:]
        text = literal(value)
        plain = text is not None and re.fullmatch(r"[\w./:-]*" if match[1] == "PYTHONPATH" else r"[\w.@-]*", text, re.ASCII)
        if match[2] != "=" or not (plain if HARMLESS.fullmatch(match[1]) else LOCAL.fullmatch(match[1])):
            raise Unjudged(f"it sets the variable {match[1][:40]}")
        found.variables.append((match[1], value))
        return True

    def _redirect(self, found: list[Redirect]) -> bool:
        match = _REDIRECT.match(self.text, self.at)
        if match is None or self.text.startswith("<(", self.at):
            return False
        operator = match[0].lstrip("012")
        self.at = match.end()
        if operator == ">&":
            if not self._next("1", "2") or not _END.match(self.text, self.at + 1):
                raise Unjudged("it redirects to a descriptor that is not known")
            self.at += 1
        elif operator == "<<":
            found.append(Redirect(operator, (), self._document()))
        else:
            self._blanks()
            target = self._word()
            found.append(Redirect(operator, target, literal(target) if operator == "<<<" else None))
        return True

    def _document(self) -> str:
        """Cut a here-document out of the text, and return it."""
        head = _DOCUMENT.match(self.text, self.at)
        end = re.compile(rf"^{head[2]}(?:\n|\Z)", re.MULTILINE).search(self.text, head.end()) if head is not None else None
        self._documents += 1
        if head is None or end is None or (self._substitutions and not head[1]) or self._documents > _MOST_DOCUMENTS:
            raise Unjudged("it has a here-document that is not read")
        found = self.text[head.end() : end.start()]
        if not head[1] and re.search(r"[$`\\]", found):
            raise Unjudged("it has a here-document with expansions")
        self.at = head.start(3)
        self.text = self.text[: head.end()] + self.text[end.end() :]
        return found

    # --- words ---

    def _word(self) -> Raw:
        self._words += 1
        text, begin, parts = self.text, self.at, list[Part]()
        while not _END.match(text, self.at) or (text.startswith("<(", self.at) and self.at == begin):
            if len(parts) > _MOST_PARTS:
                raise Unjudged("it has a word of more parts than are read")
            bare = _BARE.match(text, self.at)
            letter, behind = text[self.at], text[self.at + 1 : self.at + 2]
            if bare is not None:
                parts.append(Part(TEXT, bare[0]))
                self.at = bare.end()
            elif letter == "'" and (end := text.find("'", self.at + 1)) > 0:
                parts.append(Part(QUOTED, text[self.at + 1 : end]))
                self.at = end + 1
            elif letter == '"':
                parts += self._double()
            elif letter == "\\" and behind and " " <= behind <= "~":
                parts.append(Part(QUOTED, behind))
                self.at += 2
            elif letter == "$":
                parts.append(self._dollar(False))
            elif letter == "<":
                parts.append(Part(FILE, self._substitution(2)))
                break
            elif letter == "~" and self.at == begin and (behind == "/" or _END.match(text, self.at + 1)):
                parts.append(Part(VARIABLE, "HOME"))
                self.at += 1
            else:
                raise Unjudged(f"it has {ascii(letter)[1:-1]} where that has a meaning of its own")
        whole = "".join([part.value for part in parts if part.kind == TEXT]) if parts else ""
        if not parts or self._words > _MOST_WORDS:
            raise Unjudged("it has no word where one is expected, or more than are read")
        if "{" in whole and (len(parts) > 1 and ("," in whole or ".." in whole)):
            raise Unjudged("it has braces together with quotes or expansions")
        if "{" in whole and len(parts) == 1:
            braces(whole)
        if (parts[-1].kind == FILE and not _END.match(text, self.at)) or self.text.startswith("<(", self.at):
            raise Unjudged("it has a substitution within a word")
        if self.text[self.at : self.at + 1] in ("<", ">") and re.fullmatch(r"\d+|\{.*", whole):
            raise Unjudged("it redirects a descriptor that is not known")
        return tuple(parts)

    def _double(self) -> list[Part]:
        """The parts in double quotes; the closing quote is skipped."""
        parts, run = list[Part](), ""
        self.at += 1
        while True:
            match = _QUOTED_RUN.match(self.text, self.at)
            run += match[0] if match is not None else ""
            self.at = match.end() if match is not None else self.at
            letter, behind = self.text[self.at : self.at + 1], self.text[self.at + 1 : self.at + 2]
            if letter == '"':
                self.at += 1
                return [*parts, Part(QUOTED, run)]
            if letter == "\\" and behind not in ("", "\n"):
                run += behind if behind in '$`"\\' else letter + behind
                self.at += 2
            elif letter == "$":
                part = self._dollar(True)
                if part.kind == QUOTED:
                    run += part.value
                else:
                    parts, run = [*parts, Part(QUOTED, run), part], ""
            else:
                raise Unjudged("it has a quote without an end, or backquotes, or a broken line in quotes")

    def _dollar(self, quoted: bool) -> Part:
        self.at += 1
        behind = self.text[self.at : self.at + 1]
        for pattern in (_VARIABLE, _NUMBERS):
            if match := pattern.match(self.text, self.at):
                self.at = match.end()
                return Part(
                    QUOTED_VARIABLE if quoted or pattern is _NUMBERS else VARIABLE, match[0].strip("{}") if pattern is _VARIABLE else "?"
                )
        if behind == "(" and not self.text.startswith("((", self.at):
            return _known(Part(QUOTED_OUTPUT if quoted else OUTPUT, self._substitution(1)))
        if behind in (set(" \"/|),.;:&]}'=%") if quoted else ("", " ", "\t", "\n")) or (quoted and self.text.startswith("\\|", self.at)):
            return Part(QUOTED, "$")
        raise Unjudged("it has an expansion that is not read")

    def _substitution(self, length: int) -> Script:
        self.at += length
        self._substitutions += 1
        script = self.script(")")
        self.at += 1
        self._substitutions -= 1
        if self.text[self.at - 1 : self.at] != ")":
            raise Unjudged("it has a substitution without an end")
        return script
