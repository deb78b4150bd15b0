"""The part of a shell's language that can be judged: a strict parser. Whatever else a command has
makes it unjudged.

The parser accepts words, quotes, backslash escapes, `$HOME`, `$?`, pipes, `&&`, `||`, `;`, `&`,
comments, newlines, redirections, here-documents without expansions, `"$(cat <<'EOF' ...)"`, and
variables before a program that nothing acts on. It guesses nothing: all else raises
`UnjudgedCommand`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.agent.security.paths import word_set

MAX_CHARACTERS = 100_000
_MAX_TOKENS, _MAX_PARTS = 3000, 200

_HOME = r"(?P<home>\$(?:HOME(?![A-Za-z0-9_])|\{HOME\}))|(?P<status>\$\?)"
# The pieces of a word, and those of a text in double quotes.
_PIECE = re.compile(
    r"(?P<bare>[A-Za-z0-9_./:=@%+,^*?\[\]!{}-](?:[A-Za-z0-9_./:=@%+,^*?\[\]!{}-]|(?<![:=])~)*)"
    rf"|'(?P<text>[^']*)'|\\(?P<escaped>[ -~])|{_HOME}|(?P<dollar>\$)(?=[ \t\n]|\Z)"
    r"|(?P<tilde>~)(?=[/ \t\n;&|()<>]|\Z)|(?P<quote>\")"
)
_QUOTED_PIECE = re.compile(
    rf"(?P<text>[^\"\\$`]+)|\\(?P<escaped>[$`\"\\])|(?P<backslash>\\)(?=[^\n$`\"\\])|{_HOME}"
    r"|\$\(cat <<'(?P<mark>\w+)'\n(?P<document>(?s:.*?\n)?)(?P=mark)\n[ \t]*\)"
    r"|(?P<dollar>\$)(?=[ \"/|),.;:&\]}'=%]|\\\|)|(?P<quote>\")"
)
_BLANKS = re.compile(r"(?:[ \t]+(?:\\\n)?)+")
_COMMENT = re.compile(r"(?:(?<=[ \t\n])|\A)#[^\n]*")
_OPERATOR = re.compile(r"&&|\|\||\|&|[;|\n]|&(?!>)")
_REDIRECT = re.compile(r"[012]?(?:>>|>\||>&|<<|>|<)(?![&<>|(])|&>>?(?![&<>|])")
_DOCUMENT_MARK = re.compile(r"[ \t]*(['\"]?)([A-Za-z0-9_]+)\1(?=[ \t\n;|&<>)])")
_END = re.compile(r"[ \t\n;&|()<>]|\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,^-]+")
_BRACES = re.compile(r"(?:[^{}]|\{[\w-]*\})*", re.ASCII)  # braces that stand for themselves
_GLOB = re.compile(r"[*?]|\[.*\]")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[|\+?=)")
# Variables with the values for which no program runs or reads something else.
_HARMLESS = re.compile(
    r"(?:LC_[A-Z]+|LANG|LANGUAGE|TZ|TERM|CI|NO_COLOR|FORCE_COLOR|CLICOLOR|COLUMNS|LINES|NODE_ENV"
    r"|RUST_BACKTRACE|RUST_LOG|RUST_TEST_THREADS|CGO_ENABLED|CARGO_(?:TERM_COLOR|INCREMENTAL)"
    r"|PYTHON(?:DONTWRITEBYTECODE|UNBUFFERED|HASHSEED|UTF8|IOENCODING|WARNINGS|FAULTHANDLER)|GOOS"
    r"|GOARCH|GO111MODULE|DEBUG|VERBOSE|DJANGO_SETTINGS_MODULE|FLASK_APP|FLASK_ENV|ENVIRONMENT"
    r"|LOG_LEVEL|PORT|HOST|FOO|BAR|HUSKY|MPLBACKEND|PYTEST_DISABLE_PLUGIN_AUTOLOAD"
    r"|PIP_DISABLE_PIP_VERSION_CHECK|GIT_TERMINAL_PROMPT|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS"
    r")=[\w.@-]*|NODE_OPTIONS=--max[-_]old[-_]space[-_]size=\d+|(?:GIT_|GH_|MAN)?PAGER=cat"
    r"|(?:GIT_|GIT_SEQUENCE_)?EDITOR=true",
    re.ASCII,
)
_RESERVED = word_set(
    "if then else elif fi do done case esac select while until for function coproc in ! time"
)


class UnjudgedCommand(Exception):
    """The command has something that the grammar does not know."""


class ShellWord(NamedTuple):
    """An argument as a program gets it.

    Args:
        text: The argument; a pattern if `glob`.
        glob: Whether the shell may replace it by the names of files.
        bare: The beginning of the text, as far as it is not quoted.
    """

    text: str
    glob: bool = False
    bare: str = ""


class Redirect(NamedTuple):
    """A redirection to or from `target`, or from a here-document."""

    operator: str
    target: ShellWord = ShellWord("")


class ProgramCall(NamedTuple):
    """A program's words, of which the first is its name, with its redirections and the values of
    the variables that stand before it."""

    words: list[ShellWord]
    redirects: list[Redirect]
    variables: list[tuple[str, str]]


class ShellPipeline(NamedTuple):
    """Programs joined by `|`. `operator` stands before them: `&&`, `||`, or `;` for any other.
    `background`: they end in `&`."""

    operator: str
    calls: list[ProgramCall]
    background: bool


_Token = str | Redirect | ShellWord  # a string is an operator


def parse(text: str, home: str) -> list[ShellPipeline]:
    """Parse a whole command of a user with this home folder. Raises `UnjudgedCommand`."""
    if len(text) > MAX_CHARACTERS:
        raise UnjudgedCommand(f"it has more than {MAX_CHARACTERS:,} characters")
    if reason := hidden(text):
        raise UnjudgedCommand(reason)
    found, operator, negated = list[ShellPipeline](), ";", False
    calls, call = list[ProgramCall](), ProgramCall([], [], [])
    for token in [*_Lexer(text, home).tokens(), "\n"]:
        if isinstance(token, Redirect):
            call.redirects.append(token)
        elif isinstance(token, ShellWord):
            prefix = not calls and not any(call) and token.bare == token.text
            if prefix and token.text in ("!", "time"):
                negated = negated or token.text == "!"
            else:
                _add_word(call, token)
        elif token != "\n" or any(call):
            if not (call.words or (call.redirects and not call.variables)):
                raise UnjudgedCommand("it has a part without a command, or sets a variable")
            calls, call = [*calls, call], ProgramCall([], [], [])
            if token not in ("|", "|&"):
                found.append(ShellPipeline(operator, calls, token == "&"))
                # What follows `!` and `&&` runs where the negated command has failed.
                following = {"&&": "||" if negated else "&&", "||": "||"}
                operator, calls, negated = following.get(token, ";"), [], False
    if calls or operator != ";":
        raise UnjudgedCommand("it ends where it should go on")
    return found


def _add_word(call: ProgramCall, word: ShellWord) -> None:
    """Add a word to a program, or the variable that it sets. Raises `UnjudgedCommand` for a
    variable that may be acted on, and for a name that is made up."""
    if call.words:
        call.words.append(word)
    elif match := _ASSIGNED.match(word.bare):
        name, value = match[1], word.text[match.end() :]
        if match[2] != "=" or not (name == "PYTHONPATH" or harmless(name, value)):
            raise UnjudgedCommand(f"it sets the variable {name[:40]}")
        call.variables.append((name, value))
    elif word.text in _RESERVED or word.glob or set(word.bare) & set("{}"):
        raise UnjudgedCommand(f"it has {word.text[:40]!r}, or makes up what it runs")
    else:
        call.words.append(word)


def hidden(text: str) -> str:
    """Return the reason why a text is not what it looks like; "" if there is none."""
    if text.isascii() and text.isprintable():
        return ""
    if any(not one.isprintable() or one.isspace() for one in set(text) - {"\t", "\n", " "}):
        return "it has characters that cannot be seen, or that look like others"
    return ""


def harmless(name: str, value: str) -> bool:
    """Return whether a variable with this value makes no program run or read something else."""
    return _HARMLESS.fullmatch(f"{name}={value}") is not None


class _Lexer:
    def __init__(self, text: str, home: str) -> None:
        self._text, self._home, self._at = text, home, 0

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match is not None else self._at
        return match

    def tokens(self) -> list[_Token]:
        """Split the text into operators, redirections and words."""
        found, marks = list[_Token](), list[re.Match[str]]()
        while len(found) < _MAX_TOKENS:
            begin = self._at
            self._match(_BLANKS)
            self._match(_COMMENT)
            if self._at == len(self._text):
                break
            if redirect := self._match(_REDIRECT):
                found.append(self._redirect(redirect[0].lstrip("012"), marks))
            elif operator := self._match(_OPERATOR):
                found.append(operator[0])
                while operator[0] == "\n" and marks:
                    self._skip_document(marks.pop(0))
                continue
            else:
                found.append(self._word())
            if marks and "\n" in self._text[begin : self._at]:
                raise UnjudgedCommand("it has a here-document that begins within a word")
        if marks or len(found) >= _MAX_TOKENS:
            raise UnjudgedCommand("it has more words than are read, or an open here-document")
        return found

    def _redirect(self, operator: str, marks: list[re.Match[str]]) -> Redirect:
        if operator == "<<":
            mark = self._match(_DOCUMENT_MARK)
            if mark is None:
                raise UnjudgedCommand("it has a here-document that is not read")
            marks.append(mark)
            return Redirect(operator)
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
        pieces, quoted = list[tuple[str, bool]](), False  # texts, and whether they are bare
        while quoted or not _END.match(self._text, self._at):
            piece = self._match(_QUOTED_PIECE if quoted else _PIECE)
            kind = "" if piece is None else str(piece.lastgroup)
            if piece is None or len(pieces) > _MAX_PARTS or (kind == "tilde" and pieces):
                odd = self._text[self._at : self._at + 1]
                raise UnjudgedCommand(f"it has {odd!r} where that has a meaning of its own")
            quoted = quoted != (kind == "quote")
            pieces.append((self._piece_text(piece, kind), kind in ("bare", "status")))
        bare = "".join([text for text, is_bare in pieces if is_bare])
        if not pieces:
            raise UnjudgedCommand("it has no word where one is expected")
        if not _BRACES.fullmatch(bare):
            raise UnjudgedCommand("it has braces that are not read")
        if self._text[self._at : self._at + 1] in ("<", ">") and re.fullmatch(r"\d+|\{.*", bare):
            raise UnjudgedCommand("it redirects a descriptor that is not known")
        begin = pieces[0][0] if pieces[0][1] else ""
        if not _GLOB.search(bare):
            return ShellWord("".join([text for text, _ in pieces]), False, begin)
        escaped = [
            text if is_bare else re.sub(r"([*?\[])", r"[\1]", text) for text, is_bare in pieces
        ]
        return ShellWord("".join(escaped), True, begin)

    def _piece_text(self, piece: re.Match[str], kind: str) -> str:
        match kind:
            case "home" | "tilde":
                if not _PLAIN.fullmatch(self._home):
                    raise UnjudgedCommand("the home folder is not known, or not a plain name")
                return self._home
            case "status":
                return "*"  # some number: whatever name it may be a part of is looked at
            case "quote":
                return ""
            case "document":
                if f"\n{piece['mark']}\n" in f"\n{piece[kind]}":
                    raise UnjudgedCommand("it has a here-document with two ends")
                return piece[kind].rstrip("\n")
            case _:
                return piece[kind]
