"""inspect-ai's `self_check` of sandboxes on `SandboxedRuntime`."""

import asyncio
import posixpath
from collections.abc import Iterator
from typing import Any

import pytest
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox.limits import SandboxEnvironmentLimits
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from .boxes import Box


class BoxEnvironment(SandboxEnvironment):
    """A box as inspect-ai's environment. Files are read and written by programs in the box."""

    def __init__(self, box: Box) -> None:
        super().__init__()
        self._box = box

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        if user is not None:
            raise SandboxUserUnsupportedError(f"a box has one user: {user!r} is not known")
        data = input.encode() if isinstance(input, str) else input or b""
        end = await asyncio.to_thread(self._box.run, cmd, data, cwd or ".", env, timeout)
        if end.code is None:
            raise TimeoutError
        if end.code == 126:
            raise PermissionError(end.stderr.decode(errors="replace"))
        if max(len(end.stdout), len(end.stderr)) > SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE:
            raise OutputLimitExceededError("10 MiB", None)
        return ExecResult(end.code == 0, end.code, end.stdout.decode(), end.stderr.decode())

    async def _files(self, script: str, file: str, data: bytes = b"") -> bytes:
        argv = ["bash", "-c", script, "bash", file, posixpath.dirname(file) or "."]
        end = await asyncio.to_thread(self._box.run, argv, data)
        message = end.stderr.decode()
        for text, kind in (
            ("No such file", FileNotFoundError),
            ("Permission denied", PermissionError),
            ("s a directory", IsADirectoryError),
        ):
            if end.code and text in message:
                raise kind(message)
        assert end.code == 0, message
        return end.stdout

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        await self._files('mkdir -p -- "$2" && cat > "$1"', file, data)

    async def read_file(self, file: str, text: bool = True) -> Any:
        size = int(await self._files('[ ! -d "$1" ] || exec cat "$1"; wc -c < "$1"', file))
        if size > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise OutputLimitExceededError(
                f"{SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR}", None
            )
        data = await self._files('cat -- "$1"', file)
        return data.decode() if text else data

    @classmethod
    async def sample_cleanup(cls, *_: Any) -> None:
        pass


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def sandbox_env(request: pytest.FixtureRequest) -> Iterator[BoxEnvironment]:
    box = Box()
    yield BoxEnvironment(box)
    box.close()


pytestmark = pytest.mark.anyio
