"""`Transcript`: the items of a conversation so far, with their encoding for each wire, built
once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast
from zlib import crc32

import msgspec

from holdfast.content import ContentLike, Message, TextContent, ToolCall, ToolResult, blocks
from holdfast.errors import ConfigurationError
from holdfast.events import Assistant
from holdfast.events import Message as MessageEvent
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.pictures import has_picture, hide_pictures
from holdfast.llm.wires.calls import wire_id
from holdfast.llm.wires.makers import maker
from holdfast.llm.wires.protocol import Names, Wire

T = TypeVar("T")

# The maker of a model, and the only host that accepts its native forms ("" for any host).
NativeScope = tuple[str, str]

CallResult = tuple[ToolCall, ToolResult]
Item = Message | MessageEvent | Assistant | Completion | CallResult


class _Cache:
    """The encoded fragments for one wire and one family of a maker's models (at one host if the
    wire is bound), and the state needed to continue encoding."""

    __slots__ = (
        "batch",
        "encoded",
        "family",
        "fragments",
        "hash",
        "hashed",
        "ids",
        "left_out",
        "partial",
        "renamed",
        "sent_calls",
        "unanswered",
    )

    def __init__(self, family: str) -> None:
        self.family = family
        self.fragments: list[bytes] = []
        self.encoded = 0  # number of items encoded
        self.batch: list[CallResult] = []  # results since the last assistant item
        self.unanswered = 0  # number of that item's calls without a result
        # True if more results may join the batch of the last fragment.
        self.partial = False
        self.left_out: dict[str, int] = {}  # model -> number of its native forms left out
        self.hash: Any = None  # hash of the first `hashed` fragments
        self.hashed = 0
        self.ids: dict[str, int] = {}  # call id as sent -> number of calls that wanted it
        # The last answer's calls, each with the call as sent, if any id was changed.
        self.sent_calls: list[tuple[ToolCall, ToolCall]] = []
        # Holdfast's id of a call -> the id as sent, if they differ.
        self.renamed: dict[str, str] = {}

    def assign_ids(
        self, calls: Sequence[ToolCall], wire: Wire, verbatim: bool = False
    ) -> Sequence[ToolCall]:
        """Return an answer's calls with ids that are legal on the wire and unique.

        An id that is both already stays unchanged. All ids stay unchanged in an answer that goes
        back `verbatim` to the host that assigned them.
        """
        self.sent_calls = []
        if not calls:
            return calls
        sent = [self._with_id(call, wire, verbatim) for call in calls]
        if any(one is not call for one, call in zip(sent, calls, strict=True)):
            self.sent_calls = list(zip(calls, sent, strict=True))
            self.renamed.update(
                (call.id, one.provider_id)
                for call, one in self.sent_calls
                if call.id and one is not call
            )
        return sent

    def _with_id(self, call: ToolCall, wire: Wire, verbatim: bool) -> ToolCall:
        id = wire.call_id(call, self.family)
        if not id:
            return call
        if id in self.ids and not verbatim:
            wanted = id
            while id in self.ids:
                self.ids[wanted] += 1
                id = wire.call_id(
                    msgspec.structs.replace(call, provider_id=f"{wanted}_{self.ids[wanted]}"),
                    self.family,
                )
        self.ids.setdefault(id, 1)
        return call if id == wire_id(call) else msgspec.structs.replace(call, provider_id=id)

    def sent_call(self, call: ToolCall) -> ToolCall:
        """Return an answered call with the id under which it was sent. Of identical calls
        without ids, the first one matches first."""
        for place, (one, sent) in enumerate(self.sent_calls):
            if one is call or (one.id == call.id and (one.id or one == call)):
                del self.sent_calls[place]
                return sent
        id = self.renamed.get(call.id)
        return call if id is None else msgspec.structs.replace(call, provider_id=id)

    def end_batch(self, wire: Wire, names: Names) -> None:
        self.fragments.append(wire.results(self.batch, names))
        self.batch = []
        self.unanswered = 0

    def drop_partial(self) -> None:
        self.fragments.pop()
        self.partial = False
        if self.hashed > len(self.fragments):
            self.hash, self.hashed = None, 0


class Transcript:
    """An append-only list of user messages, model answers, and tool results.

    `append` takes `events.Message` or `content.Message`, `events.Assistant` or `Completion`, and
    `(ToolCall, ToolResult)` pairs, which follow the answer that requested them. The items belong to
    the caller and are never changed. One thread appends; any thread may read.

    A request costs only the items appended since the last one: `fragments` encodes each item
    once per wire and maker of models.
    """

    __slots__ = ("_cached_values", "_caches", "_calls", "_items", "_lock", "last_answer")

    def __init__(self, items: Sequence[Item] = ()) -> None:
        self._items: list[Item] = []
        # Calls by both ids, for tool messages that refer to one.
        self._calls: dict[str, ToolCall] = {}
        self._caches: dict[tuple[str, NativeScope, str, bool], _Cache] = {}
        self._cached_values: dict[str, tuple[object, object]] = {}
        self._lock = threading.Lock()
        # The conversation's last answer, even if it is no longer among the items.
        self.last_answer: Assistant | Completion | None = None
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
        if isinstance(item, Message):
            if item.role == "tool":
                item = (self._call_by_id(item.tool_call_id), ToolResult(item.content))
            else:
                self._index_calls(item.tool_calls)
        elif isinstance(item, Completion):
            self._index_calls(item.calls)
        elif not isinstance(item, Assistant | MessageEvent) and not _is_call_result(item):
            raise ConfigurationError(
                "A transcript takes messages, answers (Assistant, Completion) and (ToolCall,"
                f" ToolResult) pairs, not {item!r}."
            )
        if isinstance(item, Assistant | Completion):
            self.last_answer = item
        self._items.append(item)

    def say(self, content: ContentLike) -> None:
        """Append a user message. Equivalent to `append(Message(content))`."""
        self.append(Message(blocks(content)))

    @property
    def pictures(self) -> bool:
        """True if a message or a tool result holds a picture."""
        return any(
            has_picture(item[1].content if isinstance(item, tuple) else item.content)
            for item in self._items
            if not isinstance(item, Assistant | Completion)
        )

    def fragments(
        self, wire: Wire, names: Names, model: str = "", host: str = "", sees: bool = True
    ) -> Sequence[bytes]:
        """Return all items as messages of `wire`. New items are encoded with the current `names`;
        items already encoded keep their bytes.

        An answer's `native` form goes back to the wire that it came from. It is left out if
        `model` is known to have another maker. It is also left out if `host` is known to differ
        and the wire's native forms are valid at one host only. For a model without vision
        (`sees` is False), text replaces pictures. The list belongs to the transcript and grows;
        do not change it.
        """
        key = _key(wire, model, host, sees)
        _, scope, family, _ = key
        with self._lock:
            cache = self._caches.get(key)
            if cache is None:
                cache = self._caches[key] = _Cache(family)
            end = len(self._items)
            if cache.partial and cache.encoded < end:
                cache.drop_partial()
            while cache.encoded < end:
                item = self._items[cache.encoded]
                if not sees and not isinstance(item, Assistant | Completion):
                    item = (
                        (item[0], hide_pictures(item[1]))
                        if isinstance(item, tuple)
                        else hide_pictures(item)
                    )
                self._encode(item, cache, wire, names, scope)
                cache.encoded += 1
            if cache.batch and not cache.partial:  # the request falls within a batch
                cache.fragments.append(wire.results(cache.batch, names))
                cache.partial = True
            return cache.fragments

    def digest(self, wire: Wire, model: str = "", host: str = "", sees: bool = True) -> bytes:
        """Return a hash of all fragments so far. The cost is proportional to the fragments since
        the last call."""
        with self._lock:
            cache = self._caches[_key(wire, model, host, sees)]
            if cache.hash is None:
                from hashlib import sha256  # 3 ms of import

                cache.hash = sha256()
            # Hash only lengths and checksums: a tenth of the time of hashing everything, and enough
            # to identify a request.
            new = cache.fragments[cache.hashed :]
            cache.hash.update(
                b"".join([b"%d:%d;" % (len(fragment), crc32(fragment)) for fragment in new])
            )
            cache.hashed = len(cache.fragments)
            return cache.hash.digest()

    def notes(
        self, wire: Wire, model: str = "", host: str = "", sees: bool = True
    ) -> tuple[str, ...]:
        """Return notes on the parts of earlier answers that a request to `model` leaves out.

        These are native forms of other models (signed reasoning, encrypted items), which only
        their own provider can read. Texts, calls and results are kept. The notes are returned
        only for the first request after an answer of another model.
        """
        key = _key(wire, model, host, sees)
        _, scope, _, _ = key
        with self._lock:
            cache = self._caches.get(key)
        if cache is None or not cache.left_out:
            return ()
        last = next(
            (item for item in reversed(self._items) if isinstance(item, Assistant | Completion)),
            None,
        )
        if last is None or _may_receive_native(last, wire, scope):
            return ()
        destination = f"{model} at {host}" if scope[1] else model
        return tuple(
            f"{count} answer{'s' if count > 1 else ''} of {model_name} went to {destination} as"
            f" text and calls only, without the rest that {model_name} sent (such as signed or"
            " encrypted reasoning)."
            for model_name, count in cache.left_out.items()
        )

    def cached(self, key: str, source: object, make: Callable[[], T]) -> T:
        """Return `make()`, cached under `key` while the same `source` object is passed."""
        entry = self._cached_values.get(key)
        if entry is None or entry[0] is not source:
            entry = self._cached_values[key] = (source, make())
        return cast(T, entry[1])

    # --- one item ---

    def _encode(
        self, item: Item, cache: _Cache, wire: Wire, names: Names, scope: NativeScope
    ) -> None:
        out = cache.fragments
        if type(item) is tuple:
            cache.batch.append((cache.sent_call(item[0]), item[1]))
            cache.unanswered -= 1
            if cache.unanswered <= 0:
                cache.end_batch(wire, names)
            return
        if cache.batch:  # an incomplete batch, in messages written by hand
            cache.end_batch(wire, names)
        if isinstance(item, Assistant | Completion):
            native_allowed = _may_receive_native(item, wire, scope)
            if not native_allowed and item.native:
                cache.left_out[item.model or item.wire] = (
                    cache.left_out.get(item.model or item.wire, 0) + 1
                )
            native = item.native if native_allowed else NO_NATIVE
            calls = cache.assign_ids(item.calls, wire, wire.bound and bool(native))
            fragment = wire.assistant(item.text, calls, native, names, cache.family)
            if fragment:
                out.append(fragment)
            cache.unanswered = len(item.calls)
        elif isinstance(item, Message) and item.role == "system":
            out.append(wire.system(item.text))
        elif isinstance(item, Message) and item.role == "assistant":
            fragment = wire.assistant(
                item.text, cache.assign_ids(item.tool_calls, wire), NO_NATIVE, names, cache.family
            )
            if fragment:
                out.append(fragment)
            cache.unanswered = len(item.tool_calls)
        else:
            out.append(wire.user(cast(Message, item).content))

    def _index_calls(self, calls: Sequence[ToolCall]) -> None:
        for call in calls:
            for id in (call.id, call.provider_id):
                if id:
                    self._calls[id] = call

    def _call_by_id(self, id: str) -> ToolCall:
        if id not in self._calls:
            known = ", ".join(map(repr, self._calls)) or "none"
            raise ConfigurationError(
                f"A tool message needs the tool_call_id of an earlier call ({known}), not {id!r}."
            )
        return self._calls[id]


def _key(wire: Wire, model: str, host: str, sees: bool) -> tuple[str, NativeScope, str, bool]:
    return wire.name, (maker(model), host if wire.bound else ""), wire.family(model, host), sees


Messages = str | Sequence[Message | Completion] | Transcript


def _may_receive_native(item: Assistant | Completion, wire: Wire, scope: NativeScope) -> bool:
    """Return True if the native form of an answer may be sent to `scope` over `wire`. An unknown
    maker or host counts as the same."""
    their_maker = maker(item.model)
    if item.wire != wire.name or (their_maker and scope[0] and their_maker != scope[0]):
        return False
    return not scope[1] or not item.host or item.host == scope[1]


def _is_call_result(item: Any) -> bool:
    return type(item) is tuple and [type(part) for part in cast("tuple[Any, ...]", item)] == [
        ToolCall,
        ToolResult,
    ]


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
