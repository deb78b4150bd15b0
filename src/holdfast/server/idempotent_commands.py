"""Idempotency keys of requests to a conversation. Each key stands for one request, which is
executed once and answered the same way each time."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast import errors
from holdfast.server.records import ConversationRecord, Records

_ABOUT = "what a request came to"  # part of the sealed data: a change makes old records unreadable

# The kinds of errors that a repeated request raises again, the more special ones first.
_KINDS: tuple[type[errors.HoldfastError], ...] = (
    errors.ToolValidationError,
    errors.NotPending,
    errors.Conflict,
    errors.NotFound,
    errors.Denied,
    errors.ConfigurationError,
)

Call = tuple[str, str]  # a call's id and the hash of its arguments


class _CommandOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored outcome of a request. `calls` are the tool calls of a decision. `error` and
    `message` describe why the request was invalid, if it was."""

    calls: list[Call] = []
    error: str = ""
    message: str = ""


class IdempotentCommands:
    """The idempotency keys of requests to conversations. Thread-safe.

    The conversation's inbox makes a command run only once. These records keep the facts that the
    inbox loses once a command is done: the calls that a decision concerned, and why a request
    was invalid.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    def once(
        self,
        record: ConversationRecord,
        key: str | None,
        asked: object,
        work: Callable[[list[Call]], None],
        calls: Callable[[], list[Call]] = list,
    ) -> None:
        """Do `work` with the `calls` of the first request under this key, or with the present ones
        without a key. Raises `Conflict` if the key was used for another request. A repeated request
        that was refused raises the same error again."""
        if key is None:
            work(calls())
            return
        # A key that a client gives elsewhere contains no newline, so the names do not collide.
        name = f"\n{record.number}\n{key}"
        digest = self._records.seal.digest(msgspec.json.encode(asked, order="deterministic"))
        found = self._records.find_answer(record.tenant, name, digest)
        if found is None:
            # Not synced to the disk: after a power loss the inbox still has the key.
            first = msgspec.json.encode(_CommandOutcome(calls()))
            found = self._records.store_answer(record.tenant, name, digest, first, forced=False)
        kept = msgspec.json.decode(found, type=_CommandOutcome)
        if kept.error:
            text = self._records.seal.open(bytes.fromhex(kept.message), _ABOUT).decode()
            raise next(kind for kind in _KINDS if kind.__name__ == kept.error)(text)
        try:
            work(kept.calls)
        except errors.ConversationNotFound:
            raise  # not the outcome: a deletion that fails gives the conversation back
        except _KINDS as error:
            kind = next(kind for kind in _KINDS if isinstance(error, kind))
            # Sealed, because the message may quote arguments.
            sealed = self._records.seal.seal(str(error).encode(errors="replace"), _ABOUT)
            outcome = _CommandOutcome(error=kind.__name__, message=sealed.hex())
            self._records.replace_answer(record.tenant, name, msgspec.json.encode(outcome))
            raise
