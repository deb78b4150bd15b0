"""Token counts of requests: one estimate per fragment, corrected by the provider's counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast import events as ev
from holdfast.agent.damage import stand_in
from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResult,
)
from holdfast.llm.pictures import pixels

# Bytes to a token where nothing was counted yet: of English and code 3.5 to 4.5 with today's
# tokenizers. Beyond ASCII a letter has two bytes and an ideograph three, and both are about a
# token: see `text`.
_BYTES = 4
_MESSAGE = 4  # tokens around a message or a call: its role, its id, what its JSON is
# of one whose size cannot be read: what Anthropic counts for the largest that it takes as it is
_PICTURE = 1600
_NOTE = 45  # of the note beneath a trimmed result

# How far from the estimate a provider may be believed to be: a proxy that reports one token for
# everything would have all requests fit.
_LEAST, _MOST = 0.25, 6.0
UNCOUNTED = (
    1.15  # tokens to an estimated one while nothing was counted: rather too many than too few
)


def text(found: str) -> int:
    """Return the estimated tokens of a text."""
    if found.isascii():
        return len(found) // _BYTES + 1
    size = len(found.encode("utf-8", "surrogatepass"))
    return (size - len(found)) // 2 + len(found) // _BYTES + 1


def blocks(content: Iterable[Content]) -> int:
    """Return the estimated tokens of content blocks."""
    found = 0
    for block in content:
        if type(block) is TextContent:
            found += text(block.text)
        elif type(block) is ImageContent:
            found += picture(block.data)
        elif type(block) is AudioContent:
            found += len(block.data) // 500 + 1  # 32 tokens for a second of 16 KB/s (Gemini)
        elif type(block) is EmbeddedResource:
            found += sum(text(value) for value in block.resource.values() if isinstance(value, str))
        else:
            found += 40
    return found


def picture(data: bytes) -> int:
    """Return the estimated tokens of a picture.

    One token per 750 pixels (Anthropic), at least 85 (a small picture at OpenAI), at most
    `_PICTURE_TOKENS`.
    """
    size = pixels(data)
    return _PICTURE if size is None else min(max(85, size[0] * size[1] // 750), _PICTURE)


def answer(event: ev.Assistant) -> int:
    """Return the estimated tokens of an answer as it is sent back to the provider.

    The native form counts if there is one, because it contains everything else.
    """
    if event.native:
        return len(event.native) // _BYTES + _MESSAGE
    return text(event.text) + sum([_MESSAGE + arguments(call) for call in event.calls]) + _MESSAGE


def arguments(call: ToolCall) -> int:
    """Return the estimated tokens of a call's name and arguments."""
    found = len(call.raw) if call.raw else 2
    for key, value in () if call.raw else call.arguments.items():
        found += (
            len(key)
            + (len(value) if isinstance(value, str) else len(msgspec.json.encode(value)))
            + 6
        )
    return (found + len(call.name)) // _BYTES + 1


def result(found: ToolResult) -> int:
    """Return the estimated tokens of a call's result."""
    if not found.content and found.structured_content is not None:
        return len(msgspec.json.encode(found.structured_content)) // _BYTES + _MESSAGE
    return blocks(found.content) + _MESSAGE


def head(event: ev.Agent | None) -> int:
    """Return the estimated tokens of the system prompt and the tool definitions."""
    return (
        0
        if event is None
        else text(event.system_prompt)
        + sum([len(msgspec.json.encode(tool)) // _BYTES + _MESSAGE for tool in event.tools])
    )


class Sizes:
    """The token count of the next request of a growing journal. Feed each event once, in order.

    Each fragment is estimated once. The usage of an answer gives the real token count of its
    request, and so the ratio of real to estimated tokens. Later fragments are converted with
    that ratio.
    """

    __slots__ = (
        "_head",
        "_places",
        "_since",
        "_worth",
        "at_condensation",
        "results",
        "said",
        "total",
    )

    def __init__(self, before: ev.Agent | None = None) -> None:
        self.said: dict[int, int] = {}  # of a message or an answer, by seq
        self.results: dict[str, int] = {}  # by call id
        self.total = 0  # of all that is shown, as estimated
        self.at_condensation = 0  # tokens when the last condensation was over
        self._head = head(before)
        self._places: dict[int, int] = {}  # of the summaries that stand, by their places
        self._since: list[tuple[int, int]] = []  # messages since the last answer: seq, size
        self._worth = UNCOUNTED
        self.total = self._head

    @classmethod
    def of(cls, journal: Sequence[ev.AnyEvent], before: ev.Agent | None = None) -> Sizes:
        """Return the sizes of a journal, or of the part of a journal that is still shown.

        `before` is the `Agent` event that was in effect before the first of these events.
        """
        found = cls(before)
        for event in journal:
            found.feed(event)
        return found

    @property
    def tokens(self) -> int:
        """The number of tokens of the next request."""
        return int(self.total * self._worth)

    def worth(self, estimated: int) -> int:
        """Convert estimated tokens to tokens as the provider counts them."""
        return int(estimated * self._worth)

    def estimated(self, tokens: int) -> int:
        """Convert tokens as the provider counts them to estimated tokens; the inverse of
        `worth`."""
        return int(tokens / self._worth)

    def feed(self, event: ev.AnyEvent) -> None:
        """Add the journal's next event."""
        if type(event) is ev.Damaged:
            event = stand_in(event) or event
        if type(event) is ev.ToolResult:
            if event.call_id not in self.results:  # a second result of one call is not shown
                size = self.results[event.call_id] = result(event.result)
                self.total += size
        elif type(event) is ev.Assistant:
            counted = event.usage.input_tokens
            base = self.total - sum([size for seq, size in self._since if seq > event.based_on])
            if counted and base > 0:
                self._worth = min(max(counted / base, _LEAST), _MOST)
            self._since = []
            size = self.said[event.seq] = answer(event)
            self.total += size
        elif type(event) is ev.Message:
            size = self.said[event.seq] = blocks(event.content) + _MESSAGE
            self._since.append((event.seq, size))
            self.total += size
        elif type(event) is ev.Agent:
            before, self._head = self._head, head(event)
            self.total += self._head - before
        elif type(event) is ev.Condensation:
            self._condense(event)

    def _condense(self, event: ev.Condensation) -> None:
        if event.hidden:
            gone = set(event.hidden)
            self.total -= sum([self.said.pop(seq, 0) for seq in gone])
            for call_id in [
                call_id for call_id in self.results if int(call_id.partition(".")[0]) in gone
            ]:
                self.total -= self.results.pop(call_id)
            for place in event.replaced:
                self.total -= self._places.pop(place, 0)
            place = min(gone)
            size = text(event.summary) + _MESSAGE if event.summary else 0
            self.total += size - self._places.get(place, 0)
            self._places[place] = size
            self._since = [(seq, size) for seq, size in self._since if seq not in gone]
        for call_id, kept in event.trimmed.items():
            before = self.results.get(call_id)
            if before is not None:
                self.results[call_id] = min(before, trimmed(kept))
                self.total += self.results[call_id] - before
        if event.request is None:
            self.at_condensation = self.tokens


def trimmed(kept: int) -> int:
    """Return the estimated tokens of a result that is trimmed to `kept` characters."""
    return kept // _BYTES + _NOTE
