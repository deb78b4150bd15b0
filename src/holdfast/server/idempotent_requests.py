"""Runs a request once per idempotency key, even if a client repeats it after a broken
connection."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable

import anyio.to_thread
from starlette.responses import Response

from holdfast.errors import RuntimeFault
from holdfast.server.answers import error_answer
from holdfast.server.guard import client_left, refused, shutting_down
from holdfast.tools.context import Cancellation

_GRACE_SECONDS = 15.0  # time for a client to reconnect before its request is cancelled
_MAX_ANSWERS = 1000
_MAX_ANSWER_BYTES = 32 * 1024 * 1024  # of all stored answers together


class _Job:
    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.cancelled = Cancellation()
        self.task: asyncio.Task[Response]
        self.waiting = 0
        self.size = 0


Work = Callable[[Cancellation], Awaitable[Response]]
RequestName = tuple[str, str, str]  # tenant, path, and idempotency key
Begin = Callable[[str, str, str, bytes], bool]  # the parts of a name, and the body's digest


class IdempotentRequests:
    """The running requests and the last answers. Belongs to the event loop's thread.

    Answers are lost when the process ends. `begin` records durably that a request was begun, and
    returns True the first time.
    """

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._jobs: OrderedDict[Hashable, _Job] = OrderedDict()
        self._bytes = 0
        self._closed = False

    async def do(
        self,
        key: RequestName | None,
        body: bytes,
        work: Work,
        wait_for_disconnect: Callable[[], Awaitable[None]],
    ) -> Response:
        """Return the answer of `work`, or the earlier answer under this key. Raises
        `RequestRefused` or `Conflict` if the key was used with another body."""
        if self._closed:
            raise shutting_down()
        digest = hashlib.sha256(body).digest()
        name: Hashable = object() if key is None else key
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = _Job(digest)
            job.task = asyncio.ensure_future(self._first(key, job, work))
            job.task.add_done_callback(lambda _: self._done(name, job, keep=key is not None))
        elif job.digest != digest:
            message = "This Idempotency-Key was used for another request. Use a new one for each."
            raise refused(409, message)
        return await self._answer(job, wait_for_disconnect, 0.0 if key is None else _GRACE_SECONDS)

    async def _first(self, key: RequestName | None, job: _Job, work: Work) -> Response:
        if key is None or await anyio.to_thread.run_sync(self._begin, *key, job.digest):
            return await work(job.cancelled)
        return error_answer(
            RuntimeFault(
                "The outcome of this request is unknown: an earlier attempt was cancelled, or the"
                " server was restarted meanwhile. It is not run a second time. Check its effects"
                " before you send it under a new key."
            )
        )

    async def _answer(
        self, job: _Job, wait_for_disconnect: Callable[[], Awaitable[None]], grace: float
    ) -> Response:
        job.waiting += 1
        disconnected = asyncio.ensure_future(wait_for_disconnect())
        try:
            await asyncio.wait((job.task, disconnected), return_when=asyncio.FIRST_COMPLETED)
            if job.task.done():
                return job.task.result()
        finally:
            disconnected.cancel()
            job.waiting -= 1
            if not job.task.done() and not job.waiting:
                asyncio.get_running_loop().call_later(grace, self._abandon, job)
        raise client_left()

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
            if len(self._jobs) <= _MAX_ANSWERS and self._bytes <= _MAX_ANSWER_BYTES:
                break
            if old.task.done():
                del self._jobs[name]
                self._bytes -= old.size

    def cancel(self) -> None:
        """Cancel running requests and begin no new ones."""
        self._closed = True
        for job in list(self._jobs.values()):
            job.cancelled.cancel()
