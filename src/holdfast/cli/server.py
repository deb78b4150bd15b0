"""A client of an agent server for the commands, which acts on the conversations there."""

from __future__ import annotations

import queue
import re
import shlex
import threading
from argparse import Namespace
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from holdfast import __version__
from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.cli.conversation_ids import find_matching
from holdfast.cli.exit_codes import UsageError
from holdfast.cli.files import read_key
from holdfast.errors import (
    ConfigurationError,
    ConversationNotFound,
    HoldfastError,
    KeyRefused,
    LLMTimeout,
    StoreError,
)
from holdfast.nesting import decode_json
from holdfast.observe.stats import Stats
from holdfast.observe.trace import RunTrace
from holdfast.remote import RemoteConversation, RemoteWorkspace
from holdfast.remote.journal_copy import read_page
from holdfast.remote.models import ServerModels
from holdfast.remote.server_client import conversation_path
from holdfast.store import Summary
from holdfast.tools import Cancellation

_CONNECT_SECONDS = 5.0
_FIRST_SECONDS, _SLOW_SECONDS = 1.0, 10.0  # seconds for the first try; for a slow server
_REQUEST_SECONDS = 20.0  # seconds until a request fails, short because a user waits
_WATCH_SECONDS, _RETURN_SECONDS = 1.0, 0.3  # between checks of a present and of a missing server
_PAGE = 1000
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Parts of the library's errors, and what the command line calls the same.
_OPTIONS_BY_ERROR = {
    "RemoteWorkspace: url": "--server",
    "RemoteWorkspace: key": "HOLDFAST_SERVER_KEY",
    "give the server's key as key": "the key goes into HOLDFAST_SERVER_KEY",
}


class ServerSummary(Summary, frozen=True):
    """A conversation in the server's listing, with its workspace. `started`: the server continues
    it by itself. `driven`: it was started, or runs until it rests."""

    workspace: str = ""
    started: bool = False
    error: str = ""


class PendingItem(msgspec.Struct, rename="camel"):
    """A question, or without one a call that waits for approval, and the conversation's id."""

    conversation: str
    call_id: str
    question: ev.Question | None = None


class ServerConversations:
    """A connection to an agent server, which `words` name in a command line. Its methods raise
    `UsageError`, `StoreError`."""

    tells_duplicates = False

    def __init__(
        self, url: str, key: str, words: Sequence[str], workspace: str | None = None
    ) -> None:
        self.words = words
        if not url.startswith(("http://", "https://")):
            hint = "" if "://" in url else f". Did you mean http://{url}?"
            form = "an agent server's address such as http://127.0.0.1:8765"
            raise UsageError(f"--server takes {form}, not {url!r}{hint}")
        if workspace is not None and not is_id(workspace):
            form = "up to 128 letters, digits and any of ._-"
            raise UsageError(f"--workspace takes {form}, not {workspace!r}")
        try:
            self.workspace = RemoteWorkspace(
                url, key, id=workspace, timeout=_REQUEST_SECONDS, connect_timeout=_CONNECT_SECONDS
            )
        except ConfigurationError as error:
            message = str(error)
            for text, option in _OPTIONS_BY_ERROR.items():
                message = message.replace(text, option)
            raise UsageError(message) from None
        self.address = self.workspace.url
        self._link = self.workspace.link
        self._followed: RemoteConversation | None = None
        self._events_queue: queue.SimpleQueue[ev.AnyEvent] = queue.SimpleQueue()

    def close(self) -> None:
        """Close the connections. Nothing ends on the server. Idempotent."""
        if self._followed is not None:
            self._followed.detach()
        self._link.close()

    def named_models(self) -> list[str]:
        """Return the names of the server's models; none on a server without them."""
        try:
            return [model.name for model in ServerModels(self.workspace).list()]
        except ConfigurationError:
            return []

    # --- availability ---

    def check(self) -> None:
        """Raise an error unless the server answers and accepts the key."""
        where = f"{self.address} is not an agent server's address"
        other = f"{where}, or the server has another version"
        for timeout in (_FIRST_SECONDS, _SLOW_SECONDS):
            try:
                self._get("/api/conversations", _Page, timeout, limit=1)
                return
            except KeyRefused as error:
                raise UsageError(
                    f"the agent server {self.address} does not know this key. Give the key that"
                    " the server printed, or one made with `holdfast serve keys add`, in"
                    " HOLDFAST_SERVER_KEY or with --server-key-file"
                ) from error
            except ConversationNotFound as error:
                raise UsageError(f"{other}: {error}") from error
            except ConfigurationError as error:
                if "no such path" in str(error):
                    raise UsageError(other) from error
                raise
            except StoreError as error:
                slow = isinstance(error.__cause__, LLMTimeout)
                if not slow or timeout == _SLOW_SECONDS:
                    raise self._unreachable(error) from error

    def _unreachable(self, error: StoreError) -> HoldfastError | UsageError:
        text = str(error)
        if "certificate" in text.lower():
            hint = "SSL_CERT_FILE=FILE names the certificates to trust, such as the server's own"
            return UsageError(f"{text.rstrip('.')}. {hint}")
        if " TLS " in text:
            return StoreError(f"{text.rstrip('.')}. Does the server use plain http?")
        if "could not be reached" in text and is_loopback(self.address):
            text = text.removesuffix("Check url and that the server runs.").rstrip(". ")
            return StoreError(f"{text}. Is the server running? `holdfast serve` starts one.")
        return error

    def _answers(self, cancelled: Cancellation) -> bool:
        for timeout in (_FIRST_SECONDS, _SLOW_SECONDS):
            try:
                self._link.request("GET", "/health", timeout=timeout, cancelled=cancelled)
                return True
            except StoreError as error:
                if not isinstance(error.__cause__, LLMTimeout):
                    return False
            except HoldfastError:
                return True  # any answer shows that the server lives
        return False

    @contextmanager
    def watched(self, notice: Callable[[str], object]) -> Generator[Callable[[], bool]]:
        """Call `notice` inside the context when the server disappears and comes back. The result
        is True while it is gone."""
        stop, unreachable = Cancellation(), threading.Event()
        away = f"waiting for the agent server, which cannot be reached now ({self.address}) ..."

        def watch() -> None:
            while not stop.wait(_RETURN_SECONDS if unreachable.is_set() else _WATCH_SECONDS):
                there = self._answers(stop)
                if stop or there is not unreachable.is_set():
                    continue
                unreachable.clear() if there else unreachable.set()
                notice("the agent server is back." if there else away)

        thread = threading.Thread(target=watch, name="holdfast-watch", daemon=True)
        thread.start()
        try:
            yield unreachable.is_set
        finally:
            stop.cancel()
            thread.join(1.0)

    @contextmanager
    def understood(self) -> Generator[None]:
        """Turn an answer of an unexpected shape into a `StoreError` inside the context."""
        try:
            yield
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"The answer of {self.address} cannot be read by this Holdfast ({__version__}). Is"
                f" it an agent server of another version? {error}"
            ) from error

    # --- conversations ---

    def list(
        self, *, status: str | None = None, limit: int | None = None, tags: Sequence[str] = ()
    ) -> list[ServerSummary]:
        summaries: list[ServerSummary] = []
        cursor: str | None = None
        while limit is None or len(summaries) < limit:
            most = _PAGE if limit is None else min(_PAGE, limit - len(summaries))
            bounds: dict[str, Any] = {"cursor": cursor, "limit": most}
            page = self._get("/api/conversations", _Page, status=status, tag=tags or None, **bounds)
            summaries += page.items
            cursor = page.next
            if cursor is None:
                break
        return summaries

    def entry(self, id: str) -> ServerSummary | None:
        """Return one conversation, None for an unknown id."""
        try:
            return self._get(conversation_path(id), ServerSummary)
        except ConversationNotFound:
            return None

    def matching(self, id: str) -> ServerSummary | None:
        """Return the conversation with this id or prefix, or None. Raises `UsageError`."""
        exact = self.entry(id) if is_id(id) else None
        return find_matching(self.list(), id) if exact is None else exact

    def find(self, id: str) -> ServerSummary:
        """Return the conversation with this id or prefix. Raises `UsageError`."""
        entry = self.matching(id)
        if entry is None:
            hint = shlex.join(["holdfast", "list", *self.words])
            raise UsageError(f"there is no conversation {id!r} on {self.address}. See: {hint}")
        return entry

    def read(self, id: str) -> list[ev.AnyEvent]:
        journal: list[ev.AnyEvent] = []
        while True:
            query = {"after_seq": journal[-1].seq if journal else 0, "limit": _PAGE}
            answer = self._link.request("GET", f"{conversation_path(id)}/events", query=query)
            with self.understood():
                events, last_seq = read_page(answer.read())
            journal += events
            if not events or events[-1].seq >= last_seq:
                return journal

    def stats(self, id: str) -> list[Stats]:
        """Return the statistics of a conversation and of its descendants."""
        return self._get(f"{conversation_path(id)}/stats", _TreeStats).conversations

    def trace(self, id: str, limit: int) -> RunTrace:
        """Return the trace of a conversation, with at most `limit` spans."""
        return self._get(f"{conversation_path(id)}/trace", RunTrace, limit=limit)

    def pending(self, id: str, timeout: float) -> list[PendingItem]:
        """Return what a conversation, and those that its calls have spawned, ask the user."""
        return self._get(f"{conversation_path(id)}/pending", _PendingItems, timeout).items

    def follow(self, id: str, after_seq: int, timeout: float) -> Iterator[ev.AnyEvent]:
        """Yield the events after `after_seq` until none has come for `timeout` seconds."""
        if self._followed is None:
            self._followed = RemoteConversation(None, self.workspace, id)
            self._followed.register_event_callback(self._events_queue.put, after_seq)
        while True:
            try:
                event = self._events_queue.get(timeout=timeout)
            except queue.Empty:
                if self._followed.failure is not None:
                    raise self._followed.failure from None
                return
            if event.seq > after_seq:
                yield event

    def _get(
        self,
        path: str,
        kind: Any,
        timeout: float | None = None,
        method: str = "GET",
        **query: object,
    ) -> Any:
        with self.understood():
            answer = self._link.request(method, path, query=query, timeout=timeout).read()
            return decode_json(answer, kind)

    # --- commands ---

    def post(self, id: str, command: cmd.Command, key: str | None = None) -> bool:
        """Have the server carry out a command, unless it has seen the `key` before."""
        what, body = _order(command)
        self._link.request("POST", f"{conversation_path(id)}/{what}", body, idempotency_key=key)
        return True

    def refusal(self, id: str, key: str) -> str:
        """Return "": `post` raises the error of a refused command."""
        return ""

    def start(self, id: str) -> None:
        """Make the server continue the conversation from now on, with or without clients."""
        self._link.request("POST", f"{conversation_path(id)}/start")

    def run(self, id: str) -> str:
        """Have the server continue the conversation, unless it is paused. Return its status, ""
        for a spawned conversation, which its parent drives."""
        entry = self.find(id)
        if entry.spawner:
            return ""
        if entry.started or entry.status == "paused":
            return entry.status
        return self._get(f"{conversation_path(id)}/run", _StatusReply, method="POST").status


def connect(
    options: Namespace, env: Mapping[str, str], url: str, workspace: str | None = None
) -> ServerConversations:
    """Return the conversations of the server at `url`, once it has accepted the key from options or
    environment. Raises `UsageError`, `HoldfastError`."""
    words, file = ["--server", url], options.server_key_file
    key = env.get("HOLDFAST_SERVER_KEY", "").strip()
    if file is not None:
        words += ["--server-key-file", file]
        key = read_key(file, "--server-key-file")
    if not key:
        raise UsageError(
            "no key for the agent server was found. Set HOLDFAST_SERVER_KEY, or give"
            " --server-key-file FILE; `holdfast serve` printed one when it was first started,"
            " `holdfast serve keys add` makes another"
        )
    server = ServerConversations(url, key, words, workspace)
    server.check()
    return server


def is_loopback(url: str) -> bool:
    """Return True if an address is this machine's own."""
    return urlsplit(url).hostname in _LOOPBACK


def is_id(text: str) -> bool:
    """Return True if a server accepts the text as an id."""
    return re.fullmatch(r"[A-Za-z0-9._-]{1,128}", text) is not None and text.strip(".") != ""


def _order(command: cmd.Command) -> tuple[str, dict[str, Any]]:
    """Return the route of a command, and the body that it takes."""
    match command:
        case cmd.Send(content):
            return "messages", {"content": content}
        case cmd.Approve(call_id, arguments_hash, arguments):
            edits = {} if arguments is None else {"arguments": arguments}
            return "approve", {"callId": call_id, "argumentsHash": arguments_hash, **edits}
        case cmd.Reject(call_id, reason):
            return "reject", {"callId": call_id, "reason": reason}
        case cmd.Answer(question_id, values, reason):
            return "answer", {"questionId": question_id, "values": values, "reason": reason}
        case cmd.Condense(instructions):
            return "condense", {"instructions": instructions}
        case cmd.Ask(question, aside):
            return "ask", {"question": question, "aside": aside}
        case cmd.Use(agent, by):
            return "use", {"agent": agent, "by": by}
        case cmd.Schedule() | cmd.CancelTimer() | cmd.Label():
            paths = {cmd.Schedule: "timers", cmd.CancelTimer: "timers/cancel", cmd.Label: "labels"}
            path = paths[type(command)]
            body = cast("dict[str, Any]", msgspec.to_builtins(command))
            del body["command"]
            return path, body
        case _:
            return type(command).__name__.lower(), {}


class _Page(msgspec.Struct):
    items: list[ServerSummary]
    next: str | None = None


class _TreeStats(msgspec.Struct):
    conversations: list[Stats]


class _PendingItems(msgspec.Struct):
    items: list[PendingItem]


class _StatusReply(msgspec.Struct):
    status: str
