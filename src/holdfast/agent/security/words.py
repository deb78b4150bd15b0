"""A shell's words as they are when the command runs: quotes, escapes, variables, braces and `~` taken off, as far as they can be known."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

# What a word without a quote, an expansion or an escape is made of.
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,^-]+", re.ASCII)
_GLOB = re.compile(r"[*?\[]|[+@!]\(")
_SPECIAL = {
    "?": "0",
    "#": "0",
    "$": "4242",
    "!": "4242",
    "-": "",
    "_": "",
}  # digits, whatever they are; `$-` and `$_` are left unknown below
_NUMBERS = frozenset(("RANDOM", "SECONDS", "LINENO", "UID", "EUID", "PPID", "BASHPID", "SRANDOM", "EPOCHSECONDS", "COLUMNS", "LINES"))
_BRACES = 64  # words that one word's braces may become
_LONGEST = 10_000  # characters of one word
_SIMPLE_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "?": "?",
}
_ANSI = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL)


class Word(NamedTuple):
    """One word: its text, and whether that is all of it. Of one that is not known, `text` is how it begins. `glob`: it may become the names of
    files; `quoted`: it stays one word whatever it holds."""

    text: str
    known: bool = True
    glob: bool = False
    quoted: bool = False


UNKNOWN = Word("", False)


class Scope:
    """What is known at a point of a script: variables (None: set, to what is not known), the folders that it may be in, and names that it defined."""

    __slots__ = ("cwds", "defined", "variables")

    def __init__(self, variables: dict[str, str | None], cwds: tuple[str, ...], defined: frozenset[str] = frozenset()) -> None:
        self.variables = variables
        self.cwds = cwds  # none: it is not known
        self.defined = defined

    def copy(self) -> Scope:
        """Another one, for a subshell."""
        return Scope(dict(self.variables), self.cwds, self.defined)

    def value(self, name: str) -> str | None:
        """What a variable is; None if that is not known."""
        if name in self.variables:
            return self.variables[name]
        if name in _NUMBERS:
            return "1"
        if name == "PWD" and len(self.cwds) == 1:
            return self.cwds[0]
        return " \t\n" if name == "IFS" else None


class Expander:
    """Expands the words of one script. `run` looks at a substitution's commands, `home` is where `~` leads."""

    __slots__ = ("_run", "again", "home")

    def __init__(self, home: str, run: Callable[[Any, Scope], str | None], again: Callable[[Any], None]) -> None:
        self.home = home
        self._run = run
        self.again = again

    def words(self, node: Any, scope: Scope) -> list[Word]:
        """The words that an argument becomes."""
        kind = node.type
        if kind == "word" or kind == "number":
            text = _text(node)
            if _PLAIN.fullmatch(text):
                return [Word(text)]
            if "{" in text and ("," in text or ".." in text):
                return self._braces(text)
            return [self._bare(text)]
        if kind == "raw_string":
            return [Word(_text(node)[1:-1], quoted=True)]
        if kind == "string":
            text = self.quoted(node, scope)
            return [Word(text[0], text[1], quoted=True)]
        if kind == "concatenation":
            return self._joined(node, scope)
        if kind == "simple_expansion" or kind == "expansion":
            return self._split(self._value(node, scope))
        if kind == "command_substitution":
            return self._split(self._run(node, scope))
        if kind == "ansi_c_string":
            found = _ansi(_text(node)[2:-1])
            return [UNKNOWN if found is None else Word(found, quoted=True)]
        if kind == "process_substitution":
            self._run(node, scope)
            return [Word("/dev/fd/63", quoted=True)]
        if kind == "arithmetic_expansion":
            self.within(node, scope)
            self.again(node)
            return [Word("1")]
        self.within(node, scope)
        return [UNKNOWN]

    def one(self, node: Any, scope: Scope) -> Word:
        """What an argument becomes where a shell splits nothing: an assignment, a here-string."""
        found = self.words(node, scope)
        if len(found) == 1:
            return found[0]
        if not found:
            return Word("")
        return Word(" ".join([word.text for word in found]), all(word.known for word in found))

    def quoted(self, node: Any, scope: Scope) -> tuple[str, bool]:
        """The text of what stands in double quotes, or in a here-document, and whether that is all of it."""
        text, known = "", True
        end = node.start_byte + (1 if node.type == "string" else 0)
        source: bytes = node.text
        begin = node.start_byte
        for child in node.children:
            kind = child.type
            if child.start_byte > end and known:  # white space that the parser does not call content
                text += source[end - begin : child.start_byte - begin].decode("utf-8", "replace")
            end = max(end, child.end_byte)
            if kind == '"':
                continue
            if kind in ("string_content", "heredoc_content"):
                piece: str | None = re.sub(r"\\([$`\"\\])", r"\1", _text(child))
            elif kind in ("simple_expansion", "expansion"):
                piece = self._value(child, scope)
            elif kind in ("command_substitution", "process_substitution"):
                piece = self._run(child, scope)
            elif kind == "arithmetic_expansion":
                self.within(child, scope)
                self.again(child)
                piece = "1"
            elif not child.is_named:
                piece = _text(child)
            else:
                self.within(child, scope)
                piece = None
            if piece is None:
                known = False
            elif known:
                text += piece
        return text[:_LONGEST], known and len(text) <= _LONGEST

    def within(self, node: Any, scope: Scope) -> None:
        """Look at the substitutions within a node whose own value matters no more."""
        stack = [node]
        while stack:
            for child in stack.pop().children:
                if child.type in ("command_substitution", "process_substitution"):
                    self._run(child, scope)
                elif child.child_count:
                    stack.append(child)

    def _value(self, node: Any, scope: Scope) -> str | None:
        """A variable's value; None if it is not known, or if something is done with it on the way."""
        children = [child for child in node.children if child.type not in ("$", "${", "}")]
        if len(children) == 1 and children[0].type == "variable_name":
            name = _text(children[0])
            return self.home if name == "HOME" and name not in scope.variables and self.home else scope.value(name)
        if len(children) == 1 and children[0].type == "special_variable_name":
            name = _text(children[0])
            return None if name in ("-", "_", "@", "*", "0") else _SPECIAL.get(name)
        if len(children) == 2 and children[0].type == "#":
            return "1"  # a length
        self.within(node, scope)
        self.again(node)
        return None

    def _split(self, value: str | None) -> list[Word]:
        """What a shell makes of a value that stands without quotes."""
        if value is None:
            return [UNKNOWN]
        return [Word(part, glob=bool(_GLOB.search(part))) for part in value.split()]

    def _bare(self, text: str) -> Word:
        """A word without quotes: escapes and `~`."""
        glob = bool(_GLOB.search(re.sub(r"\\.", "", text, flags=re.DOTALL)))
        plain = re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""), flags=re.DOTALL) if "\\" in text else text
        if text.startswith("~"):
            user, slash, rest = plain[1:].partition("/")
            if user in ("+", "-") or user.isdecimal() or "\\" in text[:2]:
                return UNKNOWN
            home = self.home if not user else "/root" if user == "root" else f"/home/{user}"
            return Word(home + slash + rest, bool(home), glob)
        return Word(plain, True, glob)

    def _joined(self, node: Any, scope: Scope) -> list[Word]:
        text = _text(node)
        braces = "{" in text and ("," in text or ".." in text)
        if braces and not re.search(r"['\"$`\\]", text):
            return self._braces(text)
        found: list[list[Any]] = [["", True, False, False]]
        unquoted_brace = False
        for index, child in enumerate(node.children):
            kind = child.type
            if kind in ("simple_expansion", "expansion", "command_substitution"):
                value = self._value(child, scope) if kind != "command_substitution" else self._run(child, scope)
                if value is None:
                    found[-1][1] = False
                    found.append(["", False, False, False])  # it may be several
                    continue
                parts = value.split()
                if not parts or value[:1].isspace():
                    found.append(["", True, False, False])
                for number, part in enumerate(parts):
                    if number:
                        found.append(["", True, False, False])
                    found[-1][0] += part
                    found[-1][2] |= bool(_GLOB.search(part))
                if parts and value[-1:].isspace():
                    found.append(["", True, False, False])
                continue
            if kind == "word" and index == 0 and _text(child).startswith("~"):
                word = self._bare(_text(child))
            elif kind in ("word", "number") or not child.is_named:
                unquoted_brace = unquoted_brace or "{" in _text(child)
                raw = _text(child)
                word = Word(
                    re.sub(r"\\(.)", r"\1", raw, flags=re.DOTALL), glob=bool(_GLOB.search(re.sub(r"\\.", "", raw, flags=re.DOTALL)))
                )
            else:
                word = self.one(child, scope)
            piece = found[-1]
            if piece[1]:
                piece[0] += word.text
            piece[1] = piece[1] and word.known
            piece[2] |= word.glob
            piece[3] |= word.quoted
        if braces and unquoted_brace:
            return [UNKNOWN]
        return [Word(*piece) for piece in found if piece[0] or piece[3] or not piece[1]] or [Word("", quoted=True)]

    def _braces(self, text: str) -> list[Word]:
        """The words that `{a,b}` and `{1..3}` become; unknown if they are many."""
        found = _expand_braces(text)
        return [UNKNOWN] if found is None else [self._bare(one) for one in found if one]


def _expand_braces(text: str) -> list[str] | None:
    if re.search(r"\{[^}]*\{", text):
        return None  # one within another: the order of what comes of it is not worth the code
    done: list[str] = []
    todo = [text]
    rounds = 0
    while todo:
        rounds += 1
        if rounds + len(todo) + len(done) > _BRACES or len(text) > _LONGEST:
            return None
        one = todo.pop(0)
        span = _innermost(one)
        if span is None:
            done.append(one)
            continue
        begin, end = span
        inner = one[begin + 1 : end]
        if "," in inner:
            parts = inner.split(",")
        else:
            parts = _range(inner)
            if parts is None:
                return None
        todo += [one[:begin] + part + one[end + 1 :] for part in parts]
    return done


def _innermost(text: str) -> tuple[int, int] | None:
    """The first braces within which there are none, and which a shell expands."""
    begin = -1
    for index, letter in enumerate(text):
        if letter == "{":
            begin = index
        elif letter == "}" and begin >= 0:
            inner = text[begin + 1 : index]
            if "," in inner or ".." in inner:
                return begin, index
            begin = -1
    return None


def _range(inner: str) -> list[str] | None:
    match = re.fullmatch(r"(-?\d{1,6})\.\.(-?\d{1,6})", inner)
    if match is not None:
        first, last = int(match[1]), int(match[2])
        if abs(last - first) >= _BRACES:
            return None
        step = 1 if last >= first else -1
        return [str(number) for number in range(first, last + step, step)]
    match = re.fullmatch(r"([A-Za-z])\.\.([A-Za-z])", inner)
    if match is None:
        return None
    first, last = ord(match[1]), ord(match[2])
    step = 1 if last >= first else -1
    return [chr(number) for number in range(first, last + step, step)]


def _ansi(text: str) -> str | None:
    """What stands in `$'...'`; None for what is no text."""

    def put(match: re.Match[str]) -> str:
        two, four, eight, octal, control, letter = match.groups()
        if two or four or eight:
            return chr(int(two or four or eight, 16))
        if octal:
            return chr(int(octal, 8) & 255)
        if control:
            return chr(ord(control) & 31)
        return _SIMPLE_ESCAPES.get(letter, f"\\{letter}")

    try:
        found = _ANSI.sub(put, text)
    except (ValueError, OverflowError):
        return None
    return None if "\0" in found else found


def behind(pattern: re.Pattern[str], text: str) -> bool:
    """Whether a pattern is behind the first `[` of a text."""
    at = text.find("[")
    return at >= 0 and pattern.search(text, at) is not None


def _text(node: Any) -> str:
    found: bytes = node.text
    return found.decode("utf-8", "replace")
