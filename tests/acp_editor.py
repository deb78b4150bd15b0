"""An editor for tests: the client of the protocol's own library, and the agent's process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from acp import RequestError, connect_to_agent, text_block
from acp.client.connection import ClientSideConnection
from acp.schema import (
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    RequestPermissionResponse,
)

from tests import forks

ROOT = Path(__file__).parent.parent
AGENT = """\
model: {use: "tests.acp_model:model"}
tools: {builtin: [read_file, write_file, edit_file, terminal, terminal_input, ask_user]}
planning: tool
"""
HELPER = """\
delegates:
  helper:
    model: {use: "tests.acp_model:model"}
    tools: {local_functions: [{function: "tests.door_tools:pay"}], builtin: [ask_user]}
    confirm: [pay]
"""


class Editor:
    """A client that records everything it receives, and answers as the test says."""

    def __init__(self, answer: Callable[[Any, list[Any]], str | None]) -> None:
        self.answer = answer
        self.updates: list[tuple[str, Any]] = []
        self.questions: list[Any] = []  # permissions, then forms
        self.asking = asyncio.Event()
        self.files: dict[str, str] = {}
        self.denies_files = False
        self.filled: Any = None  # the answer to a form
        self.terminals: list[asyncio.subprocess.Process] = []
        self.outputs: list[asyncio.Task[bytes]] = []

    def on_connect(self, conn: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # the library looks for older names of the methods

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append((session_id, update))

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> RequestPermissionResponse:
        self.questions.append(tool_call)
        self.asking.set()
        kind = self.answer(tool_call, options)
        if kind == "never":
            await asyncio.Event().wait()
        if kind is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        chosen = next((one.option_id for one in options if one.kind == kind), kind)
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=chosen)
        )

    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> Any:
        self.questions.append((message, mode))
        return await self.filled if isinstance(self.filled, asyncio.Future) else self.filled

    async def read_text_file(self, session_id: str, path: str, **_: Any) -> Any:
        if self.denies_files:
            raise RequestError(-32001, "Permission denied here")
        if path not in self.files:
            raise RequestError(-32002, "No such file")
        return {"content": self.files[path]}

    async def write_text_file(self, session_id: str, path: str, content: str, **_: Any) -> None:
        if self.denies_files:
            raise RequestError(-32001, "Permission denied here")
        self.files[path] = content

    async def create_terminal(
        self, session_id: str, command: str, args: list[str], cwd: str, **_: Any
    ) -> Any:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(command, *args, cwd=cwd, stdout=pipe)
        self.terminals.append(process)
        assert process.stdout is not None
        self.outputs.append(asyncio.ensure_future(process.stdout.read()))
        return {"terminalId": str(len(self.terminals) - 1)}

    async def wait_for_terminal_exit(self, session_id: str, terminal_id: str, **_: Any) -> Any:
        code = await self.terminals[int(terminal_id)].wait()
        return {"exitCode": code} if code >= 0 else {"signal": str(-code)}

    async def terminal_output(self, session_id: str, terminal_id: str, **_: Any) -> Any:
        process = self.terminals[int(terminal_id)]
        code, output = process.returncode, await self.outputs[int(terminal_id)]
        status = {"exitCode": code} if (code or 0) >= 0 else {"signal": str(-(code or 0))}
        return {"output": output.decode(), "truncated": False, "exitStatus": status}

    async def kill_terminal(self, session_id: str, terminal_id: str, **_: Any) -> None:
        self.terminals[int(terminal_id)].kill()

    async def release_terminal(self, session_id: str, terminal_id: str, **_: Any) -> None:
        pass

    # --- for the assertions of tests ---

    def text(self, session_id: str = "", kind: str = "agent_message_chunk") -> str:
        """Return the text that the editor received for a session."""
        return "".join(
            update.content.text
            for id, update in self.updates
            if update.session_update == kind and session_id in ("", id)
        )

    def calls(self) -> dict[str, dict[str, Any]]:
        """Return the last known values of each call, by its id."""
        values_of: dict[str, dict[str, Any]] = {}
        for _, update in self.updates:
            if update.session_update in ("tool_call", "tool_call_update"):
                values = update.model_dump(exclude_none=True, by_alias=True)
                values_of.setdefault(update.tool_call_id, {}).update(values)
        return values_of

    def of_kind(self, kind: str) -> list[Any]:
        return [update for _, update in self.updates if update.session_update == kind]


class Connected:
    """An editor and its agent."""

    def __init__(
        self,
        editor: Editor,
        agent: ClientSideConnection,
        process: subprocess.Popen[bytes],
        input: asyncio.StreamWriter,
    ) -> None:
        self.editor, self.agent, self.process, self.input = editor, agent, process, input

    async def session(self, folder: Path, **more: Any) -> str:
        response = await self.agent.new_session(cwd=str(folder), mcp_servers=[], **more)
        return response.session_id

    async def say(self, id: str, text: str) -> str:
        response = await self.agent.prompt(session_id=id, prompt=[text_block(text)])
        return response.stop_reason


def allow(_: Any, __: list[Any]) -> str:
    return "allow_once"


@asynccontextmanager
async def editing(
    folder: Path,
    *options: str,
    answer: Callable[[Any, list[Any]], str | None] = allow,
    capabilities: dict[str, Any] | None = None,
    code: bool = False,
    more: str = "",
) -> AsyncGenerator[Connected]:
    """Start an agent whose store is in `folder`, and connect an editor with it."""
    file = folder / "agent.yaml"
    file.write_text(f"{AGENT}code: {str(code).lower()}\n{more}")
    process = forks.Popen(
        [
            *(sys.executable, "-m", "holdfast.cli", "acp", "--agent", str(file)),
            *("--store", str(folder / "store.db"), "--sandbox", "off", *options),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            **forks.AT_START,
        },
    )
    reader, writer = await streams_of(process)
    editor = Editor(answer)
    agent = connect_to_agent(
        editor,  # pyright: ignore[reportArgumentType]: it answers with what JSON has
        writer,
        reader,
        use_unstable_protocol=True,
    )
    try:
        await agent.initialize(
            protocol_version=1,
            client_capabilities=ClientCapabilities.model_validate(capabilities or {}),
        )
        yield Connected(editor, agent, process, writer)
    finally:
        await agent.close()
        writer.close()
        await asyncio.to_thread(process.wait, 60)


async def streams_of(
    process: subprocess.Popen[bytes],
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the process's output and input."""
    assert process.stdin is not None
    assert process.stdout is not None
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await loop.connect_read_pipe(lambda: protocol, process.stdout)
    transport, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, process.stdin)
    return reader, asyncio.StreamWriter(transport, flow, None, loop)
