"""pydantic-ai's `WorkspaceBackendSuite` on `SandboxedRuntime`."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping

import pytest
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite
from pydantic_ai.workspaces.protocol import (
    CommandResult,
    WorkspaceCommand,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
    validate_timeout,
)

from .boxes import Box


class Backend:
    """A backend that runs commands; the suite derives the file operations from them. `boxes`
    holds the boxes by the id of their reference."""

    def __init__(self, boxes: dict[str, Box], ref: WorkspaceRef | None = None) -> None:
        self._boxes = boxes
        self._lock = threading.Lock()
        self.ref = ref

    def _box(self) -> Box:
        with self._lock:
            if self.ref is None:
                box = Box()
                self._boxes[box.workdir] = box
                self.ref = WorkspaceRef(provider="holdfast", id=box.workdir)
            existing = self._boxes.get(self.ref.id)
        if existing is None:
            raise WorkspaceUnavailableError("the box is gone")
        return existing

    async def working_dir(self) -> str:
        return (await asyncio.to_thread(self._box)).workdir

    async def realpath(self, path: str) -> str:
        end = await self.run(["realpath", "-m", "--", path])
        if end.exit_code:
            raise OSError(end.stderr)
        return end.stdout.removesuffix("\n")

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        if isinstance(command, str) != shell:
            raise TypeError("a text needs shell=True, a sequence shell=False")
        validate_timeout(timeout)
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        box = await asyncio.to_thread(self._box)
        cancelled = threading.Event()
        try:
            end = await asyncio.to_thread(
                box.run, argv, env=env, timeout=timeout, cancelled=cancelled
            )
        except asyncio.CancelledError:
            cancelled.set()
            raise
        except Exception as error:
            if box.workdir not in self._boxes:
                raise WorkspaceUnavailableError("the box was destroyed") from error
            raise
        if box.workdir not in self._boxes:
            raise WorkspaceUnavailableError("the box was destroyed")
        stdout, stderr = (one.decode(errors="replace") for one in (end.stdout, end.stderr))
        if end.code is None:
            raise WorkspaceTimeoutError("the command timed out", stdout=stdout, stderr=stderr)
        return CommandResult(exit_code=end.code, stdout=stdout, stderr=stderr)


class TestSandboxedRuntime(WorkspaceBackendSuite):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def boxes(self) -> Iterator[dict[str, Box]]:
        boxes_by_id: dict[str, Box] = {}
        yield boxes_by_id
        for box in boxes_by_id.values():
            box.close()

    @pytest.fixture
    def backend(self, boxes: dict[str, Box]) -> Backend:
        return Backend(boxes)

    @pytest.fixture
    def fresh_backend(self, boxes: dict[str, Box]) -> Callable[[], Backend]:
        return lambda: Backend(boxes)

    @pytest.fixture
    def attach_backend(self, boxes: dict[str, Box]) -> Callable[[WorkspaceRef], Backend]:
        return lambda ref: Backend(boxes, ref)

    @pytest.fixture
    def destroy_environment(self, boxes: dict[str, Box]) -> Callable[[Backend], Awaitable[None]]:
        async def destroy(backend: Backend) -> None:
            assert backend.ref is not None
            await asyncio.to_thread(boxes.pop(backend.ref.id).close)

        return destroy
