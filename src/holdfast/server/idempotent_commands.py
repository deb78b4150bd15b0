"""Idempotency keys of requests to a conversation. Each key stands for one request, which is
executed once and answered the same way each time."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager

import msgspec

from holdfast import errors
from holdfast.error_forms import ErrorForm, Field, error_of_form, form_of_error
from holdfast.server.records import ConversationRecord, Records

_ABOUT = "what a request came to"  # part of the sealed data: a change makes old records unreadable

# The errors that a repeated request raises again.
_REFUSALS = (
    errors.ToolValidationError,
    errors.Conflict,
    errors.NotFound,
    errors.Denied,
    errors.ConfigurationError,
)

Call = tuple[str, str]  # a call's id and the hash of its arguments


class RefusedRequest(Exception):
    """A request was refused with `error`, which is its outcome. Other errors, such as those of
    opening a conversation, say nothing of the request: it may be made again."""

    def __init__(self, error: errors.HoldfastError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def refusing() -> Generator[None]:
    """Make an error of the block the outcome of the request that it carries out."""
    try:
        yield
    except errors.ConversationNotFound:
        raise  # not the outcome: a deletion that fails gives the conversation back
    except _REFUSALS as error:
        raise RefusedRequest(error) from error


class _CommandOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored outcome of a request. `calls` are the tool calls of a decision. If the request
    was invalid, `error` is the name of the error's class; the sealed `message` and `fields` are
    the error's."""

    calls: list[Call] = []
    error: str = ""
    message: str = ""
    fields: str = ""  # JSON; none in records of earlier versions


class IdempotentCommands:
    """The idempotency keys of requests to conversations. Thread-safe.

    The conversation's inbox makes a command run only once, and keeps the reason of a refusal. The
    records of keys add the facts that the inbox lacks: the calls of a decision, and the whole
    error, which may quote secret values.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    def do(
        self,
        record: ConversationRecord,
        key: str | None,
        request: object,
        work: Callable[[list[Call]], object],
        calls: Callable[[], list[Call]] = list,
        child: str = "",
    ) -> None:
        """Do `work` with the `calls` of the first request under this key, or with the present ones
        without a key. Raises `Conflict` if the key was used for another request. A repeated request
        of which `work` or `calls` raised `RefusedRequest` raises the same error again.

        Args:
            record: The conversation, or the one above it that a client created.
            key: The client's key.
            request: The request, in a form that is equal for equal requests.
            work: Carries the request out.
            calls: Returns the tool calls that the request is about.
            child: The store id of the conversation if it was spawned.
        """
        try:
            if key is None:
                work(calls())
                return
            self._do_with_key(record, f"{child}\n{key}" if child else key, request, work, calls)
        except RefusedRequest as refused:
            raise refused.error from refused.error.__cause__

    def _do_with_key(
        self,
        record: ConversationRecord,
        key: str,
        request: object,
        work: Callable[[list[Call]], object],
        calls: Callable[[], list[Call]],
    ) -> None:
        # A key that a client gives contains no newline, so the names do not collide.
        name = f"\n{record.number}\n{key}"
        digest = self._records.seal.digest(msgspec.json.encode(request, order="deterministic"))
        stored = self._records.find_answer(record.tenant, name, digest)
        if stored is None:
            try:
                # Not synced to the disk: after a power loss the inbox still has the key.
                first, forced = _CommandOutcome(calls()), False
            except RefusedRequest as refused:  # the inbox never hears of it
                first, forced = self._refusal(refused.error), True
            data = msgspec.json.encode(first)
            stored = self._records.store_answer(record.tenant, name, digest, data, forced)
        done = msgspec.json.decode(stored, type=_CommandOutcome)
        if done.error:
            fields = msgspec.json.decode(self._unseal(done.fields) or b"{}", type=dict[str, Field])
            form = ErrorForm(done.error, self._unseal(done.message).decode(), fields)
            raise error_of_form(form, errors.ConfigurationError)
        try:
            work(done.calls)
        except RefusedRequest as refused:
            outcome = self._refusal(refused.error)
            self._records.replace_answer(record.tenant, name, msgspec.json.encode(outcome))
            raise

    def _refusal(self, error: errors.HoldfastError) -> _CommandOutcome:
        form = form_of_error(error)
        message = self._seal(form.message.encode(errors="replace"))
        fields = self._seal(json.dumps(form.details).encode())
        return _CommandOutcome(error=form.type, message=message, fields=fields)

    def _seal(self, data: bytes) -> str:
        """Seal data that may quote arguments."""
        return self._records.seal.seal(data, _ABOUT).hex()

    def _unseal(self, text: str) -> bytes:
        return self._records.seal.open(bytes.fromhex(text), _ABOUT) if text else b""
