"""The part of a shell's language that can be judged: a strict parser, which guesses nothing. All
else raises `UnjudgedCommand`: arithmetic, arrays, functions, `case`, here-documents with
expansions, and assignments of names that bash or programs act on."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.agent.security.paths import word_set

MAX_CHARACTERS = 100_000
_MAX_TOKENS, _MAX_PARTS, _MAX_DEPTH = 3000, 200, 12

# What a word has in place of texts that are not known beforehand. No command has these characters.
ANYTHING, STATUS, JOB = "\0", "\1", "\2"
_UNKNOWN_TEXTS = {"status": STATUS, "job": JOB, "quote": ""}

_EXPANSION = (
    r"(?P<home>\$(?:HOME(?![A-Za-z0-9_])|\{HOME\}))|(?P<status>\$\?|\$\{PIPESTATUS\[\d\]\})|(?P<job>\$!)"
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
# A word of plain letters, or in single quotes on one line: most words.
_SIMPLE = re.compile(r"[ \t]*(?:([A-Za-z0-9_./:=@%+,^-]+)|'([^'\n]*)')(?=[ \t\n;&|)]|\Z)")
_BRACES = re.compile(r"[{}]|(?:[^{}]|\{[\w-]*\})*", re.ASCII)  # that stand for themselves
_BRACED = re.compile(
    r"([\w./=*+-]*)\{(?:((?:[\w./*+-]*,)+[\w./*+-]*)|(0|[1-9]\d?)\.\.(0|[1-9]\d?))\}([\w./*+-]*)"
    r"(?=[ \t\n;&|)]|\Z)",
    re.ASCII,
)
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
# Variables that a command may set for its own later words. No program and no shell acts on them.
_OWN_NAME = re.compile(
    r"(?!histchars|auto_resume|\w*_?proxy|(?:npm|pip|cargo|ld|git)_)[a-z][a-z0-9_]*|[A-Z]"
    r"|\w*[A-Z]_PID|PID\d?|DIR|BASE|ROOT|REPO|BRANCH|FILES?|OUT|OUTPUT|RESULT|SRC|DST|NAME|COUNT|TOTAL|TARGET|URL|VERSION"
    r"|STATUS|CODE",
    re.ASCII,
)
_RESERVED = word_set(
    "if then else elif fi do done case esac select while until for function coproc in ! time {  }"
    " [["
)


# Words that begin a command with scripts in it, and those behind each script; the last ends it.
_BLOCKS = {
    "(": (")",),
    "{": ("}",),
    "if": ("then", "elif", "else", "fi"),
    "while": ("do", "done"),
    "until": ("do", "done"),
    "for": ("done",),
}
_EXPANDED = ("name", "braced", "script")


class UnjudgedCommand(Exception):
    """The command has something that the grammar does not know."""


class ShellWord(NamedTuple):
    """An argument as a program gets it: a pattern, or any words (`ANYTHING`), if `glob`."""

    text: str
    glob: bool = False


Piece = tuple[str, "str | Script", bool]
Word = list[Piece]
"""A word before it is expanded: pieces of a kind of `_PIECE`, each with its text or script, and
whether it is quoted."""


class Redirect(NamedTuple):
    """A redirection to or from `target`, or from a here-document."""

    operator: str
    target: Word


class Command(NamedTuple):
    """A program with its words, its redirections and the variables that are set before it; or a
    block of the kind `if`, `while`, `until`, `for`, `{` or `(` with its scripts. A loop has its
    variable and its words."""

    kind: str
    words: list[Word]
    redirects: list[Redirect]
    variables: list[tuple[str, Word]]
    scripts: list[Script]


class ShellPipeline(NamedTuple):
    """Commands joined by `|`. `operator` stands before them: `&&`, `||`, or `;` for any other."""

    operator: str
    calls: list[Command]
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


def joined(pieces: list[tuple[str, bool]]) -> ShellWord:
    """Return the word of these texts, of which those that are bare may be patterns."""
    if not _GLOB.search("".join([text for text, bare in pieces if bare])):
        return ShellWord("".join([text for text, _ in pieces]))
    escaped = [text if bare else re.sub(r"([*?\[])", r"[\1]", text) for text, bare in pieces]
    return ShellWord("".join(escaped), True)


def fixed(word: Word) -> ShellWord:
    """Return a word that has no expansion; a pattern for any other."""
    texts = [(value, kind == "bare") for kind, value, _ in word if isinstance(value, str)]
    has_expansion = any(kind in _EXPANDED for kind, _, _ in word)
    return ShellWord(ANYTHING, True) if has_expansion else joined(texts)


def _bare(word: Word) -> str:
    """Return the text of a word without quotes and expansions, "" for any other."""
    (kind, text, _), *more = word
    return text if kind == "bare" and not more and isinstance(text, str) else ""


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
            negated, calls = False, list[Command]()
            while word := self._take("!", "time"):
                negated = negated or word == "!"
            while not calls or self._take("|", "|&"):
                self._skip("\n" if calls else "")
                calls.append(self._command())
            found.append(ShellPipeline(operator, calls, self._token == "&"))
            separator = self._take(";", "&", "\n", "&&", "||")
            # What follows `!` and `&&` runs where the negated command has failed.
            operator = {"&&": "||" if negated else "&&", "||": "||"}.get(separator, ";")
            if not separator and self._keyword() not in ends:
                raise UnjudgedCommand(f"it has {self._keyword()!r} behind a command")
        if operator != ";" or (not found and ends != ("",)):
            raise UnjudgedCommand("it ends where it should go on")
        self._depth -= 1
        return found

    def _keyword(self) -> str:
        """Return the operator or reserved word that comes next; " " for anything else."""
        token = self._token
        if isinstance(token, list):
            return text if (text := _bare(token)) in _RESERVED else " "
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

    def _command(self) -> Command:
        found, word = Command(self._take(*_BLOCKS), [], [], [], []), ""
        if found.kind == "for":
            self._loop(found)
        ends = _BLOCKS.get(found.kind, ("",))
        while word != ends[-1]:
            found.scripts.append(self.script(*ends))
            word = self._expect(*ends)
        while not isinstance(self._token, str):
            token = self._token
            if isinstance(token, Redirect):
                found.redirects.append(token)
            elif found.kind:
                raise UnjudgedCommand("it has a word behind a block")
            elif found.words or not self._assigns(found, token):
                found.words.append(token)
            self._token = self._next()
        if not found.kind:
            self._check(found)
        return found

    def _loop(self, found: Command) -> None:
        """Parse the variable of a loop and its words."""
        name = _bare(self._token) if isinstance(self._token, list) else ""
        if not _OWN_NAME.fullmatch(name):
            raise UnjudgedCommand("it has a loop that sets a variable which is acted upon")
        self._token = self._next()
        self._expect("in")
        found.variables.append((name, []))
        while isinstance(self._token, list):
            found.words.append(self._token)
            self._token = self._next()
        self._expect(";", "\n")
        self._skip("\n")
        self._expect("do")

    def _check(self, found: Command) -> None:
        """Raise `UnjudgedCommand` if a program or a variable is not one that can be judged."""
        for name, value in found.variables:
            text = fixed(value).text
            known = harmless(name, text) or (
                name == "PYTHONPATH" and text != ANYTHING and found.words
            )
            if not (known or (not found.words and _OWN_NAME.fullmatch(name))):
                raise UnjudgedCommand(f"it sets the variable {name[:40]}")
        if not found.words:
            if bool(found.redirects) == bool(found.variables):
                raise UnjudgedCommand("it has a part without a command")
            return
        name = fixed(found.words[0])
        if name.glob or "{" in name.text or "}" in name.text:
            raise UnjudgedCommand("it makes up what it runs")
        if name.text in _RESERVED and (name.text != "[[" or found.redirects or found.variables):
            raise UnjudgedCommand(f"it has {name.text!r} where that has another meaning")

    def _assigns(self, call: Command, word: Word) -> bool:
        """Add the variable that a word sets to a call; return whether it sets one."""
        (kind, first, _), *others = word
        match = _ASSIGNED.match(first) if kind == "bare" and isinstance(first, str) else None
        if match is None:
            return False
        if match[2] != "=" or self._more:
            raise UnjudgedCommand(f"it sets the variable {match[1][:40]}")
        call.variables.append((match[1], [("bare", match.string[match.end() :], False), *others]))
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
        self._left -= 1
        if self._left > 0 and (simple := self._match(_SIMPLE)):
            return [("bare" if simple[1] else "text", simple[1] or simple[2], False)]
        self._match(_BLANKS)
        begin = self._at
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
        if braced := self._match(_BRACED):
            before, texts, low, high, behind = braced.groups()
            step = 1 if texts or int(high) >= int(low) else -1
            within = texts.split(",") if texts else range(int(low), int(high) + step, step)
            texts = [f"{before}{one}{behind}" for one in within]
            if "" in texts:
                raise UnjudgedCommand("it has a word that braces make vanish")
            words: list[Word] = [[("bare", text, False)] for text in texts]
            first, *self._more = words
        else:
            first = self._word()
        if self._marks and "\n" in self._text[begin : self._at]:
            raise UnjudgedCommand("it has a here-document that begins within a word")
        return first

    def _redirect(self, operator: str) -> Redirect:
        if operator == "<<":
            mark = self._match(_DOCUMENT_MARK)
            if mark is None:
                raise UnjudgedCommand("it has a here-document that is not read")
            self._marks.append(mark)
            return Redirect(operator, [])
        self._match(_BLANKS)
        target = self._word()
        if operator == ">&" and fixed(target).text not in ("1", "2"):
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

    def _word(self) -> Word:
        """Read a word."""
        pieces, quoted = Word(), False
        while quoted or not _END.match(self._text, self._at):
            piece = self._match(_QUOTED_PIECE if quoted else _PIECE)
            kind = "" if piece is None else str(piece.lastgroup)
            if piece is None or len(pieces) > _MAX_PARTS or (kind == "tilde" and pieces):
                odd = self._text[self._at : self._at + 1]
                raise UnjudgedCommand(f"it has {odd!r} where that has a meaning of its own")
            quoted = quoted != (kind == "quote")
            value = _UNKNOWN_TEXTS.get(kind, piece[kind])
            if kind in ("home", "tilde"):
                value = self._home
            elif kind == "document":
                value = value.rstrip("\n")
            if (value is self._home and not _PLAIN.fullmatch(value)) or (
                kind == "document" and f"\n{piece['mark']}\n" in f"\n{piece[kind]}"
            ):
                raise UnjudgedCommand("it has a here-document with two ends, or an odd home folder")
            pieces.append((kind, self._inner() if kind == "script" else value, quoted))
        bare = [value for kind, value, _ in pieces if kind == "bare" and isinstance(value, str)]
        descriptor = self._text[self._at : self._at + 1] in ("<", ">")
        if not pieces or (descriptor and re.fullmatch(r"\d+|\{.*", "".join(bare))):
            raise UnjudgedCommand("it has no word where one is expected, or a descriptor")
        if not all(map(_BRACES.fullmatch, bare)) or (len(pieces) > 1 and {"{", "}"} & {*bare}):
            raise UnjudgedCommand("it has braces that are not read")
        return pieces
