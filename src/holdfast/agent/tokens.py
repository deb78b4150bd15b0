"""Token counts of requests: one estimate per fragment, corrected by the provider's counts."""

from __future__ import annotations

import re
from binascii import Error, a2b_base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.agent.damage import stand_in
from holdfast.agent.view import compaction_answer
from holdfast.answer import COMPACTION
from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    FileContent,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResult,
    answer_seq,
    is_nested,
)
from holdfast.image_size import pixels
from holdfast.llm.transcript import Recipient
from holdfast.llm.wires import is_wire, wire, wire_of
from holdfast.llm.wires.answers import holds_compaction
from holdfast.llm.wires.content_parts import is_text_type

# Bytes per token before any count is known: English and code have 3.5 to 4.5 with today's
# tokenizers. Beyond ASCII a letter has two bytes and an ideograph three, and both are about one
# token: see `text`.
BYTES_PER_TOKEN = 4
_MESSAGE_TOKENS = 4  # tokens around a message or a call: role, id, JSON syntax
# Tokens of a picture of unknown size: Anthropic's count for the largest that it accepts unscaled.
_PICTURE_TOKENS = 1600
# Tokens of a page of a PDF: 1,500 to 3,000 of text and a picture at Anthropic, 258 at Gemini.
_PAGE_TOKENS = 2000
_PAGES = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")  # page objects that are not compressed
# Tokens of a file by URL or id, by its kind: ten pages, a minute of sound, a minute of video.
_UNKNOWN_TOKENS = {"document": 10 * _PAGE_TOKENS, "audio": 32 * 60, "video": 300 * 60}
_TRIM_NOTE_TOKENS = 45  # tokens of the note beneath a trimmed result

# Bounds of the ratio of counted to estimated tokens. Without them a proxy that reports one token
# for each request would make all requests fit.
_MIN_RATIO, _MAX_RATIO = 0.25, 6.0
# The ratio of real to estimated tokens before any count is known: rather too high than too low.
UNCOUNTED = 1.15


def text(value: str) -> int:
    """Return the estimated tokens of a text."""
    if value.isascii():
        return len(value) // BYTES_PER_TOKEN + 1
    size = len(value.encode("utf-8", "surrogatepass"))
    return (size - len(value)) // 2 + len(value) // BYTES_PER_TOKEN + 1


def blocks(content: Iterable[Content]) -> int:
    """Return the estimated tokens of content blocks."""
    total = 0
    for block in content:
        if type(block) is TextContent:
            total += text(block.text)
        elif type(block) is ImageContent:
            total += picture(block.data)
        elif type(block) is AudioContent:
            total += _sound(len(block.data))
        elif type(block) is FileContent:
            total += file(block)
        elif type(block) is EmbeddedResource:
            total += _resource(block.resource)
        else:
            total += 40
    return total


def _sound(size: int) -> int:
    return size // 500 + 1  # 32 tokens for a second of 16 KB/s (Gemini)


def file(block: FileContent) -> int:
    """Return the estimated tokens of a file. Without its bytes, a document counts as ten pages and
    sound or video as a minute."""
    if block.kind == "image":
        return picture(block.data)
    if not block.data:
        return _UNKNOWN_TOKENS[block.kind]
    return _bytes(block.mime_type, block.data)


def _resource(resource: Mapping[str, Any]) -> int:
    kind, blob = str(resource.get("mimeType") or ""), resource.get("blob")
    texts = [value for key, value in resource.items() if key != "blob" and isinstance(value, str)]
    total = sum(map(text, texts))
    if isinstance(blob, str):
        try:
            total += _bytes(kind, a2b_base64(blob))
        except (Error, ValueError):
            total += 40  # a note replaces what cannot be read
    return total


def _bytes(mime_type: str, data: bytes) -> int:
    """Return the estimated tokens of a file by its bytes."""
    kind = mime_type.partition(";")[0].strip().lower()
    family = kind.partition("/")[0]
    if family == "image":
        return picture(data)
    if family == "audio":
        return _sound(len(data))
    if family == "video":
        return len(data) // 1000 + 1  # 300 tokens for a second of 300 KB/s (Gemini)
    if kind == "application/pdf":
        pages = len(_PAGES.findall(data))
        return max(1, pages or len(data) // 50_000) * _PAGE_TOKENS
    size = len(data) // BYTES_PER_TOKEN + 1
    # Of another kind, such as a ZIP file, many models are sent only a note.
    return size if is_text_type(kind) else min(size, _UNKNOWN_TOKENS["document"])


def picture(data: bytes) -> int:
    """Return the estimated tokens of a picture. One token per 750 pixels (Anthropic), at least 85
    (a small picture at OpenAI), at most `_PICTURE_TOKENS`."""
    size = pixels(data)
    if size is None:
        return _PICTURE_TOKENS
    return min(max(85, size[0] * size[1] // 750), _PICTURE_TOKENS)


def answer(event: ev.AssistantReplied) -> int:
    """Return the estimated tokens of an answer in the form that is sent back to the provider. The
    native form, if any, counts alone, because it contains everything else."""
    if event.native:
        return len(event.native) // BYTES_PER_TOKEN + _MESSAGE_TOKENS
    calls = sum([_MESSAGE_TOKENS + arguments(call) for call in event.calls])
    return text(event.text) + calls + _MESSAGE_TOKENS


def arguments(call: ToolCall) -> int:
    """Return the estimated tokens of a call's name and arguments."""
    characters = len(call.raw) if call.raw else 2
    for key, value in () if call.raw else call.arguments.items():
        size = len(value) if isinstance(value, str) else len(msgspec.json.encode(value))
        characters += len(key) + size + 6
    return (characters + len(call.name)) // BYTES_PER_TOKEN + 1


def of_json(value: Any) -> int:
    """Return the estimated tokens of a value that is sent as JSON."""
    return len(msgspec.json.encode(value)) // BYTES_PER_TOKEN + _MESSAGE_TOKENS


def result(value: ToolResult) -> int:
    """Return the estimated tokens of a call's result."""
    if not value.content and value.structured_content is not None:
        return of_json(value.structured_content)
    return blocks(value.content) + _MESSAGE_TOKENS


def head(event: ev.AgentConfigured | None) -> int:
    """Return the estimated tokens of the system prompt and the tool definitions."""
    return 0 if event is None else text(event.system_prompt) + sum(map(of_json, event.tools))


class Sizes(msgspec.Struct, eq=False):
    """The token count of the next request of a growing journal. Feed each event once, in order.

    Each fragment is estimated once. The usage of an answer gives the real token count of its
    request, and so the ratio of real to estimated tokens. Later fragments are converted with
    that ratio.
    """

    messages: dict[int, int] = {}  # tokens of a message or an answer, by seq
    results: dict[str, int] = {}  # tokens of a result, by call id
    whole: int = 0  # estimated tokens of the whole view without a provider's compaction
    # Compactions by a provider, alone or within an answer. Each has the tokens of its own that are
    # not in `whole`, because other models are not shown them.
    compactions: list[tuple[ev.AssistantReplied, int]] = []
    compaction: ev.AssistantReplied | None = None  # the one that the model is shown
    saved: int = 0  # estimated tokens by which it shortens the request
    cleared: int = 0  # tokens that the provider leaves out of the requests, as it last counted them
    at_condensation: int = 0  # tokens after the last condensation
    head: int = 0
    summaries: dict[int, int] = {}  # tokens of the current summaries, by place
    uncounted: list[tuple[int, int]] = []  # messages since the last answer: seq, size
    ratio: float = UNCOUNTED
    _configured: ev.AgentConfigured | None = None
    _last: ev.AssistantReplied | None = None

    @classmethod
    def of(cls, journal: Sequence[ev.AnyEvent], before: ev.AgentConfigured | None = None) -> Sizes:
        """Return the sizes of a journal, or of the part of a journal that is still shown. `before`
        is the `AgentConfigured` event that was in effect before the first of these events."""
        size = head(before)
        tally = cls(whole=size, head=size)
        tally._configured = before
        for event in journal:
            tally.feed(event)
        return tally

    @property
    def total(self) -> int:
        """The estimated tokens of the next request."""
        return self.whole - self.saved

    @property
    def tokens(self) -> int:
        """The number of tokens of the next request."""
        return max(0, int(self.total * self.ratio) - self.cleared)

    def worth(self, estimated: int) -> int:
        """Convert estimated tokens to tokens as the provider counts them."""
        return int(estimated * self.ratio)

    def feed(self, event: ev.AnyEvent) -> None:
        """Add the journal's next event."""
        if type(event) is ev.DamagedEvent:
            event = stand_in(event) or event
        if type(event) is ev.ToolCallFinished:
            # neither a second result of one call nor one of a script's calls is shown
            if event.call_id not in self.results and not is_nested(event.call_id):
                size = self.results[event.call_id] = result(event.result)
                self.whole += size
        elif type(event) is ev.AssistantReplied:
            self._answer(event)
        elif type(event) is ev.MessageAdded:
            size = self.messages[event.seq] = blocks(event.content) + _MESSAGE_TOKENS
            self.uncounted.append((event.seq, size))
            self.whole += size
        elif type(event) is ev.AgentConfigured:
            before, self.head = self.head, head(event)
            self.whole += self.head - before
            self._configured = event
            if self.compactions:
                self._choose_compaction()
        elif type(event) is ev.HistoryCondensed:
            self._condense(event)

    def _answer(self, event: ev.AssistantReplied) -> None:
        compacts = bool(event.native) and holds_compaction(event.native)
        counted = event.context_tokens or (0 if compacts else event.usage.input_tokens)
        base = self.total - sum([size for seq, size in self.uncounted if seq > event.based_on])
        size = self.messages[event.seq] = answer(event)
        self.whole += size
        self._last = event
        if compacts:
            self.compactions.append((event, 0))
        if self.compactions:
            self._choose_compaction()
        if compacts:
            base = self.total  # the last run saw the compaction, and made the rest of the answer
        if counted and base > 0:
            self.cleared = event.cleared_tokens
            self.ratio = min(max((counted + self.cleared) / base, _MIN_RATIO), _MAX_RATIO)
        self.uncounted = []

    def _choose_compaction(self) -> None:
        """Find the last compaction that the model can read, and the tokens that it replaces."""
        self.compaction, self.saved = None, 0
        to = self._reader()
        for answer, own in reversed(self.compactions) if to is not None else ():
            if to is not None and to.may_receive_native(answer):
                seq_sizes = [*self.messages.items(), *self.summaries.items()]
                seq_sizes += [(answer_seq(id), size) for id, size in self.results.items()]
                before = sum([size for seq, size in seq_sizes if seq <= answer.based_on])
                self.compaction, self.saved = answer, before - own
                break

    def _reader(self) -> Recipient | None:
        """Return the model that is asked next; None if its wire is unknown. Of a composite it is
        the one that answered last."""
        parameters = {} if self._configured is None else self._configured.parameters
        if self._configured is not None and is_wire(str(parameters.get("wire"))):
            host = str(parameters.get("host", ""))
            return Recipient(wire_of(parameters), self._configured.model, host)
        last = self._last
        if last is None or "routes" not in parameters or not is_wire(last.wire):
            return None
        return Recipient(wire(last.wire), last.model, last.host)

    def _condense(self, event: ev.HistoryCondensed) -> None:
        if event.changes or event.compaction is not None:
            self.cleared = 0  # the next answer reports the rest to clear
        if event.hidden:
            hidden = set(event.hidden)
            place = min(hidden)
            self.compactions = [
                (one, own)
                for one, own in self.compactions
                if one.seq not in hidden and (one.stop_reason != COMPACTION or one.based_on < place)
            ]
            self.whole -= sum([self.messages.pop(seq, 0) for seq in hidden])
            for call_id in [call_id for call_id in self.results if answer_seq(call_id) in hidden]:
                self.whole -= self.results.pop(call_id)
            for earlier in event.replaced:
                self.whole -= self.summaries.pop(earlier, 0)
            size = text(event.summary) + _MESSAGE_TOKENS if event.summary else 0
            self.whole += size - self.summaries.get(place, 0)
            self.summaries[place] = size
            self.uncounted = [(seq, size) for seq, size in self.uncounted if seq not in hidden]
        for call_id, characters in event.trimmed.items():
            before = self.results.get(call_id)
            if before is not None:
                self.results[call_id] = min(before, of_trimmed(characters))
                self.whole += self.results[call_id] - before
        if (compaction := compaction_answer(event)) is not None and event.compaction is not None:
            size = answer(compaction) + text(event.compaction.note) + _MESSAGE_TOKENS
            self.compactions.append((compaction, size))
        if self.compactions or self.compaction is not None:
            self._choose_compaction()
        if event.request is None:
            self.at_condensation = self.tokens


def of_trimmed(characters: int) -> int:
    """Return the estimated tokens of a result that is trimmed to `characters` characters."""
    return characters // BYTES_PER_TOKEN + _TRIM_NOTE_TOKENS
