"""The part of a shell's language that can be judged: words, quotes, pipes, `&&`, `||`, `;`,
redirections, here-documents without expansions, and loops over words. All else raises
`UnjudgedCommand`, without an attempt to understand it."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.tools.names import word_set

MAX_CHARACTERS = 100_000
_MAX_TOKENS, _MAX_PARTS, _MAX_DEPTH = 3000, 200, 5

# What a word has in place of the digits of `$?` and `$!`. No command has these characters.
STATUS, JOB = "\1", "\2"

_EXPANSION = (
    r"(?P<home>\$(?:HOME(?![A-Za-z0-9_])|\{HOME\}))|(?P<status>\$\?|\$\{PIPESTATUS\[\d\]\})|(?P<job>\$!)"
    r"|\$(?P<name>[A-Za-z_][A-Za-z0-9_]*)|\$\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)\}"
)
# The pieces of a word, and those of a text in double quotes.
_PIECE = re.compile(
    r"(?P<bare>[A-Za-z0-9_./:=@%+,^*?\[\]!{}-](?:[A-Za-z0-9_./:=@%+,^*?\[\]!{}#-]|(?<![:=])~)*)"
    rf"|'(?P<text>[^']*)'|\\(?P<escaped>[ -~])|{_EXPANSION}|(?P<dollar>\$)(?=[ \t\n]|\Z)"
    r"|(?P<tilde>~)(?=[/ \t\n;&|()<>]|\Z)|(?P<quote>\")"
)
_QUOTED_PIECE = re.compile(
    rf"(?P<text>[^\"\\$`]+)|\\(?P<escaped>[$`\"\\])|(?P<backslash>\\)(?=[^\n$`\"\\])|{_EXPANSION}"
    r"|\$\(cat <<'(?P<mark>\w+)'\n(?P<document>(?s:.*?\n)?)(?P=mark)\n[ \t]*\)"
    r"|(?P<dollar>\$)(?=[ \"/|),.;:&\]}'=%]|\\\|)|(?P<quote>\")"
)
_BLANKS = re.compile(r"(?:[ \t]+(?:\\\n)?)+")
_COMMENT = re.compile(r"(?:(?<=[ \t\n])|\A)#[^\n]*")
_OPERATOR = re.compile(r"&&|\|\||\|&|;;?|[|\n]|&(?!>)")
_REDIRECT = re.compile(r"[012]?(?:>>|>\||>&|<<<|<<|>|<)(?![&<>|(])|&>>?(?![&<>|])")
_DOCUMENT_MARK = re.compile(r"[ \t]*(['\"]?)([A-Za-z0-9_]+)\1(?=[ \t\n;|&<>)])")
_END = re.compile(r"[ \t\n;&|()<>]|\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,^-]+")
_BRACES = re.compile(r"(?:[^{}]|\{[\w-]*\})*", re.ASCII)  # that stand for themselves
_GLOB = re.compile(r"[*?]|\[[^\[\]]*\]")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[|\+?=)")
# Variables with the values for which no program runs or reads something else.
_HARMLESS = re.compile(
    r"(?:LC_[A-Z]+|LANG|LANGUAGE|TZ|TERM|CI|NO_COLOR|FORCE_COLOR|CLICOLOR|COLUMNS|LINES|NODE_ENV"
    r"|RUST_BACKTRACE|RUST_LOG|RUST_TEST_THREADS|CGO_ENABLED|CARGO_(?:TERM_COLOR|INCREMENTAL)"
    r"|PYTHON(?:DONTWRITEBYTECODE|UNBUFFERED|HASHSEED|UTF8|IOENCODING|WARNINGS|FAULTHANDLER)|GOOS"
    r"|GOARCH|GO111MODULE|DEBUG|VERBOSE|ENVIRONMENT"
    r"|LOG_LEVEL|PORT|HOST|FOO|BAR|HUSKY|MPLBACKEND|PYTEST_DISABLE_PLUGIN_AUTOLOAD|MKL_NUM_THREADS"
    r"|PIP_DISABLE_PIP_VERSION_CHECK|GIT_TERMINAL_PROMPT|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS"
    r"|DEBIAN_FRONTEND|TOKENIZERS_PARALLELISM|SKIP_\w+|TEST_\w+|APP_ENV|RAILS_ENV|RACK_ENV"
    r")=[\w.@-]*|NODE_OPTIONS=--max[-_]old[-_]space[-_]size=\d+|(?:GIT_|GH_|MAN)?PAGER=cat"
    r"|(?:GIT_|GIT_SEQUENCE_)?EDITOR=(?:true|:)",
    re.ASCII,
)
# Variables of loops. No program and no shell acts on them.
_OWN_NAME = re.compile(
    r"(?!histchars|auto_resume|\w*_?proxy|(?:npm|pip|cargo|ld|git)_)[a-z][a-z0-9_]*", re.ASCII
)
_RESERVED = word_set(
    "if then else elif fi do done case esac select while until for function coproc in ! time {  }"
    " [[ ]]"
)


class UnjudgedCommand(Exception):
    """The command has something that the grammar does not know."""


class ShellWord(NamedTuple):
    """An argument as a program gets it: a pattern for the names of files if `glob`. `raw` is the
    text that it is written as."""

    text: str
    glob: bool = False
    raw: str = ""


class Redirect(NamedTuple):
    """A redirection to or from `target`, or from a here-document."""

    operator: str
    target: ShellWord


class Command(NamedTuple):
    """A program with its words, or a loop over words with the script of all its turns."""

    words: list[ShellWord]
    redirects: list[Redirect]
    variables: list[tuple[str, str]]
    loop: Script | None


class ShellPipeline(NamedTuple):
    """Commands joined by `|`. `operator` stands before them: `&&`, `||`, or `;` for any other."""

    operator: str
    calls: list[Command]
    background: bool


Script = list[ShellPipeline]


def parse(text: str, home: str) -> Script:
    """Parse a whole command of a user with this home folder. Raises `UnjudgedCommand`."""
    if reason := hidden_problem(text[:MAX_CHARACTERS]):
        raise UnjudgedCommand(reason)
    if len(text) > MAX_CHARACTERS:
        raise UnjudgedCommand(f"it has more than {MAX_CHARACTERS:,} characters")
    return _Parser(text, home).script("")


def hidden_problem(text: str) -> str:
    """Return the reason why a text looks like another one, or ""."""
    odd = "" if text.isprintable() else set(text) - {"\t", "\n"}
    printable = all(map(str.isprintable, odd))
    return "" if printable else "it has characters that cannot be seen, or that look like others"


def is_harmless_variable(name: str, value: str) -> bool:
    """Return whether a variable with this value makes no program run or read something else."""
    return _HARMLESS.fullmatch(f"{name}={value}") is not None


def _join(pieces: list[tuple[str, bool]]) -> ShellWord:
    """Return the word of these texts. Only bare texts may be patterns."""
    if not _GLOB.search("".join([text for text, bare in pieces if bare])):
        return ShellWord("".join([text for text, _ in pieces]))
    escaped = [text if bare else re.sub(r"([*?\[])", r"[\1]", text) for text, bare in pieces]
    return ShellWord("".join(escaped), True)


class _Parser:
    """A parser by descent. `_token` is the next token: an operator ("": the end) or another."""

    def __init__(self, text: str, home: str) -> None:
        self._text, self._home, self._at = text, home, 0
        self._names = dict[str, ShellWord]()  # the variables of the loops around the token
        self._marks = list[re.Match[str]]()  # of here-documents that have not begun
        self._tokens_left, self._depth = _MAX_TOKENS, 0
        self._token = self._next()

    # --- commands ---

    def script(self, end: str) -> Script:
        """Parse pipelines up to this operator or reserved word, which is not taken."""
        pipelines, operator, self._depth = Script(), ";", self._depth + 1
        if self._depth > _MAX_DEPTH:
            raise UnjudgedCommand("it is too deep")
        while self._skip_lines() != end:
            self._take("time")
            calls = [self._command()]
            while self._take("|", "|&"):
                self._skip_lines()
                calls.append(self._command())
            pipelines.append(ShellPipeline(operator, calls, self._token == "&"))
            separator = self._take(";", "&", "\n", "&&", "||")
            operator = separator if separator in ("&&", "||") else ";"
            if not separator and self._keyword() != end:
                raise UnjudgedCommand(f"it has {self._keyword()!r} behind a command")
        if operator != ";" or (end and not pipelines):
            raise UnjudgedCommand("it ends where it should go on")
        self._depth -= 1
        return pipelines

    def _keyword(self) -> str:
        """Return the operator or reserved word that comes next; " " for anything else."""
        token = self._token
        if isinstance(token, ShellWord):
            return token.raw if token.raw in _RESERVED else " "
        return token if isinstance(token, str) else " "

    def _take(self, *words: str) -> str:
        """Take the next token if it is one of these. Return it, else ""."""
        if (word := self._keyword()) not in words or not word:
            return ""
        self._token = self._next()
        return word

    def _skip_lines(self) -> str:
        while self._take("\n"):
            pass
        return self._keyword()

    def _command(self) -> Command:
        command = Command([], [], [], Script() if self._take("for") else None)
        if command.loop is not None:
            self._loop(command.words, command.loop)
        elif self._keyword() != " ":
            raise UnjudgedCommand(f"it has {self._keyword()!r} where a command is expected")
        while not isinstance(self._token, str):
            token = self._token
            if isinstance(token, Redirect):
                command.redirects.append(token)
            elif command.loop is not None:
                raise UnjudgedCommand("it has a word behind a loop")
            elif command.words or not self._assigns(command.variables, token):
                command.words.append(token)
            self._token = self._next()
        if (
            command.loop is None
            and not command.words
            and (command.variables or not command.redirects)
        ):
            raise UnjudgedCommand("it has a part without a command")
        if command.loop is None and any(one.glob or "{" in one.text for one in command.words[:1]):
            raise UnjudgedCommand("it computes the command that it runs")
        return command

    def _loop(self, values: list[ShellWord], turns: Script) -> None:
        """Parse the variable of a loop, its words, and its script once for each of them."""
        name = self._token.raw if isinstance(self._token, ShellWord) else ""
        self._token = self._next()
        if not _OWN_NAME.fullmatch(name) or name in self._names or not self._take("in"):
            raise UnjudgedCommand("it has a loop that sets a variable which is acted upon")
        while isinstance(self._token, ShellWord):
            values.append(self._token)
            self._token = self._next()
        separator = self._take(";", "\n")
        if not (separator and values and self._skip_lines() == "do") or self._marks:
            raise UnjudgedCommand("it has a loop that is not read")
        begin = self._at
        for value in values:
            if not value.glob and not _PLAIN.fullmatch(value.text):
                raise UnjudgedCommand(f"it splits the value of {name}")
            self._at, self._names[name] = begin, value
            self._token = self._next()
            turns += self.script("done")
            if self._marks:
                raise UnjudgedCommand("it has a here-document that begins in a loop")
        del self._names[name]
        self._take("done")

    def _assigns(self, variables: list[tuple[str, str]], token: ShellWord) -> bool:
        """Add the variable that a word sets; return whether it sets one."""
        if (match := _ASSIGNED.match(token.raw)) is None:
            return False
        name, value = match[1], token.text[match.end() :]
        if match[2] != "=" or (name != "PYTHONPATH" and not is_harmless_variable(name, value)):
            raise UnjudgedCommand(f"it sets the variable {name[:40]}")
        variables.append((name, value))
        return True

    # --- tokens ---

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match is not None else self._at
        return match

    def _next(self) -> str | Redirect | ShellWord:
        """Read the token behind the present one."""
        self._tokens_left -= 1
        self._match(_BLANKS)
        self._match(_COMMENT)
        if self._tokens_left < 0:
            raise UnjudgedCommand("it has more words than are read")
        if self._at == len(self._text):
            if self._marks:
                raise UnjudgedCommand("it has a here-document without an end")
            return ""
        if redirect := self._match(_REDIRECT):
            return self._redirect(redirect[0].lstrip("012"))
        if operator := self._match(_OPERATOR):
            while operator[0] == "\n" and self._marks:
                self._skip_document(self._marks.pop(0))
            return operator[0]
        return self._word()

    def _redirect(self, operator: str) -> Redirect:
        if operator == "<<":
            mark = self._match(_DOCUMENT_MARK)
            if mark is None:
                raise UnjudgedCommand("it has a here-document that is not read")
            self._marks.append(mark)
            return Redirect(operator, ShellWord(""))
        self._match(_BLANKS)
        target = self._word()
        if operator == ">&" and target.text not in ("1", "2"):
            raise UnjudgedCommand("it redirects to a descriptor that is not known")
        return Redirect(operator, target)

    def _skip_document(self, mark: re.Match[str]) -> None:
        """Go behind a here-document that begins at the present place."""
        end = re.compile(rf"^{mark[2]}(?:\n|\Z)", re.MULTILINE).search(self._text, self._at)
        if end is None:
            raise UnjudgedCommand("it has a here-document without an end")
        if not mark[1] and re.search(r"[$`\\]", self._text[self._at : end.start()]):
            raise UnjudgedCommand("it has a here-document with expansions")
        self._at = end.end()

    def _word(self) -> ShellWord:
        """Read a word."""
        begin, pieces, quoted = self._at, list[tuple[str, bool]](), False
        while quoted or not _END.match(self._text, self._at):
            piece = self._match(_QUOTED_PIECE if quoted else _PIECE)
            kind = "" if piece is None else str(piece.lastgroup)
            if piece is None or len(pieces) > _MAX_PARTS or (kind == "tilde" and pieces):
                odd = self._text[self._at : self._at + 1]
                raise UnjudgedCommand(f"it has {odd!r} where that has a meaning of its own")
            quoted = quoted != (kind == "quote")
            pieces.append(self._piece(kind, piece))
        raw, behind = self._text[begin : self._at], self._text[self._at : self._at + 1]
        if not raw or (behind in ("<", ">") and re.fullmatch(r"\d+|\{.*", raw)):
            raise UnjudgedCommand("it has no word where one is expected, or a descriptor")
        if not all(_BRACES.fullmatch(text) for text, bare in pieces if bare):
            raise UnjudgedCommand("it has braces that are not read")
        if self._marks and "\n" in raw:
            raise UnjudgedCommand("it has a here-document that begins within a word")
        return _join(pieces)._replace(raw=raw)

    def _piece(self, kind: str, piece: re.Match[str]) -> tuple[str, bool]:
        """Return the text of a piece, and whether that may be a pattern."""
        text = piece[kind]
        if kind in ("status", "job"):
            return (STATUS if kind == "status" else JOB), False
        if kind in ("name", "braced"):
            if (value := self._names.get(text)) is None:
                raise UnjudgedCommand(f"it uses the variable {text[:40]}")
            return value.text, value.glob
        if kind in ("home", "tilde"):
            text = self._home
        if (kind in ("home", "tilde") and not _PLAIN.fullmatch(text)) or (
            kind == "document" and f"\n{piece['mark']}\n" in f"\n{text}"
        ):
            raise UnjudgedCommand("it has a here-document with two ends, or an odd home folder")
        text = {"document": text.rstrip("\n"), "quote": ""}.get(kind, text)
        return text, kind == "bare"
