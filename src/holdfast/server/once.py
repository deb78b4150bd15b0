"""What is done once however often it is asked for under one key: by a client whose connection
broke, and who asks again."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable

import anyio.to_thread
from starlette.responses import Response

from holdfast.errors import RuntimeFault
from holdfast.server.answers import told
from holdfast.server.guard import Refused
from holdfast.tools.context import Cancellation

_GRACE = 15.0  # seconds that a client has to ask again before what it asked for is cancelled
_KEPT = 1000  # answers
_BYTES = 32 * 1024 * 1024  # of all answers that are kept


class _Job:
    __slots__ = ("cancelled", "digest", "size", "task", "waiting")

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.cancelled = Cancellation()
        self.task: asyncio.Task[Response]
        self.waiting = 0
        self.size = 0


Name = tuple[str, str, str]  # a tenant, a path, and the key that it was asked for under
Begin = Callable[[str, str, str, bytes], bool]  # a name, and the body's digest


class Once:
    """What runs, and the last answers. Of the event loop's thread. What was answered is forgotten
    when the process ends, but not that it was begun, of which `begin` keeps a record: whether it is
    begun for the first time."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._jobs: OrderedDict[Hashable, _Job] = OrderedDict()
        self._bytes = 0
        self._closed = False

    async def do(
        self,
        key: Name | None,
        body: bytes,
        work: Callable[[Cancellation], Awaitable[Response]],
        gone: Callable[[], Awaitable[None]],
    ) -> Response:
        """The answer of `work`, or that which it gave before under this key. Raises `Refused` or
        `Conflict` if the key stood for another body."""
        if self._closed:
            raise Refused(
                503, "StoreError", "The server ends. Try again when it is back.", retry_after="1"
            )
        digest = hashlib.sha256(body).digest()
        name: Hashable = object() if key is None else key
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = _Job(digest)
            job.task = asyncio.ensure_future(
                work(job.cancelled)
                if key is None
                else self._first(key, digest, job.cancelled, work)
            )
            job.task.add_done_callback(lambda _: self._done(name, job, keep=key is not None))
        elif job.digest != digest:
            raise Refused(
                409, "ConfigurationError", "This Idempotency-Key stood for another request before."
            )
        return await self._answer(job, gone, 0.0 if key is None else _GRACE)

    async def _first(
        self,
        key: Name,
        digest: bytes,
        cancelled: Cancellation,
        work: Callable[[Cancellation], Awaitable[Response]],
    ) -> Response:
        if await anyio.to_thread.run_sync(self._begin, *key, digest):
            return await work(cancelled)
        error = RuntimeFault(
            "Its outcome is unknown: it was begun before, and the server was started again"
            " meanwhile, or it was cancelled. It is not run a second time. Look what it has done"
            " before you ask anew."
        )
        return told(error)

    async def _answer(
        self, job: _Job, gone: Callable[[], Awaitable[None]], grace: float
    ) -> Response:
        job.waiting += 1
        left = asyncio.ensure_future(gone())
        try:
            await asyncio.wait((job.task, left), return_when=asyncio.FIRST_COMPLETED)
            if job.task.done():
                return job.task.result()
        finally:
            left.cancel()
            job.waiting -= 1
            if not job.task.done() and not job.waiting:
                asyncio.get_running_loop().call_later(grace, self._abandon, job)
        raise Refused(
            400, "ConfigurationError", "The connection broke before there was an answer."
        )  # which nobody reads

    def _abandon(self, job: _Job) -> None:
        if not job.waiting and not job.task.done():
            job.cancelled.cancel()

    def _done(self, name: Hashable, job: _Job, keep: bool) -> None:
        if not keep or job.task.cancelled() or job.task.exception() is not None or job.cancelled:
            self._jobs.pop(name, None)
            return
        job.size = len(job.task.result().body)
        self._bytes += job.size
        for name, old in list(self._jobs.items()):
            if len(self._jobs) <= _KEPT and self._bytes <= _BYTES:
                break
            if old.task.done():
                del self._jobs[name]
                self._bytes -= old.size

    def cancel(self) -> None:
        """Cancel what runs, and begin nothing more."""
        self._closed = True
        for job in list(self._jobs.values()):
            job.cancelled.cancel()
