"""Tests of the core scenarios of openclaw/acpx's conformance profile `acp-core-v1`, with the client
of the protocol's own library. `tests.acp_model` understands the commands of that profile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

acp = pytest.importorskip("acp", reason="needs agent-client-protocol")

from acp import RequestError, text_block  # noqa: E402

from tests.acp_editor import Connected, editing  # noqa: E402
from tests.serve.test_acp import run  # noqa: E402

pytestmark = pytest.mark.slow

FILES = {"fs": {"readTextFile": True, "writeTextFile": True}}
LINK = {"type": "resource_link", "uri": "file:///a/notes.md", "name": "notes.md"}


async def say(one: Connected, id: str, *prompt: Any) -> tuple[str, str]:
    """Return the reason of a turn's end, and its text. All updates until then are of its session."""
    before = len(one.editor.updates)
    blocks = [text_block(part) if isinstance(part, str) else part for part in prompt]
    response = await one.agent.prompt(session_id=id, prompt=blocks)
    updates = one.editor.updates[before:]
    assert {session for session, _ in updates} == {id}
    texts = [one for _, one in updates if one.session_update == "agent_message_chunk"]
    return response.stop_reason, "".join(one.content.text for one in texts)


async def refused(request: Any) -> int:
    with pytest.raises(RequestError) as caught:
        await request
    return caught.value.code


def test_prompts_and_sessions(tmp_path: Path) -> None:
    """Check initialize.handshake, session.new.basic, and session.prompt: single_turn, multi_turn,
    echo_empty, unrecognized, structured_blocks, background_completion; session.update.termination;
    permissions: read.approved, write.approved."""

    async def work() -> None:
        async with editing(tmp_path, capabilities=FILES) as one:
            hello = await one.agent.initialize(protocol_version=1)
            assert hello.protocol_version == 1
        async with editing(tmp_path, capabilities=FILES) as one:
            id = await one.session(tmp_path)
            assert id
            (tmp_path / "README.md").write_text("on the disk")
            one.editor.files[str(tmp_path / "README.md")] = "about acpx"
            for prompt, expected in (
                (["echo hello"], "hello"),
                (["echo again"], "again"),
                (["echo "], "nothing"),
                (["what is this"], "unrecognized prompt: what is this"),
                (["echo see", acp.schema.ResourceContentBlock.model_validate(LINK)], "notes.md"),
                (["read README.md"], "about acpx"),
                (["write out.txt hello"], "wrote out.txt"),
            ):
                reason, reply = await say(one, id, *prompt)
                assert (reason, expected in reply) == ("end_turn", True), (prompt, reply)
            assert one.editor.files[str(tmp_path / "out.txt")] == "hello"
            later = asyncio.ensure_future(say(one, id, "echo later"))
            assert (await later)[0] == "end_turn"

    run(work())


def test_errors_and_cancellations(tmp_path: Path) -> None:
    """Check errors: invalid_params, invalid_params.cwd_null, invalid_prompt_session_type,
    unknown_session, permission_denied, permission_denied.write; session.cancel: idle, in_flight,
    followup_prompt."""

    async def work() -> None:
        async with editing(tmp_path, capabilities=FILES) as one:
            id = await one.session(tmp_path)
            (tmp_path / "README.md").write_text("secret")
            request = one.agent._conn.send_request  # the library checks its own requests
            for cwd in (None, 12345):
                wrong = {"cwd": cwd, "mcpServers": []}
                assert await refused(request("session/new", wrong)) == -32602
            prompt = [{"type": "text", "text": "echo hello"}]
            wrong = {"sessionId": 12345, "prompt": prompt}
            assert await refused(request("session/prompt", wrong)) == -32602
            unknown = {"sessionId": "unknown", "prompt": prompt}
            assert await refused(request("session/prompt", unknown)) == -32002
            one.editor.denies_files = True
            for denied in ("read README.md", "write out.txt hello"):
                reason, reply = await say(one, id, denied)
                assert (reason, "Permission denied" in reply) == ("end_turn", True), reply
            await one.agent.cancel(session_id=id)
            assert (await say(one, id, "echo idle"))[0] == "end_turn"
            sleeping = asyncio.ensure_future(say(one, id, "sleep 60000"))
            while not any("sleep" in str(call) for call in one.editor.calls().values()):
                await asyncio.sleep(0.02)
            await one.agent.cancel(session_id=id)
            assert (await sleeping)[0] == "cancelled"
            assert (await say(one, id, "echo afterwards"))[0] == "end_turn"

    run(work())
