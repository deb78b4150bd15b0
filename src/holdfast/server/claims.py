"""Calls that clients run: the client that claimed each, the clients that are alive, and the calls
that the server itself must settle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.commands import Settle
from holdfast.object_struct import ObjectStruct
from holdfast.server.named_leases import NamedLeases


class OfferedCall(NamedTuple):
    """A call offered to clients. `runner` is the client that claimed it, or "". `timeout` is the
    tool's, in seconds."""

    call_id: str
    runner: str
    timeout: float | None


class _TrackedCall(NamedTuple):
    offered: OfferedCall
    since: float  # the time of the offer or the claim


class Claims(ObjectStruct):
    """The offered and claimed calls of all conversations. Thread-safe.

    Times count from the moment at which this process first learned of an offer or a claim, so
    they start anew after a restart. With `leases` a client is alive, too, if another server has
    heard from it.
    """

    _claim_timeout: float
    _grace: float
    _clock: Callable[[], float]
    _leases: NamedLeases | None
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    # By tenant and conversation, then by call.
    _calls: dict[tuple[str, str], dict[str, _TrackedCall]] = {}
    _alive_at: dict[tuple[str, str], float] = {}  # last sign of life, by tenant and client
    _announced_at: dict[
        tuple[str, str], float
    ] = {}  # when the other servers were told, by the same

    def note_alive(self, tenant: str, client: str) -> None:
        """Note that a client is alive, for the claims of its calls on any server."""
        self._note(tenant, client)
        if self._leases is not None:
            now, announced_at = self._clock(), self._announced_at.get((tenant, client))
            if announced_at is None or now - announced_at >= self._grace / 4:
                if len(self._announced_at) > 10_000:
                    self._announced_at.clear()
                self._announced_at[tenant, client] = now
                self._leases.seize(f"client {tenant}/{client}", self._grace)

    def _note(self, tenant: str, client: str) -> None:
        with self._lock:
            self._alive_at[tenant, client] = self._clock()

    def is_alive_elsewhere(self, tenant: str, settle: Settle) -> bool:
        """Return True if a call is to be settled because its client is gone, but another server has
        heard from the client lately."""
        client = settle.runner or ""
        if settle.kind != "unknown" or self._leases is None:
            return False
        if alive := self._leases.is_held(f"client {tenant}/{client}"):
            self._note(tenant, client)
        return alive

    def update(self, tenant: str, id: str, offers: Sequence[OfferedCall]) -> None:
        """Replace the offered and claimed calls of a conversation."""
        with self._lock:
            earlier, now = self._calls.get((tenant, id), {}), self._clock()
            calls = {offered.call_id: _TrackedCall(offered, now) for offered in offers}
            for call_id, call in earlier.items():
                if call_id in calls and calls[call_id].offered.runner == call.offered.runner:
                    calls[call_id] = call
            if calls:
                self._calls[tenant, id] = calls
            else:
                self._calls.pop((tenant, id), None)

    def due(self) -> list[tuple[str, str, Settle]]:
        """Return the calls to settle now: tenant, conversation and command. A call is returned
        each time until `update` removes it."""
        settlements: list[tuple[str, str, Settle]] = []
        with self._lock:
            now, runners = self._clock(), set[tuple[str, str]]()
            for (tenant, id), calls in self._calls.items():
                for call in calls.values():
                    runners.add((tenant, call.offered.runner))
                    if (settle := self._settle(tenant, call, now)) is not None:
                        settlements.append((tenant, id, settle))
            for key, alive_at in list(self._alive_at.items()):
                if now - alive_at > self._grace and key not in runners:
                    del self._alive_at[key]
        return settlements

    def _settle(self, tenant: str, call: _TrackedCall, now: float) -> Settle | None:
        call_id, runner, timeout = call.offered
        waited = now - call.since
        if not runner:
            if waited < self._claim_timeout:
                return None
            reason = f"Not run: no client took this call within {self._claim_timeout:g} s."
            return Settle(call_id, reason, "cancelled", "")
        if timeout is not None and waited >= timeout:
            reason = (
                f"The client that ran this call gave no result within {timeout:g} s. Its outcome is"
                " unknown; check before repeating it."
            )
            return Settle(call_id, reason, "timeout", runner)
        if now - max(self._alive_at.get((tenant, runner), call.since), call.since) < self._grace:
            return None
        reason = (
            "The client that ran this call is gone. Its outcome is unknown: it may have run in part"
            " or in full; check before repeating it."
        )
        return Settle(call_id, reason, "unknown", runner)

    def offers(self, tenant: str, id: str) -> bool:
        """Return True if calls of a conversation are offered or claimed."""
        with self._lock:
            return (tenant, id) in self._calls

    def count(self) -> int:
        with self._lock:
            return sum(map(len, self._calls.values()))
