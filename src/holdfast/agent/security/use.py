"""`Use`: one program with its words, as the rules about programs are asked about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.agent.security.network import fetch
from holdfast.agent.security.paths import HIGH, LOW, MEDIUM, UNKNOWN
from holdfast.agent.security.words import Scope, Word

if TYPE_CHECKING:
    from holdfast.agent.security.shell import Reader


class Use(NamedTuple):
    """A program's name, the words behind it, where it stands, and what it is fed (`shell.Stdin`, or None)."""

    reader: Reader
    name: str
    args: Sequence[Word]
    scope: Scope
    stdin: Any

    def note(self, rank: int, reason: str) -> None:
        """The program is at least so risky."""
        self.reader.note(rank, reason)

    def low(self) -> None:
        """Nothing is to be said of it."""
        self.reader.note(LOW, f"{self.name} only reads")

    def high(self, what: str) -> None:
        """It is as risky as it gets."""
        self.reader.note(HIGH, f"{self.name} {what}")

    def medium(self, what: str) -> None:
        """It changes the working directory, or runs what is there."""
        self.reader.note(MEDIUM, f"{self.name} {what}")

    def unknown(self, what: str) -> None:
        """What it does cannot be told."""
        self.reader.note(UNKNOWN, f"{self.name} {what}")

    def not_known(self, words: Sequence[Word]) -> None:
        """Words that are not known beforehand are never low."""
        if not all(word.known for word in words):
            self.reader.note(MEDIUM, f"{self.name} is given what is not known beforehand")

    def reads(self, words: Sequence[Word]) -> None:
        """It reads these paths."""
        for word in words:
            self.reader.reads(word, self.scope)

    def reads_all(self, words: Sequence[Word]) -> None:
        """It reads these paths, and what is below them."""
        for word in words:
            self.reader.reads_all(word, self.scope)

    def writes(self, words: Sequence[Word], what: str = "writes to") -> None:
        """It makes, changes or deletes these paths."""
        for word in words:
            self.reader.writes(word, self.scope, f"{self.name} {what}")

    def text(self, index: int) -> str:
        """The word of that place if it is there and known, else ""."""
        return self.args[index].text if index < len(self.args) and self.args[index].known else ""

    def run(self, words: Sequence[Word], stdin: Any = None) -> None:
        """It runs these words as a program of its own."""
        if words:
            self.reader.run(words, self.scope, stdin)


def reach(use: Use, word: Word, sends: str = "") -> None:
    """It asks a host, and gives it what `sends` says; what is not known of an address may carry anything out."""
    if not word.known:
        use.high("reaches an address that is not known beforehand")
    use.reader.take(fetch(word.text, use.reader.hosts, sends))


def inside(use: Use, word: Word) -> bool:
    """Whether a folder is within the working directory, wherever the command may be."""
    places = use.reader.places
    try:
        return word.known and all(places.inside(places.real(word.text, cwd)) for cwd in use.scope.cwds or ("/",))
    except (OSError, ValueError):
        return False


Check = Callable[[Use], None]
