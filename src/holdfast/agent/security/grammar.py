"""The part of a shell's language that can be judged: a strict parser, which guesses nothing. All
else raises `UnjudgedCommand`: arithmetic, arrays, functions, `case`, here-documents with
expansions, and assignments of names that bash or programs act on."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.agent.security.paths import word_set

MAX_CHARACTERS = 100_000
_MAX_TOKENS, _MAX_PARTS, _MAX_BRACES, _MAX_DEPTH = 3000, 200, 64, 12

# What a word has in place of texts that are not known beforehand. No command has these characters.
ANYTHING, STATUS, JOB = "\0", "\1", "\2"
_UNKNOWN_TEXTS = {"status": STATUS, "job": JOB, "quote": ""}

_EXPANSION = (
    r"(?P<home>\$(?:HOME(?![A-Za-z0-9_])|\{HOME\}))|(?P<status>\$\?)|(?P<job>\$!)"
    r"|\$(?P<name>[A-Za-z_][A-Za-z0-9_]*)|\$\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)\}"
)
_SCRIPT = r"(?P<script>\$\((?!\())"
# The pieces of a word, and those of a text in double quotes.
_PIECE = re.compile(
    r"(?P<bare>[A-Za-z0-9_./:=@%+,^*?\[\]!{}-](?:[A-Za-z0-9_./:=@%+,^*?\[\]!{}#-]|(?<![:=])~)*)"
    rf"|'(?P<text>[^']*)'|\\(?P<escaped>[ -~])|{_EXPANSION}|{_SCRIPT}|(?P<dollar>\$)(?=[ \t\n]|\Z)"
    r"|(?P<tilde>~)(?=[/ \t\n;&|()<>]|\Z)|(?P<quote>\")"
)
_QUOTED_PIECE = re.compile(
    rf"(?P<text>[^\"\\$`]+)|\\(?P<escaped>[$`\"\\])|(?P<backslash>\\)(?=[^\n$`\"\\])|{_EXPANSION}"
    r"|\$\(cat <<'(?P<mark>\w+)'\n(?P<document>(?s:.*?\n)?)(?P=mark)\n[ \t]*\)"
    rf"|{_SCRIPT}|(?P<dollar>\$)(?=[ \"/|),.;:&\]}}'=%]|\\\|)|(?P<quote>\")"
)
_BLANKS = re.compile(r"(?:[ \t]+(?:\\\n)?)+")
_COMMENT = re.compile(r"(?:(?<=[ \t\n])|\A)#[^\n]*")
_OPERATOR = re.compile(r"&&|\|\||\|&|;;?|[|\n)]|&(?!>)|\((?!\()")
_REDIRECT = re.compile(r"[012]?(?:>>|>\||>&|<<<|<<|>|<)(?![&<>|(])|&>>?(?![&<>|])")
_DOCUMENT_MARK = re.compile(r"[ \t]*(['\"]?)([A-Za-z0-9_]+)\1(?=[ \t\n;|&<>)])")
_END = re.compile(r"[ \t\n;&|()<>]|\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,^-]+")
# A word of plain letters, or in single quotes on one line.
_SIMPLE = re.compile(r"[ \t]*(?:([A-Za-z0-9_./:=@%+,^-]+)|'([^'\n]*)')(?=[ \t\n;&|)]|\Z)")
_BRACES = re.compile(r"(?:[^{}]|\{[\w-]*\})*", re.ASCII)  # braces that stand for themselves
_BRACE_LIST = re.compile(
    r"\{((?:[\w./*+-]*,)+[\w./*+-]*|(?:0|[1-9]\d{0,2})\.\.(?:0|[1-9]\d{0,2}))\}", re.ASCII
)
_GLOB = re.compile(r"[*?]|\[.*\]")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[|\+?=)")
# Variables with the values for which no program runs or reads something else.
_HARMLESS = re.compile(
    r"(?:LC_[A-Z]+|LANG|LANGUAGE|TZ|TERM|CI|NO_COLOR|FORCE_COLOR|CLICOLOR|COLUMNS|LINES|NODE_ENV"
    r"|RUST_BACKTRACE|RUST_LOG|RUST_TEST_THREADS|CGO_ENABLED|CARGO_(?:TERM_COLOR|INCREMENTAL)"
    r"|PYTHON(?:DONTWRITEBYTECODE|UNBUFFERED|HASHSEED|UTF8|IOENCODING|WARNINGS|FAULTHANDLER)|GOOS"
    r"|GOARCH|GO111MODULE|DEBUG|VERBOSE|DJANGO_SETTINGS_MODULE|FLASK_APP|FLASK_ENV|ENVIRONMENT"
    r"|LOG_LEVEL|PORT|HOST|FOO|BAR|HUSKY|MPLBACKEND|PYTEST_DISABLE_PLUGIN_AUTOLOAD|MKL_NUM_THREADS"
    r"|PIP_DISABLE_PIP_VERSION_CHECK|GIT_TERMINAL_PROMPT|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS"
    r"|DEBIAN_FRONTEND|TOKENIZERS_PARALLELISM|SKIP_\w+|TEST_\w+|APP_ENV|RAILS_ENV|RACK_ENV"
    r")=[\w.@-]*|NODE_OPTIONS=--max[-_]old[-_]space[-_]size=\d+|(?:GIT_|GH_|MAN)?PAGER=cat"
    r"|(?:GIT_|GIT_SEQUENCE_)?EDITOR=(?:true|:)",
    re.ASCII,
)
# Variables that a command may set for its own later words. No program and no shell acts on them.
_OWN_NAME = re.compile(
    r"(?!histchars|auto_resume|\w*_?proxy|(?:npm|pip|cargo|ld|git)_)[a-z][a-z0-9_]*|[A-Z]"
    r"|\w*[A-Z]_PID|PID\d?|DIR|FILES?|OUT|OUTPUT|RESULT|SRC|DST|NAME|COUNT|TOTAL|TARGET|URL|VERSION"
    r"|STATUS|CODE",
    re.ASCII,
)
_RESERVED = word_set(
    "if then else elif fi do done case esac select while until for function coproc in ! time {  }"
    " [["
)


class UnjudgedCommand(Exception):
    """The command has something that the grammar does not know."""


class ShellWord(NamedTuple):
    """An argument as a program gets it: a pattern, or any words (`ANYTHING`), if `glob`. `bare` is
    the beginning of the text, as far as it is not quoted."""

    text: str
    glob: bool = False
    bare: str = ""


class ShellTemplate(NamedTuple):
    """A word with variables or commands in it: pieces of a kind of `_PIECE`, each with its text or
    script, and whether it is quoted."""

    pieces: list[tuple[str, str | Script, bool]]


Word = ShellWord | ShellTemplate


class Redirect(NamedTuple):
    """A redirection to or from `target`, or from a here-document."""

    operator: str
    target: Word = ShellWord("")


class ProgramCall(NamedTuple):
    """A program's words, its redirections, and the variables that are set before it."""

    words: list[Word]
    redirects: list[Redirect]
    variables: list[tuple[str, Word]]


class Compound(NamedTuple):
    """`if`, `while`, `until`, `for`, `{` or `(` with its scripts in their order, its redirections,
    and the variable and the words of a loop."""

    kind: str
    scripts: list[Script]
    redirects: list[Redirect]
    variable: str = ""
    words: Sequence[Word] = ()


class ShellPipeline(NamedTuple):
    """Commands joined by `|`. `operator` stands before them: `&&`, `||`, or `;` for any other."""

    operator: str
    calls: list[ProgramCall | Compound]
    background: bool


Script = list[ShellPipeline]


def parse(text: str, home: str) -> Script:
    """Parse a whole command of a user with this home folder. Raises `UnjudgedCommand`."""
    if reason := hidden(text[:MAX_CHARACTERS]):
        raise UnjudgedCommand(reason)
    if len(text) > MAX_CHARACTERS:
        raise UnjudgedCommand(f"it has more than {MAX_CHARACTERS:,} characters")
    return _Parser(text, home).script("")


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


def is_plain(text: str) -> bool:
    """Return whether a text means itself wherever it stands."""
    return _PLAIN.fullmatch(text) is not None


def joined(pieces: Sequence[tuple[str, bool]], begin: str) -> ShellWord:
    """Return the word of these texts, of which those that are bare may be patterns."""
    if not _GLOB.search("".join([text for text, bare in pieces if bare])):
        return ShellWord("".join([text for text, _ in pieces]), False, begin)
    escaped = [text if bare else re.sub(r"([*?\[])", r"[\1]", text) for text, bare in pieces]
    return ShellWord("".join(escaped), True, begin)


class _Parser:
    """A parser by descent. `_token` is the next token that no rule has taken: an operator ("" at
    the end), a redirection, or a word."""

    def __init__(self, text: str, home: str) -> None:
        self._text, self._home, self._at = text, home, 0
        self._more = list[Word]()  # words behind the token, of the same braces
        self._marks = list[re.Match[str]]()  # of here-documents that have not begun
        self._left, self._depth = _MAX_TOKENS, 0
        self._token: str | Redirect | Word = ""
        self._token = self._next()

    # --- commands ---

    def script(self, *ends: str) -> Script:
        """Parse pipelines up to one of these operators or reserved words, which is not taken."""
        found, operator, self._depth = Script(), ";", self._depth + 1
        if self._depth > _MAX_DEPTH:
            raise UnjudgedCommand("it is too deep")
        while True:
            self._skip("\n")
            if self._keyword() in ends:
                break
            negated, calls = False, list[ProgramCall | Compound]()
            while word := self._take("!", "time"):
                negated = negated or word == "!"
            while not calls or self._take("|", "|&"):
                self._skip("\n" if calls else "")
                calls.append(self._command())
            found.append(ShellPipeline(operator, calls, self._token == "&"))
            separator = self._take(";", "&", "\n", "&&", "||")
            # What follows `!` and `&&` runs where the negated command has failed.
            operator = {"&&": "||" if negated else "&&", "||": "||"}.get(separator, ";")
            if not separator and self._token not in ends:
                raise UnjudgedCommand(f"it has {self._keyword()!r} behind a command")
        if operator != ";" or (not found and ends != ("",)):
            raise UnjudgedCommand("it ends where it should go on")
        self._depth -= 1
        return found

    def _keyword(self) -> str:
        """Return the operator or reserved word that comes next; " " for anything else."""
        token = self._token
        if isinstance(token, ShellWord):
            return token.text if token.bare == token.text in _RESERVED else " "
        return token if isinstance(token, str) else " "

    def _take(self, *words: str) -> str:
        """Take the next token if it is one of these; return it, or "" if it is none."""
        if (word := self._keyword()) not in words or not word:
            return ""
        self._token = self._next()
        return word

    def _skip(self, word: str) -> None:
        while self._take(word):
            pass

    def _expect(self, *words: str) -> str:
        if not (word := self._take(*words)):
            raise UnjudgedCommand(f"it lacks {words[0]!r}")
        return word

    def _command(self) -> ProgramCall | Compound:
        kind, scripts, variable, words = self._keyword(), list[Script](), "", list[Word]()
        if not self._take("(", "{", "if", "while", "until", "for"):
            return self._call()
        if kind in ("(", "{"):
            end = ")" if kind == "(" else "}"
            scripts = [self.script(end)]
            self._expect(end)
        elif kind == "if":
            word = "if"
            while word in ("if", "elif"):
                scripts.append(self.script("then"))
                self._expect("then")
                scripts.append(self.script("elif", "else", "fi"))
                word = self._expect("elif", "else", "fi")
            if word == "else":
                scripts.append(self.script("fi"))
                self._expect("fi")
        else:
            if kind == "for":
                variable, words = self._loop()
            else:
                scripts = [self.script("do")]
            self._expect("do")
            scripts.append(self.script("done"))
            self._expect("done")
        found = Compound(kind, scripts, [], variable, words)
        while isinstance(self._token, Redirect):
            found.redirects.append(self._token)
            self._token = self._next()
        return found

    def _loop(self) -> tuple[str, list[Word]]:
        """Parse the variable of a loop and its words."""
        name, words = self._token, list[Word]()
        if not isinstance(name, ShellWord) or not _OWN_NAME.fullmatch(name.text) or not name.bare:
            raise UnjudgedCommand("it has a loop that sets a variable which is acted upon")
        self._token = self._next()
        self._expect("in")
        while not isinstance(self._token, str | Redirect):
            words.append(self._token)
            self._token = self._next()
        self._expect(";", "\n")
        self._skip("\n")
        return name.text, words

    def _call(self) -> ProgramCall:
        found = ProgramCall([], [], [])
        while not isinstance(self._token, str):
            token = self._token
            if isinstance(token, Redirect):
                found.redirects.append(token)
            elif found.words or not self._assigns(found, token):
                found.words.append(token)
            self._token = self._next()
        for name, value in found.variables:
            text = value.text if isinstance(value, ShellWord) and not value.glob else "$"
            known = harmless(name, text) or (name == "PYTHONPATH" and text != "$")
            if not (known if found.words else harmless(name, text) or _OWN_NAME.fullmatch(name)):
                raise UnjudgedCommand(f"it sets the variable {name[:40]}")
        if not found.words:
            if bool(found.redirects) == bool(found.variables):
                raise UnjudgedCommand("it has a part without a command")
            return found
        name = found.words[0]
        if not isinstance(name, ShellWord) or name.glob or set(name.bare) & set("{}"):
            raise UnjudgedCommand("it makes up what it runs")
        if name.text in _RESERVED and (name.text != "[[" or found.redirects or found.variables):
            raise UnjudgedCommand(f"it has {name.text!r} where that has another meaning")
        return found

    def _assigns(self, call: ProgramCall, word: Word) -> bool:
        """Add the variable that a word sets to a call; return whether it sets one."""
        kind, first, _ = ("bare", word.bare, 0) if isinstance(word, ShellWord) else word.pieces[0]
        match = _ASSIGNED.match(first) if kind == "bare" and isinstance(first, str) else None
        if match is None:
            return False
        patterned = isinstance(word, ShellWord) and word.glob and word.bare != word.text
        if match[2] != "=" or self._more or patterned:
            raise UnjudgedCommand(f"it sets the variable {match[1][:40]}")
        if isinstance(word, ShellWord):
            value = ShellWord(word.text[match.end() :], word.glob)
        else:
            value = ShellTemplate([("bare", first[match.end() :], False), *word.pieces[1:]])
        call.variables.append((match[1], value))
        return True

    # --- tokens ---

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match is not None else self._at
        return match

    def _next(self) -> str | Redirect | Word:
        """Read the token behind the present one."""
        if self._more:
            return self._more.pop(0)
        begin, self._left = self._at, self._left - 1
        if simple := _SIMPLE.match(self._text, begin):  # most words
            self._at, text = simple.end(), simple[1]
            return ShellWord(text or simple[2], False, text or "")
        self._match(_BLANKS)
        if (self._match(_COMMENT) and self._depth > 1) or self._left < 0:
            raise UnjudgedCommand("it has more words than are read, or a comment within a command")
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
        first, *self._more = self._words()
        if self._marks and "\n" in self._text[begin : self._at]:
            raise UnjudgedCommand("it has a here-document that begins within a word")
        return first

    def _redirect(self, operator: str) -> Redirect:
        if operator == "<<":
            mark = self._match(_DOCUMENT_MARK)
            if mark is None:
                raise UnjudgedCommand("it has a here-document that is not read")
            self._marks.append(mark)
            return Redirect(operator)
        self._match(_BLANKS)
        target, *more = self._words()
        text = target.text if isinstance(target, ShellWord) else ""
        if more or (operator == ">&" and text not in ("1", "2")):
            raise UnjudgedCommand("it redirects to a descriptor that is not known")
        return Redirect(operator, target)

    def _skip_document(self, mark: re.Match[str]) -> None:
        """Go behind a here-document that begins at the present place."""
        end = re.compile(rf"^{mark[2]}(?:\n|\Z)", re.MULTILINE).search(self._text, self._at)
        if end is None or (self._depth > 1 and end[0][-1:] != "\n"):
            raise UnjudgedCommand("it has a here-document without an end")
        if not mark[1] and re.search(r"[$`\\]", self._text[self._at : end.start()]):
            raise UnjudgedCommand("it has a here-document with expansions")
        self._at = end.end()

    def _inner(self) -> Script:
        """Parse a script in brackets that have been opened, and go behind the closing one."""
        if self._marks:
            raise UnjudgedCommand("it has a command within a here-document")
        outer, self._more, self._depth = (self._token, self._more), [], self._depth + 1
        self._token = self._next() if self._depth <= _MAX_DEPTH else ""
        found = self.script(")")
        if self._marks:
            raise UnjudgedCommand("it has a here-document without an end")
        self._depth, (self._token, self._more) = self._depth - 1, outer
        return found

    def _words(self) -> list[Word]:
        """Read a word; it is several if it has braces."""
        if self._text.startswith("<(", self._at):
            self._at += 2
            return [ShellTemplate([("reads", self._inner(), False)])]
        pieces, quoted, dynamic = list[tuple[str, str | Script, bool]](), False, False
        while quoted or not _END.match(self._text, self._at):
            piece = self._match(_QUOTED_PIECE if quoted else _PIECE)
            kind = "" if piece is None else str(piece.lastgroup)
            if piece is None or len(pieces) > _MAX_PARTS or (kind == "tilde" and pieces):
                odd = self._text[self._at : self._at + 1]
                raise UnjudgedCommand(f"it has {odd!r} where that has a meaning of its own")
            quoted = quoted != (kind == "quote")
            dynamic = dynamic or kind in ("name", "braced", "script")
            value = _UNKNOWN_TEXTS.get(kind, piece[kind])
            if kind in ("home", "tilde"):
                value = self._home
            elif kind == "document":
                value = value.rstrip("\n")
            if (value is self._home and not is_plain(value)) or (
                kind == "document" and f"\n{piece['mark']}\n" in f"\n{piece[kind]}"
            ):
                raise UnjudgedCommand("it has a here-document with two ends, or an odd home folder")
            pieces.append((kind, self._inner() if kind == "script" else value, quoted))
        bare = "".join([str(value) for kind, value, _ in pieces if kind == "bare"])
        descriptor = self._text[self._at : self._at + 1] in ("<", ">")
        if not pieces or (descriptor and re.fullmatch(r"\d+|\{.*", bare)):
            raise UnjudgedCommand("it has no word where one is expected, or a descriptor")
        several = set("{}") & set(bare) and (len(pieces) > 1 or len(bare) > 1)
        found = _expanded(pieces) if several else [pieces]
        if dynamic:
            return [ShellTemplate(one) for one in found]
        return [
            joined(
                [(str(value), kind == "bare") for kind, value, _ in one],
                str(one[0][1]) if one[0][0] == "bare" else "",
            )
            for one in found
        ]


def _expanded(
    pieces: Sequence[tuple[str, str | Script, bool]],
) -> list[list[tuple[str, str | Script, bool]]]:
    """Return the words that the braces of a word make of it."""
    choices, count = list[list[tuple[str, str | Script, bool]]](), 1
    for kind, value, quoted in pieces:
        parts = _BRACE_LIST.split(value) if kind == "bare" and isinstance(value, str) else [value]
        for index, part in enumerate(parts):
            texts: Sequence[str | Script] = [part]
            if index % 2 and isinstance(part, str):
                first, dots, last = part.partition("..")
                texts = part.split(",")
                if dots and "," not in part:
                    step = 1 if int(last) >= int(first) else -1
                    texts = [str(one) for one in range(int(first), int(last) + step, step)]
            elif kind == "bare" and isinstance(part, str) and not _BRACES.fullmatch(part):
                raise UnjudgedCommand("it has braces that are not read")
            count *= len(texts)
            if count > _MAX_BRACES:
                raise UnjudgedCommand("it has more words in braces than are looked at")
            choices.append([(kind, text, quoted) for text in texts])
    return [list(one) for one in itertools.product(*choices)]
