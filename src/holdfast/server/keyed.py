"""What an idempotency key stands for: one request of one conversation, which is done once, and
answered alike however often it comes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.errors import ConfigurationError, ToolValidationError
from holdfast.server.records import Record, Records

_ABOUT = "what a request came to"

Call = tuple[str, str]  # its id, and its arguments' hash


class _Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """`calls` are those that a decision is about; `error` and `message` are why the request did not
    fit, if it did not."""

    calls: list[Call] = []
    error: str = ""
    message: str = ""


class Keyed:
    """The keys of requests to conversations. Thread-safe. A command itself is done once by way of
    its inbox; kept here is for what a key was given, and what no inbox knows once a command is
    done: the calls that it was about, and that it did not fit."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def once(
        self,
        record: Record,
        key: str,
        asked: object,
        work: Callable[[list[Call]], None],
        calls: Callable[[], list[Call]] = list,
    ) -> None:
        """Do `work`, about the `calls` of the first time. Raises `Conflict` if the key stood for
        something else, `ConfigurationError` and `ToolValidationError` of `work`, also the next
        time, when it is not done again."""
        if len(key) > 500:
            raise ConfigurationError("An idempotency key takes at most 500 characters.")
        # no key that a client gives for something else has a line's end
        name = f"\n{record.number}\n{key}"
        digest = self._records.seal.digest(msgspec.json.encode(asked, order="deterministic"))
        found = self._records.answered(record.tenant, name, digest)
        if found is None:
            # Not forced to the disk: after a loss of power the inbox still knows the key.
            found = self._records.keep(
                record.tenant, name, digest, msgspec.json.encode(_Kept(calls())), forced=False
            )
        kept = msgspec.json.decode(found, type=_Kept)
        if kept.error:
            text = self._records.seal.open(bytes.fromhex(kept.message), _ABOUT).decode()
            raise (
                ToolValidationError(text)
                if kept.error == ToolValidationError.__name__
                else ConfigurationError(text)
            )
        try:
            work(kept.calls)
        except (ConfigurationError, ToolValidationError) as error:
            sealed = self._records.seal.seal(
                str(error).encode(errors="replace"), _ABOUT
            ).hex()  # it may quote arguments
            self._records.amend(
                record.tenant, name, msgspec.json.encode(_Kept(error=_kind(error), message=sealed))
            )
            raise


def _kind(error: Exception) -> str:
    kind = ToolValidationError if isinstance(error, ToolValidationError) else ConfigurationError
    return kind.__name__
