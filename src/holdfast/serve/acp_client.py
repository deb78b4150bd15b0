"""The file system and the terminals that an ACP client offers, as parts of an agent's runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from acp import RequestError
from acp.helpers import tool_terminal_ref, update_tool_call
from acp.interfaces import Client
from acp.schema import ClientCapabilities
from pydantic import Field

from holdfast.content import TextContent, ToolResult
from holdfast.errors import RuntimeFault, ToolError
from holdfast.runtime import textfile
from holdfast.runtime.textfile import DecodedText
from holdfast.serve.acp_updates import TERMINAL
from holdfast.tools import Tool, ToolAnnotations, ToolContext

T = TypeVar("T")

NOT_FOUND = -32002  # the protocol's code for a resource that does not exist
_ANSWER_SECONDS = 60.0  # for a request that needs no user
_MAX_OUTPUT_BYTES = 30_000
_RUNS = ToolAnnotations(read_only=False, destructive=True, idempotent=False, open_world=True)


class ClientAccess(NamedTuple):
    """Requests to the client of one session, from any thread but the loop's."""

    client: Client
    loop: asyncio.AbstractEventLoop
    session_id: str
    capabilities: ClientCapabilities

    def call(self, request: Coroutine[Any, Any, T], timeout: float | None = _ANSWER_SECONDS) -> T:
        """Send a request and wait for its answer. Raises `RuntimeFault`."""
        future = asyncio.run_coroutine_threadsafe(request, self.loop)
        try:
            return future.result(timeout)
        except RequestError as error:
            kind = textfile.NoSuchFile if error.code == NOT_FOUND else RuntimeFault
            raise kind(f"The editor refuses this: {error}.") from error
        except (ConnectionError, TimeoutError) as error:
            future.cancel()
            raise RuntimeFault(f"The editor does not answer: {error}.") from error

    @property
    def files(self) -> ClientFiles | None:
        """The client's file system, None if it offers none."""
        fs = self.capabilities.fs
        if fs is None or not (fs.read_text_file or fs.write_text_file):
            return None
        return ClientFiles(self, bool(fs.read_text_file), bool(fs.write_text_file))


class ClientFiles(NamedTuple):
    """Text files as the client has them: with the changes that its user has not saved. What it
    does not offer is done on the disk."""

    access: ClientAccess
    reads: bool
    writes: bool

    def load(self, path: Path, label: str) -> DecodedText:
        """Return the text of a file. Raises `RuntimeFault`."""
        if not self.reads:
            return textfile.load(path, label)
        try:
            disk = textfile.load(path, label)
        except textfile.NoSuchFile:
            disk = None
        client, id = self.access.client, self.access.session_id
        try:
            answer = self.access.call(client.read_text_file(session_id=id, path=str(path)))
        except textfile.NoSuchFile:
            return disk or textfile.load(path, label)  # its error names similar files
        text = answer.content.removeprefix("\ufeff")
        return DecodedText(text) if disk is None else disk._replace(text=text)

    def store(self, path: Path, file: DecodedText, text: str, label: str) -> None:
        """Write a file, in its encoding. Raises `RuntimeFault`."""
        if not self.writes or file.encoding != "utf-8" or file.bom:
            textfile.store(path, file.encode(text), label)
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RuntimeFault(f"{label} could not be written: {error.strerror}.") from error
        client, id = self.access.client, self.access.session_id
        self.access.call(client.write_text_file(session_id=id, path=str(path), content=text))


def with_client_terminal(tools: Sequence[Tool], access: ClientAccess, workdir: str) -> list[Tool]:
    """Return the tools with a `terminal` whose commands run in terminals of the client."""

    def terminal(
        context: ToolContext,
        command: str,
        timeout: Annotated[float, Field(gt=0, le=3600)] = 120.0,
    ) -> ToolResult:
        """Run a command, or a script of several lines, in bash, in a terminal of the user's editor,
        where the user sees it. Each command starts in the working directory. There is no input.

        Args:
            command: The command to run.
            timeout: Seconds after which the command is ended.
        """
        try:
            return _run(access, context, command, timeout, workdir)
        except RuntimeFault as error:
            raise ToolError(str(error)) from error

    mine = Tool.from_function(terminal, annotations=_RUNS, category="terminal")
    left_out = ("terminal", "terminal_input", "terminal_background", "terminal_collect")
    others = [tool for tool in tools if tool.name not in left_out]
    return [mine, *others] if len(others) < len(tools) else others


def _run(
    access: ClientAccess, context: ToolContext, command: str, timeout: float, workdir: str
) -> ToolResult:
    client, id = access.client, access.session_id
    reply = access.call(
        client.create_terminal(
            session_id=id,
            command="bash",
            args=["-c", command],
            cwd=workdir,
            output_byte_limit=_MAX_OUTPUT_BYTES,
        )
    )
    terminal = reply.terminal_id

    async def work() -> bool:
        """Return True if the command ended by itself in time."""
        content = [tool_terminal_ref(terminal)]
        update = update_tool_call(context.call_id, content=content)
        await client.session_update(session_id=id, update=update)
        ended = asyncio.ensure_future(
            client.wait_for_terminal_exit(session_id=id, terminal_id=terminal)
        )
        stopped = asyncio.Event()
        forget = context.cancelled.add_callback(
            lambda: access.loop.call_soon_threadsafe(stopped.set)
        )
        cancelled = asyncio.ensure_future(stopped.wait())
        try:
            await asyncio.wait(
                (ended, cancelled), timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if ended.done():
                ended.result()
                return True
            await client.kill_terminal(session_id=id, terminal_id=terminal)
            return False
        finally:
            forget()
            for task in (ended, cancelled):
                task.cancel()

    try:
        in_time = access.call(work(), None)
        output = access.call(client.terminal_output(session_id=id, terminal_id=terminal))
    finally:
        access.call(client.release_terminal(session_id=id, terminal_id=terminal))
    status = output.exit_status
    code = None if status is None else status.exit_code
    if not in_time:
        note = "was cancelled" if context.cancelled else f"was ended after {timeout:g} s"
    elif code is not None:
        note = f"exit code {code}"
    else:
        note = f"ended by {status.signal if status else 'an unknown cause'}"
    cut = "[... the beginning is left out]\n" if output.truncated else ""
    text = f"{cut}{output.output.rstrip()}\n[{note}]".lstrip("\n")
    return ToolResult(
        (TextContent(text),), is_error=not in_time, meta={"exitCode": code, TERMINAL: terminal}
    )
