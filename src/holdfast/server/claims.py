"""Calls that clients run: which client claimed each, which clients are alive, and which calls
get no answer any more and are settled by the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.commands import Settle


class OfferedCall(NamedTuple):
    """A call offered to clients. `runner` is the client that claimed it, or "". `timeout` is the
    tool's, in seconds."""

    call_id: str
    runner: str
    timeout: float | None


class _TrackedCall:
    __slots__ = ("runner", "since", "timeout")

    def __init__(self, offered: OfferedCall, since: float) -> None:
        self.runner = offered.runner
        self.timeout = offered.timeout
        self.since = since  # the time of the offer or the claim


class Claims:
    """The offered and claimed calls of all conversations. Thread-safe.

    Times count from the moment at which this process first learned of an offer or a claim, so
    they start anew after a restart.
    """

    def __init__(self, claim_timeout: float, grace: float, clock: Callable[[], float]) -> None:
        self._claim_timeout = claim_timeout
        self._grace = grace
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: dict[
            tuple[str, str], dict[str, _TrackedCall]
        ] = {}  # by tenant and conversation
        self._seen: dict[tuple[str, str], float] = {}  # last sign of life, by tenant and client

    def seen(self, tenant: str, client: str) -> None:
        """Record that a client is alive."""
        with self._lock:
            self._seen[tenant, client] = self._clock()

    def update(self, tenant: str, id: str, offers: Sequence[OfferedCall]) -> None:
        """Replace the offered and claimed calls of a conversation."""
        with self._lock:
            known = self._calls.get((tenant, id), {})
            now = self._clock()
            calls: dict[str, _TrackedCall] = {}
            for offered in offers:
                call = known.get(offered.call_id)
                calls[offered.call_id] = (
                    call
                    if call is not None and call.runner == offered.runner
                    else _TrackedCall(offered, now)
                )
            if calls:
                self._calls[tenant, id] = calls
            else:
                self._calls.pop((tenant, id), None)

    def due(self) -> list[tuple[str, str, Settle]]:
        """Return the calls to settle now: tenant, conversation and command. A call is returned
        each time until `update` removes it."""
        found: list[tuple[str, str, Settle]] = []
        with self._lock:
            now = self._clock()
            for (tenant, id), calls in self._calls.items():
                for call_id, call in calls.items():
                    if (settle := self._settle(tenant, call_id, call, now)) is not None:
                        found.append((tenant, id, settle))
            runners = {
                (tenant, call.runner)
                for (tenant, _), calls in self._calls.items()
                for call in calls.values()
            }
            for key in [
                key
                for key, seen in self._seen.items()
                if now - seen > self._grace and key not in runners
            ]:
                del self._seen[key]
        return found

    def _settle(self, tenant: str, call_id: str, call: _TrackedCall, now: float) -> Settle | None:
        waited = now - call.since
        if not call.runner:
            if waited < self._claim_timeout:
                return None
            return Settle(
                call_id,
                f"Not run: no client took this call within {self._claim_timeout:g} s.",
                "cancelled",
                "",
            )
        if call.timeout is not None and waited >= call.timeout:
            return Settle(
                call_id,
                f"The client that ran this call gave no result within {call.timeout:g} s. Its"
                " outcome is unknown; check before repeating it.",
                "timeout",
                call.runner,
            )
        if now - max(self._seen.get((tenant, call.runner), call.since), call.since) < self._grace:
            return None
        return Settle(
            call_id,
            "The client that ran this call is gone. Its outcome is unknown: it may have run in part"
            " or in full; check before repeating it.",
            "unknown",
            call.runner,
        )

    def count(self) -> int:
        """Return the number of calls that are offered or claimed."""
        with self._lock:
            return sum(map(len, self._calls.values()))
