"""The part of a shell's language that can be judged: a strict parser. Whatever else a command has
makes it unjudged.

The parser accepts words, quotes, backslash escapes, `$NAME`, pipes, `&&`, `||`, `;`, `&`, comments,
newlines, redirections, here-documents without expansions, `( )`, `for NAME in WORDS`, `{a,b}`, some
`$(...)` by their text, and values for names that nothing acts on. It guesses nothing: all else
raises `UnjudgedCommand`.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

MAX_CHARACTERS = 100_000
_MAX_TOKENS, _MAX_PARTS, _MAX_BRACES, _MAX_DEPTH = 3000, 200, 64, 4

_NAME = r"\$(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*|\?)|\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)\})"
# Substitutions that only say something: the date, the user, the folder, a number.
_OUTPUT = (
    r"\$\((?P<output>date(?: -u)?(?: \+[-\w%:./]+| '\+[-\w%:./ ]+')?|whoami|hostname|pwd|nproc) ?\)"
)
# The pieces of a word, and those of a text in double quotes.
_PIECE = re.compile(
    r"(?P<bare>[A-Za-z0-9_./:=@%+,^*?\[\]!{}-](?:[A-Za-z0-9_./:=@%+,^*?\[\]!{}-]|(?<![:=])~)*)"
    rf"|'(?P<text>[^']*)'|\\(?P<escaped>[ -~])|{_NAME}|{_OUTPUT}|(?P<dollar>\$)(?=[ \t\n]|\Z)"
    r"|(?P<home>~)(?=[/ \t\n;&|()<>]|\Z)|(?P<quote>\")",
)
_QUOTED_PIECE = re.compile(
    rf"(?P<text>[^\"\\$`]+)|\\(?P<escaped>[$`\"\\])|(?P<backslash>\\)(?=[^\n$`\"\\])|{_NAME}|{_OUTPUT}"
    r"|\$\(cat <<'(?P<mark>\w+)'\n(?P<document>(?s:.*?\n)?)(?P=mark)\n[ \t]*\)"
    r"|(?P<dollar>\$)(?=[ \"/|),.;:&\]}'=%]|\\\|)|(?P<quote>\")",
)
_BLANKS = re.compile(r"(?:[ \t]+(?:\\\n)?)+")
_COMMENT = re.compile(r"(?:(?<=[ \t\n])|\A)#[^\n]*")
_OPERATOR = re.compile(r"&&|\|\||\|&|[;|\n)]|&(?!>)|\((?!\()")
_REDIRECT = re.compile(r"[012]?(?:>>|>\||>&|<<|>|<)(?![&<>|(])|&>>?(?![&<>|])")
_DOCUMENT_MARK = re.compile(r"[ \t]*(['\"]?)([A-Za-z0-9_]+)\1(?=[ \t\n;|&<>)])")
_END = re.compile(r"[ \t\n;&|()<>]|\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,^-]+|\[\[?|\]\]?|!")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[|\+?=)")
_BRACE = re.compile(r"\{((?:[\w.*/-]*,)+[\w.*/-]*|\d{1,3}\.\.\d{1,3})\}", re.ASCII)
_BRACES = re.compile(rf"(?:[^{{}}]|{_BRACE.pattern})*|(?:[^{{}}]|\{{[\w-]*\}})*", re.ASCII)
# Names that neither a shell nor a program acts on, so that values of any text may be given to them.
_LOCAL = re.compile(
    r"(?!\w*_proxy\b|npm_|histchars\b|auto_resume\b)[a-z][a-z0-9_]{0,19}|[A-Z]|FOO|BAR|BAZ|NAME"
    r"|FILES?|DIR|RESULT|OUTPUT|OUT|COUNT|MSG|TOTAL|NUM|COMMIT|BRANCH|PATTERN|VERSION|SHA|LINE"
    r"|FIRST|LAST|STATUS|BODY|CHANGED|TODAY|SIZE"
)
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
_RESERVED = frozenset(
    "if then else elif fi do done case esac select while until for function coproc in".split()  # noqa: SIM905
)


class UnjudgedCommand(Exception):
    """The command has something that the grammar does not know."""


class WordPart(NamedTuple):
    """A piece of a word: a text, the name of a variable, or an output that is not known."""

    kind: Literal["text", "variable", "output"]
    value: str
    quoted: bool


RawWord = tuple[WordPart, ...]


class Redirect(NamedTuple):
    """A redirection to or from `target`, or from a here-document."""

    operator: str
    target: RawWord = ()


class CommandNode(NamedTuple):
    """A program's words, and the values that variables get. With a `body`, a subshell, or a loop
    that gives its variable each of the words in turn."""

    words: list[RawWord]
    redirects: list[Redirect]
    variables: list[tuple[str, RawWord]]
    body: list[PipelineChain] | None = None


class PipelineChain(NamedTuple):
    """Pipelines joined by `&&` and `||`: each has the operator before it. `background`: the
    chain ends in `&`."""

    pipelines: list[tuple[str, list[CommandNode]]]
    background: bool


Script = list[PipelineChain]
_Token = str | Redirect | RawWord  # a string is an operator, or "" for the end


def parse(text: str) -> Script:
    """Parse a whole command. Raises `UnjudgedCommand`."""
    if len(text) > MAX_CHARACTERS:
        raise UnjudgedCommand(f"it has more than {MAX_CHARACTERS:,} characters")
    if reason := hidden(text):
        raise UnjudgedCommand(reason)
    parser = _Parser(_Lexer(text).tokens())
    script = parser.script()
    if parser.next != "":
        raise UnjudgedCommand("it goes on where it should end")
    return script


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


def literal(raw: RawWord) -> str | None:
    """Return the text of a word without variables, substitutions, globs or braces; None for
    another."""
    for part in raw:
        if part.kind != "text" or not (part.quoted or _PLAIN.fullmatch(part.value)):
            return None
    return "".join([part.value for part in raw])


def expand_braces(text: str) -> list[str]:
    """Return the words that `{a,b}` and `{1..3}` become. Raises `UnjudgedCommand` for nested, open,
    long or other ones."""
    words = [text]
    while len(text) <= 1000 and len(words) <= _MAX_BRACES and (match := _BRACE.search(words[0])):
        first, dots, last = match[1].partition("..")
        choices = match[1].split(",")
        if dots and len(choices) == 1:
            step = 1 if int(last) >= int(first) else -1
            choices = [str(number) for number in range(int(first), int(last) + step, step)]
        words = [_BRACE.sub(choice, one, count=1) for one in words for choice in choices]
    if len(text) > 1000 or len(words) > _MAX_BRACES or "" in words or not _BRACES.fullmatch(text):
        raise UnjudgedCommand("it has braces that are not read")
    return words


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match a pattern at the present place, and go behind what fits."""
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
                operator, target = redirect[0].lstrip("012"), RawWord()
                if operator == "<<":
                    mark = self._match(_DOCUMENT_MARK)
                    if mark is None:
                        raise UnjudgedCommand("it has a here-document that is not read")
                    marks.append(mark)
                else:
                    self._match(_BLANKS)
                    target = self._word()
                if operator == ">&" and literal(target) not in ("1", "2"):
                    raise UnjudgedCommand("it redirects to a descriptor that is not known")
                found.append(Redirect(operator, target))
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

    def _skip_document(self, mark: re.Match[str]) -> None:
        """Go behind a here-document that begins at the present place."""
        end = re.compile(rf"^{mark[2]}(?:\n|\Z)", re.MULTILINE).search(self._text, self._at)
        if end is None:
            raise UnjudgedCommand("it has a here-document without an end")
        if not mark[1] and re.search(r"[$`\\]", self._text[self._at : end.start()]):
            raise UnjudgedCommand("it has a here-document with expansions")
        self._at = end.end()

    def _word(self) -> RawWord:
        parts, quoted = list[WordPart](), False
        while quoted or not _END.match(self._text, self._at):
            piece = self._match(_QUOTED_PIECE if quoted else _PIECE)
            kind = "" if piece is None else piece.lastgroup
            if piece is None or len(parts) > _MAX_PARTS or (kind == "home" and parts):
                odd = self._text[self._at : self._at + 1]
                raise UnjudgedCommand(f"it has {odd!r} where that has a meaning of its own")
            quoted = quoted != (kind == "quote")
            parts.append(self._part(piece, str(kind), quoted))
        bare = "".join([one.value for one in parts if one.kind == "text" and not one.quoted])
        if not parts:
            raise UnjudgedCommand("it has no word where one is expected")
        if "{" in bare and len(parts) == 1:
            expand_braces(bare)
        elif "{" in bare and ("," in bare or ".." in bare):
            raise UnjudgedCommand("it has braces together with quotes or expansions")
        if self._text[self._at : self._at + 1] in ("<", ">") and re.fullmatch(r"\d+|\{.*", bare):
            raise UnjudgedCommand("it redirects a descriptor that is not known")
        return tuple(parts)

    def _part(self, piece: re.Match[str], kind: str, quoted: bool) -> WordPart:
        match kind:
            case "name" | "braced":
                return WordPart("variable", piece[kind], quoted)
            case "home":
                return WordPart("variable", "HOME", False)
            case "output" if piece[kind] == "pwd":
                return WordPart("variable", "PWD", quoted)
            case "output" if piece[kind] == "nproc":
                return WordPart("text", "4", True)
            case "output":
                return WordPart("output", piece[kind], quoted)
            case "quote":
                return WordPart("text", "", True)
            case "document":
                if f"\n{piece['mark']}\n" in f"\n{piece[kind]}":
                    raise UnjudgedCommand("it has a here-document with two ends")
                return WordPart("text", piece[kind].rstrip("\n"), True)
            case _:
                return WordPart("text", piece[kind], kind != "bare")


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = [*tokens, ""]
        self._at = self._depth = 0

    @property
    def next(self) -> _Token:
        """The token at the present place."""
        return self._tokens[self._at]

    def _skip(self, *tokens: str) -> bool:
        """Go behind one of these operators or bare words, if it is next."""
        found = self.next if isinstance(self.next, str) else self._bare(self.next)
        if not found or found not in tokens:
            return False
        self._at += 1
        return True

    def _bare(self, token: _Token) -> str:
        """Return the text of a word without quotes; "" for another token."""
        if isinstance(token, (str, Redirect)) or len(token) != 1 or token[0].quoted:
            return ""
        return token[0].value if token[0].kind == "text" else ""

    def script(self) -> Script:
        """Parse commands up to `done` or `)`, which is left, or to the end."""
        found: Script = []
        while True:
            while self._skip("\n"):
                pass
            if self.next in ("", ")") or self._bare(self.next) == "done":
                return found
            pipelines = [("", self._pipeline())]
            while self.next in ("&&", "||"):
                operator = str(self.next)
                self._at += 1
                pipelines.append((operator, self._pipeline()))
            background = self.next == "&"
            if not self._skip(";", "\n", "&") and self.next not in ("", ")"):
                raise UnjudgedCommand("it goes on where a command ends")
            found.append(PipelineChain(pipelines, background))

    def _pipeline(self) -> list[CommandNode]:
        found = list[CommandNode]()
        while not found or self._skip("|", "|&"):
            while self._skip("\n") or (not found and self._skip("!", "time")):
                pass
            if self._skip("for"):
                found.append(self._loop())
            else:
                found.append(self._compound(")", [], []) if self._skip("(") else self._program())
        return found

    def _loop(self) -> CommandNode:
        name, words = self._bare(self.next), list[RawWord]()
        self._at += 1
        if not _LOCAL.fullmatch(name) or not self._skip("in"):
            raise UnjudgedCommand("it has a loop that is not read")
        while not isinstance(self.next, (str, Redirect)):
            words.append(self.next)
            self._at += 1
        self._skip(";")
        while self._skip("\n"):
            pass
        if not self._skip("do"):
            raise UnjudgedCommand("it has a loop that is not read")
        return self._compound("done", words, [(name, ())])

    def _compound(
        self, end: str, words: list[RawWord], variables: list[tuple[str, RawWord]]
    ) -> CommandNode:
        """Parse the body of a loop or a subshell, and its redirections."""
        self._depth += 1
        body, redirects = self.script() if self._depth <= _MAX_DEPTH else [], list[Redirect]()
        if not body or not self._skip(end):
            raise UnjudgedCommand("it has a part that is not closed, empty, or too deep")
        while isinstance(self.next, Redirect):
            redirects.append(self.next)
            self._at += 1
        self._depth -= 1
        return CommandNode(words, redirects, variables, body)

    def _program(self) -> CommandNode:
        found, exports = CommandNode([], [], []), False
        while not isinstance(token := self.next, str):
            self._at += 1
            if isinstance(token, Redirect):
                found.redirects.append(token)
            elif found.words:
                found.words.append(token)
            elif not found.variables and literal(token) == "export":
                exports = True
            elif not self._assigned(found, token, exports):
                bare = self._bare(token)
                globs = [one for one in token if not one.quoted and set(one.value) & set("*?{}[]")]
                if exports or bare in _RESERVED or (globs and bare not in ("[", "[[")):
                    raise UnjudgedCommand(f"it has {bare!r}, or makes up what it runs or exports")
                found.words.append(token)
        if not (found.words or found.redirects or found.variables):
            raise UnjudgedCommand("it has a part without a command")
        for name, value in found.variables if found.words or exports else ():
            if name != "PYTHONPATH" and not harmless(name, _value(value)):
                raise UnjudgedCommand(f"it gives a program the variable {name[:40]}")
        return found

    def _assigned(self, found: CommandNode, word: RawWord, exports: bool) -> bool:
        """Return whether a word before a program's name gives a variable its value. Raises
        `UnjudgedCommand` for a name that may be acted on."""
        first = word[0]
        match = None if first.quoted or first.kind != "text" else _ASSIGNED.match(first.value)
        if match is None:
            return False
        name, rest = match[1], first.value[match.end() :]
        value = (first._replace(value=rest), *word[1:]) if rest else word[1:]
        if name == "PYTHONPATH":
            # Python takes modules from the former folders in any case.
            filled = [one for one in value if one.value]
            if len(filled) > 1 and filled[-1].value == name and filled[-2].value.endswith(":"):
                value = tuple(filled[:-1])
        elif not (not exports and _LOCAL.fullmatch(name)) and not harmless(name, _value(value)):
            raise UnjudgedCommand(f"it sets the variable {name[:40]}")
        if match[2] != "=":
            raise UnjudgedCommand(f"it sets the variable {name[:40]}")
        found.variables.append((name, value))
        return True


def _value(raw: RawWord) -> str:
    """Return the text of a variable's value; "?", which no harmless variable has, for one with
    expansions."""
    text = literal(raw)
    return "?" if text is None else text
