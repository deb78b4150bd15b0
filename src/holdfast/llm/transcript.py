"""`Transcript`: the items of a conversation so far, with their encoding for each wire, built
once."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast
from zlib import crc32

import msgspec

from holdfast.answer import COMPACTION
from holdfast.content import (
    Content,
    ContentLike,
    FileContent,
    Message,
    TextContent,
    ToolCall,
    ToolResult,
    blocks,
)
from holdfast.errors import ConfigurationError
from holdfast.events import AssistantReplied
from holdfast.events import MessageAdded as MessageEvent
from holdfast.llm import files
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.providers import maker
from holdfast.llm.vision import has_picture, hide_pictures, picture, placeholder
from holdfast.llm.wires.calls import wire_id
from holdfast.llm.wires.protocol import OPTIONAL_MEMBERS, Calls, Fragments, Names, Wire

T = TypeVar("T")


@lru_cache(1)
def sha256() -> Callable[..., Any]:
    """Return `hashlib.sha256`, imported at its first use because that takes 3 ms."""
    from hashlib import sha256

    return sha256


CallResult = tuple[ToolCall, ToolResult]
Answer = AssistantReplied | Completion
Item = Message | MessageEvent | Answer | CallResult


class Recipient:
    """A model that receives requests, and the rules for their content.

    `maker` and `only_host` (the host to which native forms are bound, or "") decide which native
    forms it may receive. Recipients with the same `key` receive the same bytes.
    """

    __slots__ = (
        *("family", "host", "key", "maker", "model", "only_host", "sees", "wire"),
        *OPTIONAL_MEMBERS,
    )

    # True for an answer in place of everything before it.
    replaces_history: Callable[[msgspec.Raw], bool] | None
    # The Unix time until which the provider takes a native form, 0 if it always does.
    expires_at: Callable[[msgspec.Raw], float] | None
    # An answer's message without its signed thinking.
    without_thinking: Callable[[bytes], bytes] | None
    # `unpaired` returns the ids of the provider's own calls without a result in an answer's
    # message, and of results without a call. `without_parts` returns the message without the parts
    # of such ids.
    unpaired: Callable[[bytes], tuple[set[str], set[str]]] | None
    without_parts: Callable[[bytes, set[str]], bytes] | None

    def __init__(self, wire: Wire, model: str = "", host: str = "", sees: bool = True) -> None:
        self.wire = wire
        self.model = model
        self.host = host
        self.sees = sees
        self.maker = maker(model)
        self.only_host = host if wire.bound else ""
        self.family = wire.family(model, host)
        self.key = (wire.name, self.maker, self.only_host, self.family, sees)
        for member in OPTIONAL_MEMBERS:
            setattr(self, member, getattr(wire, member, None))

    @property
    def providers(self) -> frozenset[str]:
        """The names of the model's provider, which decide about files of one provider."""
        return files.providers_of(self.model, self.host, self.wire.name)

    def may_receive_native(self, item: Answer) -> bool:
        """Return True if the native form of an answer may be sent here. An unknown maker or host
        counts as the same."""
        if item.wire != self.wire.name:
            return False
        makers = {maker(item.model), self.maker} - {""}
        hosts = {item.host, self.only_host} - {""} if self.only_host else ()
        return len(makers) < 2 and len(hosts) < 2


# The reason in the text for a picture or a sound that was the whole answer of a model.
_NOT_RETURNED = "generated here, and not sent back"
# The note of an answer to a request without the thinking of earlier answers, which was refused.
THINKING_REFUSED = (
    "The thinking of earlier answers was refused, since the conversation before them has changed;"
    " it was left out."
)
# Stop reasons of an answer that ended in the middle of a text or call.
_CUT_OFF = ("length", "content_filter")


class _Encoding:
    """The items of a transcript, encoded for recipients with one key, and the state needed to
    continue."""

    def __init__(self) -> None:
        self.fragments = Fragments()
        self.encoded = 0  # number of items encoded
        self.answered = 0  # number of fragments up to the last answer
        self.batch: list[CallResult] = []  # results since the last assistant item
        self.unanswered = 0  # number of that item's calls without a result
        self.is_partial = False  # True if more results may join the batch of the last fragment
        self.left_out: dict[str, int] = {}  # model -> number of its native forms left out
        self.compacted_by = ""  # the model of the last compaction that was left out
        self.hash: Any = None  # hash of the first `hashed` fragments
        self.hashed = 0
        self.ids: dict[str, int] = {}  # call id as sent -> number of calls that wanted it
        # The last answer's calls, each with the call as sent, if any id was changed.
        self.sent_calls: list[tuple[ToolCall, ToolCall]] = []
        self.renamed: dict[str, ToolCall] = {}  # Holdfast's id of a call -> a different one as sent
        # The place of the last answer that waits for results of the provider's own tools in the
        # next one, and the ids of these calls.
        self.waiting_at = 0
        self.waiting: set[str] = set()
        # Messages that the provider takes for some time only: place, the Unix time of their end,
        # and the message to send from then on.
        self.expiring: list[tuple[int, float, bytes]] = []
        # The first messages without their thinking, once the API has refused it.
        self.unsigned: list[bytes] = []

    def add(self, item: Item, to: Recipient, names: Names, only_text: bool) -> None:
        """Encode an item. `only_text` is True if no message and no result has anything else."""
        wire = to.wire
        if isinstance(item, tuple):
            call, result = item
            if not only_text:
                result = _receivable(result, to)
            if self.sent_calls or self.renamed:
                call = self._sent_call(call)
            self.batch.append((call, result))
            self.unanswered -= 1
            if self.unanswered <= 0:
                self._end_batch(to, names)
            return
        if self.batch:  # an incomplete batch, in messages written by hand
            self._end_batch(to, names)
        if isinstance(item, Answer):
            if THINKING_REFUSED in item.notes:
                self.leave_out_thinking(to)
            native, verbatim = item.native, False
            if native:
                if to.may_receive_native(item):
                    verbatim = wire.bound
                else:
                    native = NO_NATIVE
                    model = item.model or item.wire
                    if item.stop_reason == COMPACTION:  # the history itself is sent
                        self.compacted_by = model
                        return
                    self.left_out[model] = self.left_out.get(model, 0) + 1
            text = item.text or item.refusal
            if not (text or item.calls) and item.media:
                # An API refuses an empty answer, and takes no pictures in one.
                texts = [files.left_out(block, _NOT_RETURNED) for block in item.media]
                text = "\n".join(filter(None, texts))
            fragment = self._add_answer(text, item.calls, native, verbatim, to, names)
            if native and to.expires_at is not None and (end := to.expires_at(native)):
                later = to.wire.assistant(text, item.calls, NO_NATIVE, names, to.family)
                self.expiring.append((len(self.fragments) - 1, end, later))
            if to.unpaired is not None:
                unpaired_ids = to.unpaired(fragment) if native else (set[str](), set[str]())
                self._pair(*unpaired_ids, item.stop_reason in _CUT_OFF, to)
            self.answered = len(self.fragments)
            return
        if self.waiting:
            self._drop(self.waiting_at, self.waiting, to)
            self.waiting = set()
        if not only_text:
            item = _receivable(item, to)
        if isinstance(item, Message) and item.role == "assistant":
            self._add_answer(item.text, item.tool_calls, NO_NATIVE, False, to, names)
        elif isinstance(item, Message) and item.role == "system":
            self.fragments.append(wire.system(item.text))
        else:
            self.fragments.append(wire.user(cast(Message, item).content, to.family))

    def _add_answer(
        self,
        text: str,
        calls: Calls,
        native: msgspec.Raw,
        verbatim: bool,
        to: Recipient,
        names: Names,
    ) -> bytes:
        """Encode an answer and return its message. Its calls get ids that are legal on the wire and
        unique; an id that is both stays unchanged. All ids stay unchanged in an answer that goes
        back `verbatim` to the host that assigned them."""
        self.sent_calls = []
        self.unanswered = len(calls)
        if calls:
            calls = self._add_calls(calls, bool(native), to, verbatim)
        fragment = to.wire.assistant(text, calls, native, names, to.family)
        # This asks about the sent form: an answer with changed calls may be sent without its native
        # form.
        if (
            native
            and to.replaces_history is not None
            and to.replaces_history(msgspec.Raw(b"[%b]" % fragment))
        ):
            # A new list, since an earlier request may still be joining the old one.
            self.fragments, self.unsigned, self.hash, self.hashed = Fragments(), [], None, 0
        if fragment:
            self.fragments.append(fragment)
        return fragment

    def _add_calls(self, calls: Calls, native: bool, to: Recipient, verbatim: bool) -> Calls:
        """Return the calls of an answer in the sent form."""
        pairs: list[tuple[ToolCall, ToolCall]] = []
        any_renamed = False
        for call in calls:
            sent_call = self._as_sent(call, native, to, verbatim)
            pairs.append((call, sent_call))
            if sent_call is not call:
                any_renamed = True
                if call.id:
                    self.renamed[call.id] = sent_call
        if not any_renamed:
            return calls
        self.sent_calls = pairs
        return [sent_call for _, sent_call in pairs]

    def _pair(self, calls: set[str], results: set[str], cut_off: bool, to: Recipient) -> None:
        """Drop calls of the provider's own tools that never got a result, and results whose call is
        no longer there: the API refuses both. The result of such a call may come in the answer
        after the next request, unless the call was cut off."""
        orphans = results - self.waiting
        if cut_off:
            orphans |= calls
            calls = set()
        if orphans:
            self._drop(len(self.fragments) - 1, orphans, to)
        if without_result := self.waiting - results:
            self._drop(self.waiting_at, without_result, to)
        self.waiting_at, self.waiting = len(self.fragments) - 1, calls

    def _drop(self, place: int, ids: set[str], to: Recipient) -> None:
        """Drop the parts of some calls from the message at a place."""
        # A new list, since an earlier request may still be joining the old one.
        fragment = self.fragments[place]
        if to.without_parts is not None:
            fragment = to.without_parts(fragment, ids)
        middle = [fragment] if fragment else []
        before, after = self.fragments[:place], self.fragments[place + 1 :]
        self.fragments = Fragments([*before, *middle, *after])
        self.unsigned = self.unsigned[:place]
        self.hash, self.hashed = None, 0
        if not fragment and place < self.answered:
            self.answered -= 1

    def _as_sent(self, call: ToolCall, native: bool, to: Recipient, verbatim: bool) -> ToolCall:
        if call.provider_kind and not native:  # to another provider it is a call of a function
            call = msgspec.structs.replace(call, provider_kind="")
        id = to.wire.call_id(call, to.family)
        if not id:
            return call
        if id in self.ids and not verbatim:
            base_id = id
            while id in self.ids:
                self.ids[base_id] += 1
                candidate = f"{base_id}_{self.ids[base_id]}"
                candidate_call = msgspec.structs.replace(call, provider_id=candidate)
                id = to.wire.call_id(candidate_call, to.family)
        self.ids.setdefault(id, 1)
        same = id == call.provider_id or id == wire_id(call)
        return call if same else msgspec.structs.replace(call, provider_id=id)

    def _sent_call(self, call: ToolCall) -> ToolCall:
        """Return an answered call with the id under which it was sent. Of identical calls
        without ids, the first one matches first."""
        for place, (one, sent_call) in enumerate(self.sent_calls):
            if one is call or (one.id == call.id and (one.id or one == call)):
                del self.sent_calls[place]
                return sent_call
        return self.renamed.get(call.id, call)

    def _end_batch(self, to: Recipient, names: Names) -> None:
        self.fragments.append(to.wire.results(self.batch, names, to.family))
        self.batch = []
        self.unanswered = 0

    def expire(self, now: float) -> None:
        """Replace the messages that the provider no longer takes."""
        if any(end <= now for _, end, _ in self.expiring):
            self.fragments = Fragments(self.unexpiring(now))
            self.expiring = [one for one in self.expiring if one[1] > now]
            self.hash, self.hashed = None, 0

    def leave_out_thinking(self, to: Recipient) -> bool:
        """Leave the thinking out of the answers so far; return False if none has any."""
        strip = to.without_thinking
        if strip is None:
            return False
        before = [*self.unsigned, *self.fragments[len(self.unsigned) : self.answered]]
        self.unsigned = [strip(fragment) for fragment in before]
        return self.unsigned != before

    def unexpiring(self, now: float = math.inf) -> list[bytes]:
        """Return the messages, with those that expire by `now` replaced."""
        fragments = list(self.fragments)
        for place, end, later in self.expiring:
            if end <= now:
                fragments[place] = later
        return fragments

    def begin_partial(self, to: Recipient, names: Names) -> None:
        """Add a fragment for the results so far of an incomplete batch."""
        self.fragments.append(to.wire.results(self.batch, names, to.family))
        self.is_partial = True

    def drop_partial(self) -> None:
        """Remove the fragment of `begin_partial`, because more items follow."""
        self.fragments.pop()
        self.is_partial = False
        if self.hashed > len(self.fragments):
            self.hash, self.hashed = None, 0

    def digest(self) -> bytes:
        if self.hash is None:
            self.hash = sha256()()
        # Hash only lengths and checksums: a tenth of the time of hashing everything, and enough
        # to identify a request.
        for fragment in self.fragments[self.hashed :]:
            self.hash.update(b"%d:%d;" % (len(fragment), crc32(fragment)))
        self.hashed = len(self.fragments)
        return self.hash.digest()


def _receivable(message: files.MessageT, to: Recipient) -> files.MessageT:
    """Return a message or a result with texts in place of the files that this model cannot
    receive."""
    if files.is_bound(message.content):
        message = files.hide_foreign(message, to.providers)
    return message if to.sees else hide_pictures(message)


def _omissions(block: Content, to: Recipient) -> Iterator[tuple[str, str]]:
    """Yield the texts that may replace a block, each with a note for the caller."""
    if not to.sees and (image := picture(block)) is not None:
        text = placeholder(image)
        yield text, f"{text[1:-1]}: the model accepts no pictures"
    for text in (files.left_out(block), files.foreign(block) if files.is_bound((block,)) else ""):
        if text:
            yield text, text[1:-1]


class Transcript:
    """An append-only list of user messages, model answers, and tool results.

    `append` takes `events.MessageAdded` or `content.Message`, `events.AssistantReplied` or
    `Completion`, and `(ToolCall, ToolResult)` pairs after the answer with these calls. The items
    belong to the caller and are never changed. One thread appends; any thread may read.

    A request costs only the items appended since the last one: `encode` encodes each item once per
    wire and maker of models.
    """

    __slots__ = (
        *("_bound", "_cached_values", "_calls", "_container_answer", "_encodings", "_items"),
        *("_lock", "_only_text", "clock", "last_answer", "uploads"),
    )

    def __init__(self, items: Sequence[Item] = ()) -> None:
        self._items: list[Item] = []
        # Calls by both ids, for tool messages that refer to one.
        self._calls: dict[str, ToolCall] = {}
        self._encodings: dict[object, _Encoding] = {}
        self._cached_values: dict[str, tuple[object, Any]] = {}
        self._lock = threading.Lock()
        self._bound = False  # True if an item has a file of one provider
        self._only_text = True  # True if no message and no result has anything but text
        # The conversation's last answer, even if it is no longer among the items.
        self.last_answer: Answer | None = None
        self._container_answer: Answer | None = None  # the last one with a container
        # Returns the Unix time of the next request. A conversation's is that of its last event, so
        # that a replay makes the same request.
        self.clock: Callable[[], float] = time.time
        # True if a message or a result refers to a file at a provider.
        self.uploads = False
        for item in items:
            self.append(item)

    @classmethod
    def from_messages(cls, messages: str | Sequence[Message | Completion]) -> Transcript:
        """Return a transcript of chat messages. A str is one user message. Raises
        `ConfigurationError` for anything else."""
        if isinstance(messages, str):
            return cls([Message(cast("tuple[TextContent, ...]", messages))])
        return cls(messages)

    @property
    def items(self) -> Sequence[Item]:
        """The appended items, in order. Do not change the list."""
        return self._items

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Transcript({len(self._items)} items)"

    def append(self, item: Item) -> None:
        """Add one item. Raises `ConfigurationError` for an object of another type, or for a tool
        message that answers no call."""
        if isinstance(item, tuple):
            if [type(part) for part in item] != [ToolCall, ToolResult]:
                raise _not_an_item(item)
        elif isinstance(item, Message):
            if item.role == "tool":
                call = self._calls.get(item.tool_call_id)
                if call is None:
                    call_ids = ", ".join(map(repr, self._calls)) or "none"
                    raise ConfigurationError(
                        "A tool message needs the tool_call_id of an earlier call"
                        f" ({call_ids}), not {item.tool_call_id!r}."
                    )
                item = (call, ToolResult(item.content))
            else:
                self._index_calls(item.tool_calls)
        elif isinstance(item, Completion):
            self._index_calls(item.calls)
        elif not isinstance(item, AssistantReplied | MessageEvent):  # pyright: ignore[reportUnnecessaryIsInstance]: a caller's object
            raise _not_an_item(item)
        if isinstance(item, Answer):
            self.last_answer = item
            if item.container:
                self._container_answer = item
        else:
            content = item[1].content if isinstance(item, tuple) else item.content
            for block in content:
                if type(block) is not TextContent:
                    self._only_text = False
                    if type(block) is FileContent:
                        self._bound = self._bound or bool(block.provider)
                        self.uploads = self.uploads or bool(block.file_id)
        self._items.append(item)

    def say(self, content: ContentLike) -> None:
        """Append a user message. Equivalent to `append(Message(content))`."""
        self.append(Message(blocks(content)))

    @property
    def pictures(self) -> bool:
        """True if a message or a tool result holds a picture."""
        return not self._only_text and any(
            has_picture(item[1].content if isinstance(item, tuple) else item.content)
            for item in self._items
            if not isinstance(item, Answer)
        )

    def container(self, wire: str, host: str) -> str:
        """Return the id of the container in which the provider last ran code, or "". A container
        belongs to one host, and requests name it in the form of one wire."""
        for answer in (self.last_answer, self._container_answer):
            if answer is not None and answer.details is not None and answer.container:
                is_same_provider = answer.wire == wire and answer.host in ("", host)
                return answer.container if is_same_provider else ""
        return ""

    def encode(
        self, to: Recipient, names: Names, hashed: bool, resume: bool = True
    ) -> tuple[Sequence[bytes], bytes]:
        """Return all items as messages of the recipient's wire, and a hash of them if `hashed`.

        New items are encoded with the current `names`; items already encoded keep their bytes. The
        native form of an answer goes back only where it may. For a model without vision, text
        replaces pictures. Without `resume`, texts replace the sound that the provider keeps for a
        while; the hash is the same. The list belongs to the transcript and grows; do not change it.
        """
        with self._lock:
            key = self._key(to) if self._bound else to.key
            encoding = self._encodings.get(key)
            if encoding is None:
                encoding = self._encodings[key] = _Encoding()
            end = len(self._items)
            if encoding.encoded < end:
                if encoding.is_partial:
                    encoding.drop_partial()
                for item in self._items[encoding.encoded : end]:
                    encoding.add(item, to, names, self._only_text)
                    encoding.encoded += 1
            if encoding.expiring:
                encoding.expire(self.clock())
            if encoding.batch and not encoding.is_partial:  # the request falls within a batch
                encoding.begin_partial(to, names)
            fragments = encoding.fragments if resume else encoding.unexpiring()
            if encoding.unsigned:
                fragments = [*encoding.unsigned, *fragments[len(encoding.unsigned) :]]
            return fragments, encoding.digest() if hashed else b""

    def leave_out_thinking(self, to: Recipient) -> bool:
        """Leave the signed thinking of all present answers out of later requests to a recipient
        that has refused it. Return False if no answer has any. The hash of a request stays the
        same."""
        with self._lock:
            encoding = self._encodings.get(self._key(to))
            return encoding is not None and encoding.leave_out_thinking(to)

    def fragments(
        self, wire: Wire, names: Names, model: str = "", host: str = "", sees: bool = True
    ) -> Sequence[bytes]:
        """Return the messages of `encode` for a model at a host."""
        return self.encode(Recipient(wire, model, host, sees), names, False)[0]

    def _key(self, to: Recipient) -> object:
        """Return the key of the encoding for a recipient. Only files of one provider distinguish
        recipients by their provider."""
        return (to.key, to.providers) if self._bound else to.key

    def notes(self, to: Recipient) -> tuple[str, ...]:
        """Return notes on the parts that a request to this recipient leaves out:

        - Native forms of other models (signed reasoning, encrypted items), which only their own
          provider can read. Texts, calls and results are kept. Such notes are returned only for the
          first request after an answer of another model.
        - Files and pictures that the model cannot receive, of the items since the last answer; of
          all items if another server gave that answer.
        """
        encoding = self._encodings.get(self._key(to) if self._bound else to.key)
        if encoding is None or (
            self._only_text and not encoding.left_out and not encoding.compacted_by
        ):
            return ()
        answers = (item for item in reversed(self._items) if isinstance(item, Answer))
        last = next(answers, None)
        return (*self._native_notes(to, encoding, last), *self._file_notes(to, encoding, last))

    def _native_notes(
        self, to: Recipient, encoding: _Encoding, last: Answer | None
    ) -> tuple[str, ...]:
        if last is None or to.may_receive_native(last):
            return ()
        compaction_notes: tuple[str, ...] = ()
        if encoding.compacted_by:
            compaction_notes = (
                f"{encoding.compacted_by} has compacted the history in a form that only it can"
                f" read: {to.model} was sent the whole history.",
            )
        destination = f"{to.model} at {to.only_host}" if to.only_host else to.model
        return compaction_notes + tuple(
            [
                f"{count} answer{'s' if count > 1 else ''} of {model_name} went to {destination} as"
                f" text and calls only, without the rest that {model_name} sent (such as signed or"
                " encrypted reasoning)."
                for model_name, count in encoding.left_out.items()
            ]
        )

    def _file_notes(
        self, to: Recipient, encoding: _Encoding, last: Answer | None
    ) -> tuple[str, ...]:
        all_items = last is None or (last.wire, last.host) != (to.wire.name, to.host)
        notes: dict[str, None] = {}
        fragments = encoding.fragments[0 if all_items else encoding.answered :]
        for item in reversed(self._items[: encoding.encoded]):
            if isinstance(item, Answer):
                if all_items:
                    continue
                break
            for block in (item[1] if isinstance(item, tuple) else item).content:
                if type(block) is TextContent:
                    continue
                for text, note in _omissions(block, to):
                    # A wire may still have encoded the file: the request itself decides.
                    json_text = msgspec.json.encode(text)[1:-1]
                    if any(json_text in fragment for fragment in fragments):
                        notes[f"Left out: {note}."] = None
        return tuple(reversed(notes))

    def cached(self, key: str, source: object, make: Callable[[], T]) -> T:
        """Return `make()`, cached under `key` while the same `source` object is passed."""
        entry = self._cached_values.get(key)
        if entry is None or entry[0] is not source:
            entry = self._cached_values[key] = (source, make())
        return entry[1]

    def _index_calls(self, calls: Sequence[ToolCall]) -> None:
        for call in calls:
            self._calls.update((id, call) for id in (call.id, call.provider_id) if id)


def _not_an_item(item: object) -> ConfigurationError:
    return ConfigurationError(
        "A transcript takes messages, answers (AssistantReplied, Completion) and"
        f" (ToolCall, ToolResult) pairs, not {item!r}."
    )


Messages = str | Sequence[Message | Completion] | Transcript


def as_transcript(messages: Messages) -> Transcript:
    """Return the messages that `LLM.completion` received as a transcript. Raises
    `ConfigurationError` if they are empty or of another type."""
    if isinstance(messages, Transcript):
        return messages
    if isinstance(messages, Mapping) or not isinstance(messages, str | list | tuple):
        raise ConfigurationError(
            "messages takes a str, a list of Message (and Completion), or a Transcript, not"
            f" {messages!r}."
        )
    if not messages:
        raise ConfigurationError("messages takes at least one message.")
    return Transcript.from_messages(messages)
