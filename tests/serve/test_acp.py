"""Tests of `holdfast acp`, driven by the client of the protocol's own library."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

acp = pytest.importorskip("acp", reason="needs agent-client-protocol")

from acp.schema import AcceptElicitationResponse, McpServerStdio  # noqa: E402

from holdfast import SQLiteStore  # noqa: E402
from holdfast import events as ev  # noqa: E402
from holdfast.cli import main  # noqa: E402
from holdfast.serve.acp_updates import TextChange, changes_in  # noqa: E402
from tests import forks  # noqa: E402
from tests.acp_editor import HELPER, ROOT, editing  # noqa: E402

pytestmark = pytest.mark.slow  # each test starts a process that imports the library: a second

FORMS = {"elicitation": {"form": {}}}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 240))


def history(folder: Path, id: str) -> list[ev.AnyEvent]:
    with SQLiteStore(folder / "store.db", read_only=True) as store:
        return list(store.read(id))


def of_type(folder: Path, id: str, kind: type[Any]) -> list[Any]:
    return [event for event in history(folder, id) if isinstance(event, kind)]


def test_a_turn_streams_and_is_journaled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        async with editing(tmp_path) as one:
            id = await one.session(tmp_path)
            assert await one.say(id, "think it over") == "end_turn"
            assert one.editor.text() == "Thought: it over"
            assert one.editor.text(kind="agent_thought_chunk") == "it over"
            assert len(one.editor.of_kind("agent_message_chunk")) > 1
            await one.say(id, "plan")
            (plan,) = one.editor.of_kind("plan")
            assert [(step.content, step.status) for step in plan.entries] == [
                ("Look", "completed"),
                ("Act", "in_progress"),
            ]
            assert main(["show", str(tmp_path / "store.db"), id]) == 0
            assert "Thought: it over" in capsys.readouterr().out
            listed = await one.agent.list_sessions(cwd=str(tmp_path))
            assert [(it.session_id, it.cwd) for it in listed.sessions] == [(id, str(tmp_path))]
            assert (await one.agent.list_sessions(cwd="/elsewhere")).sessions == []

    run(work())


def test_a_prompt_has_pictures_and_resources(tmp_path: Path) -> None:
    async def work() -> None:
        async with editing(tmp_path) as one:
            id = await one.session(tmp_path)
            prompt = [
                {"type": "text", "text": "echo seen"},
                {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
                {"type": "resource", "resource": {"uri": "file:///a.py", "text": "x = 1"}},
                {"type": "resource_link", "uri": "file:///b.py", "name": "b.py"},
            ]
            response = await one.agent.prompt(session_id=id, prompt=prompt)  # pyright: ignore[reportArgumentType]
            assert response.stop_reason == "end_turn"
            prompt[1]["data"] = "%%%"
            with pytest.raises(acp.RequestError, match="base64"):
                await one.agent.prompt(session_id=id, prompt=prompt)  # pyright: ignore[reportArgumentType]
        (message,) = of_type(tmp_path, id, ev.MessageAdded)
        assert [block.__class__.__name__ for block in message.content] == [
            *("TextContent", "ImageContent", "TextContent", "TextContent"),
        ]
        assert "x = 1" in message.content[2].text

    run(work())


def test_a_permission_is_an_approval(tmp_path: Path) -> None:
    answers = ["allow_once", "reject_once", "allow_always", None]

    async def work() -> None:
        async with editing(tmp_path, answer=lambda *_: answers.pop(0)) as one:
            id = await one.session(tmp_path)
            await one.say(id, "write a.txt 1")
            (question,) = one.editor.questions
            assert question.content[0].new_text == "1"
            assert question.locations[0].path == str(tmp_path / "a.txt")
            (call,) = one.editor.calls().values()
            assert (call["kind"], call["status"]) == ("edit", "completed")
            assert call["content"] == [
                {"type": "diff", "path": str(tmp_path / "a.txt"), "newText": "1"}
            ]
            await one.say(id, "edit a.txt 1 2")
            assert (tmp_path / "a.txt").read_text() == "1"
            assert list(one.editor.calls().values())[1]["status"] == "failed"
            await one.say(id, "write a.txt 3")
            await one.say(id, "write a.txt 4")
            assert len(one.editor.questions) == 3  # the fourth call needed no permission
            assert (tmp_path / "a.txt").read_text() == "4"
            assert await one.say(id, "edit a.txt 4 5") == "cancelled"
            assert await one.say(id, "echo on") == "end_turn"
        async with editing(tmp_path, answer=lambda *_: "reject_once") as one:
            await one.agent.load_session(cwd=str(tmp_path), session_id=id, mcp_servers=[])
            await one.say(id, "write a.txt 6")  # allowed for all later calls, also here
            assert (tmp_path / "a.txt").read_text() == "6"
            await one.say(id, "edit a.txt 6 7")
            assert (tmp_path / "a.txt").read_text() == "6"

    run(work())


def test_a_cancellation_interrupts(tmp_path: Path) -> None:
    async def work() -> None:
        async with editing(tmp_path, answer=lambda *_: "never") as one:
            id = await one.session(tmp_path)
            await one.agent.cancel(session_id=id)  # idle
            saying = asyncio.ensure_future(one.say(id, "sleep 30000"))
            while not any(it.get("status") == "in_progress" for it in one.editor.calls().values()):
                await asyncio.sleep(0.01)
            await one.agent.cancel(session_id=id)
            assert await asyncio.wait_for(saying, 60) == "cancelled"
            saying = asyncio.ensure_future(one.say(id, "write a.txt 1"))
            await one.editor.asking.wait()  # a permission is open
            await one.agent.cancel(session_id=id)
            assert await asyncio.wait_for(saying, 60) == "cancelled"
            saying = asyncio.ensure_future(one.say(id, "sleep 30000"))
            await asyncio.sleep(0)  # sent, but the run may not have begun
            await one.agent.cancel(session_id=id)
            assert await asyncio.wait_for(saying, 60) == "cancelled"
            assert await one.say(id, "echo still here") == "end_turn"
            assert one.editor.text().endswith("still here")
        assert not (tmp_path / "a.txt").exists()

    run(work())


def test_two_sessions_work_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with editing(tmp_path) as one:
            first, second = await one.session(tmp_path), await one.session(tmp_path)
            slow = asyncio.ensure_future(one.say(first, "sleep 1500"))
            assert await one.say(second, "echo quick") == "end_turn"
            assert not slow.done()
            queued = asyncio.ensure_future(one.say(first, "echo after"))
            assert (await slow, await queued) == ("end_turn", "end_turn")
            assert one.editor.text(second) == "quick"
            assert one.editor.text(first).endswith("after")
            await one.agent.close_session(session_id=first)
            with pytest.raises(acp.RequestError, match="not open"):
                await one.say(first, "echo")

    run(work())


def test_an_approval_survives_a_kill(tmp_path: Path) -> None:
    async def work() -> None:
        async with editing(tmp_path, answer=lambda *_: "never") as one:
            id = await one.session(tmp_path)
            saying = asyncio.ensure_future(one.say(id, "write a.txt 1"))
            await one.editor.asking.wait()
            one.process.kill()
            with pytest.raises(ConnectionError):
                await saying
        async with editing(tmp_path) as one:
            await one.agent.load_session(cwd=str(tmp_path), session_id=id, mcp_servers=[])
            assert one.editor.text(kind="user_message_chunk") == "write a.txt 1"
            while "wrote" not in one.editor.text():
                await asyncio.sleep(0.01)
            assert len(one.editor.questions) == 1
            assert (tmp_path / "a.txt").read_text() == "1"
            assert await one.say(id, "echo done") == "end_turn"
        (started,) = of_type(tmp_path, id, ev.ToolCallStarted)
        assert started.attempt == 1

    run(work())


def test_an_approval_of_a_delegate_survives_a_kill(tmp_path: Path) -> None:
    async def work() -> None:
        async with editing(tmp_path, answer=lambda *_: "never", more=HELPER) as one:
            id = await one.session(tmp_path)
            saying = asyncio.ensure_future(one.say(id, "delegate pay 3"))
            await one.editor.asking.wait()
            one.process.kill()
            with pytest.raises(ConnectionError):
                await saying
        async with editing(tmp_path, more=HELPER) as one:
            await one.agent.load_session(cwd=str(tmp_path), session_id=id, mcp_servers=[])
            assert await one.say(id, "echo done") == "end_turn"
            (question,) = one.editor.questions
            assert question.raw_input == {"amount": 3}
        (result,) = of_type(tmp_path, id, ev.ToolCallFinished)
        assert "paid 3" in result.result.content[0].text

    run(work())


@pytest.mark.parametrize(
    ("begin", "asked_first"), [("ask", False), ("ask", True), ("delegate ask", False)]
)
def test_a_question_survives_a_kill_and_is_asked_once(
    tmp_path: Path, begin: str, asked_first: bool
) -> None:
    options: dict[str, Any] = {"capabilities": FORMS, "more": HELPER}

    async def work() -> None:
        async with editing(tmp_path, **options) as one:
            one.editor.filled = asyncio.get_running_loop().create_future()  # no answer
            id = await one.session(tmp_path)
            saying = asyncio.ensure_future(one.say(id, begin))
            while not one.editor.questions:
                await asyncio.sleep(0.01)
            one.process.kill()
            with pytest.raises(ConnectionError):
                await saying
        async with editing(tmp_path, **options) as one:
            one.editor.filled = asyncio.get_running_loop().create_future()
            await one.agent.load_session(cwd=str(tmp_path), session_id=id, mcp_servers=[])
            while asked_first and not one.editor.questions:  # the open question comes by itself
                await asyncio.sleep(0.01)
            saying = asyncio.ensure_future(one.say(id, "echo done"))
            while not one.editor.questions:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3 if asked_first else 0)  # the prompt arrives meanwhile
            red = AcceptElicitationResponse(action="accept", content={"answer": "red"})
            one.editor.filled.set_result(red)
            assert await saying == "end_turn"
            ((message, _),) = one.editor.questions
            assert message == "ask_user: Which colour?"
        (result,) = of_type(tmp_path, id, ev.ToolCallFinished)
        assert "The user answers: red" in result.result.content[0].text

    run(work())


def test_a_prompt_answers_a_question_from_before_a_kill(tmp_path: Path) -> None:
    async def work() -> None:
        async with editing(tmp_path) as one:  # its editor has no forms
            id = await one.session(tmp_path)
            assert await one.say(id, "ask") == "end_turn"
            one.process.kill()
            await asyncio.to_thread(one.process.wait, 60)
        async with editing(tmp_path) as one:
            await one.agent.load_session(cwd=str(tmp_path), session_id=id, mcp_servers=[])
            assert await one.say(id, "red") == "end_turn"
        (result,) = of_type(tmp_path, id, ev.ToolCallFinished)
        assert "The user answers: red" in result.result.content[0].text

    run(work())


def test_a_client_that_dies_ends_the_agent_and_the_work_goes_on_later(tmp_path: Path) -> None:
    async def work() -> None:
        async with editing(tmp_path) as one:
            id = await one.session(tmp_path)
            saying = asyncio.ensure_future(one.say(id, "sleep 30000"))
            while not one.editor.calls():
                await asyncio.sleep(0.01)
            one.input.close()
            await asyncio.to_thread(one.process.wait, 60)
            with pytest.raises(ConnectionError):
                await saying
        async with editing(tmp_path) as one:
            await one.agent.resume_session(cwd=str(tmp_path), session_id=id, mcp_servers=[])
            assert one.editor.updates == []
            assert await one.say(id, "echo again") == "end_turn"
            assert one.editor.text().endswith("again")

    run(work())


def test_bad_input_gets_json_rpc_errors(tmp_path: Path) -> None:
    lines = [
        b"{nonsense",
        b"[1, 2]",
        b'{"jsonrpc": "2.0", "id": 7, "method": 5}',
        b'{"jsonrpc": "2.0", "id": [1], "result": {}}',
        b'{"jsonrpc": "2.0", "id": 1, "error": "text"}',
        b"[" * 100_000,
        b'{"jsonrpc": "2.0", "id": 1, "method": "session/unheard"}',
        b'{"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"cwd": null}}',
        b'{"jsonrpc": "2.0", "id": 3, "method": "session/new", "params": {"cwd": "a", "mcpServers": []}}',
        b'{"jsonrpc": "2.0", "id": 4, "method": "session/prompt", "params": {"sessionId": 5}}',
        b'{"jsonrpc": "2.0", "id": 5, "method": "session/prompt",'
        b' "params": {"sessionId": "none", "prompt": []}}',
        b'{"jsonrpc": "2.0", "id": 6, "method": "session/load",'
        b' "params": {"sessionId": "none", "cwd": "/", "mcpServers": []}}',
        b'{"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "none"}}',
        b'{"jsonrpc": "2.0", "id": 8, "method": "initialize", "params": {"protocolVersion": 9}}',
    ]
    file = tmp_path / "agent.yaml"
    file.write_text('model: {use: "tests.acp_model:model"}\n')
    command = [sys.executable, "-m", "holdfast.cli", "acp", "--agent", str(file)]
    process = forks.run(
        [*command, "--store", str(tmp_path / "s.db"), "--sandbox", "off"],
        input=b"\n".join(lines),
        capture_output=True,
        timeout=60,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT),
            **forks.AT_START,
        },
    )
    answers = [json.loads(line) for line in process.stdout.splitlines()]
    codes = sorted((str(it["id"]), it["error"]["code"]) for it in answers if "error" in it)
    assert codes == sorted(
        [
            *(("None", -32700), ("None", -32600), ("None", -32600), ("None", -32600)),
            *(("1", -32601), ("2", -32602), ("3", -32602), ("4", -32602)),
            *(("5", -32002), ("6", -32002)),
        ]
    )
    (hello,) = [it["result"] for it in answers if "result" in it]
    assert hello["protocolVersion"] == 1
    assert (process.returncode, b"Traceback" in process.stderr) == (0, False)


def test_a_failed_model_call_is_an_error_and_the_session_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with editing(tmp_path) as one:
            id = await one.session(tmp_path)
            with pytest.raises(acp.RequestError, match="quota"):
                await one.say(id, "fail quota")
            assert await one.say(id, "echo on") == "end_turn"

    run(work())


def test_files_are_those_of_the_editor(tmp_path: Path) -> None:
    can = {"fs": {"readTextFile": True, "writeTextFile": True}}
    (tmp_path / "a.txt").write_text("saved")

    async def work() -> None:
        async with editing(tmp_path, "--mode", "act", capabilities=can) as one:
            id = await one.session(tmp_path)
            buffers = one.editor.files
            buffers[str(tmp_path / "a.txt")] = "unsaved"
            await one.say(id, "read a.txt")
            assert "unsaved" in one.editor.text()
            await one.say(id, "edit a.txt unsaved changed")
            await one.say(id, "write sub/b.txt new")
            assert buffers == {
                str(tmp_path / "a.txt"): "changed",
                str(tmp_path / "sub/b.txt"): "new",
            }
            assert (tmp_path / "a.txt").read_text() == "saved"  # saving is the editor's work
            await one.say(id, "read sub/b.txt")  # the disk does not have it
            assert one.editor.text().endswith("1\tnew")
            buffers[str(tmp_path / "a.txt")] = ""
            await one.say(id, "read a.txt")
            assert one.editor.text().endswith("(a.txt is empty)")
            await one.say(id, "read c.txt")
            assert "There is no file c.txt." in one.editor.text()
            buffers[str(tmp_path / "a.txt")] = "changed"
            one.editor.denies_files = True
            for words in ("read a.txt", "write a.txt blocked"):
                before = len(one.editor.updates)
                await one.say(id, words)
                assert "Permission denied here" in str(one.editor.updates[before:])
            assert buffers[str(tmp_path / "a.txt")] == "changed"
            await one.say(id, "read ../outside.txt")
            assert "outside" in one.editor.text()

    run(work())


def test_commands_run_in_terminals_of_the_editor(tmp_path: Path) -> None:
    async def work() -> None:
        async with editing(tmp_path, "--mode", "act", capabilities={"terminal": True}) as one:
            id = await one.session(tmp_path)
            await one.say(id, "run pwd; exit 3")
            (call,) = one.editor.calls().values()
            assert call["content"] == [{"type": "terminal", "terminalId": "0"}]
            assert f"{tmp_path}\n[exit code 3]" in one.editor.text()
            saying = asyncio.ensure_future(one.say(id, "run exec sleep 60"))
            while len(one.editor.terminals) < 2:
                await asyncio.sleep(0.01)
            await one.agent.cancel(session_id=id)
            assert await asyncio.wait_for(saying, 60) == "cancelled"
            assert await asyncio.wait_for(one.editor.terminals[1].wait(), 60) == -9
        async with editing(tmp_path) as one:  # another editor, without terminals
            await one.agent.load_session(cwd=str(tmp_path), session_id=id, mcp_servers=[])
            first = next(iter(one.editor.calls().values()))
            assert "exit code 3" in first["content"][0]["content"]["text"]

    run(work())


def test_a_question_is_a_form_a_choice_or_the_next_prompt(tmp_path: Path) -> None:
    async def work() -> None:
        async with editing(tmp_path, capabilities=FORMS) as one:
            one.editor.filled = AcceptElicitationResponse(
                action="accept", content={"answer": "red"}
            )
            id = await one.session(tmp_path)
            await one.say(id, "ask")
            ((message, mode),) = one.editor.questions
            assert (message, list(mode.requested_schema.properties)) == (
                "ask_user: Which colour?",
                ["answer"],
            )
            assert "The user answers: red" in one.editor.text()
        async with editing(tmp_path, answer=lambda _, options: options[1].option_id) as one:
            id = await one.session(tmp_path)
            await one.say(id, "choose")
            assert "The user answers: blue" in one.editor.text()
            assert await one.say(id, "ask") == "end_turn"
            assert one.editor.text().endswith("Which colour?")
            await one.say(id, "a green one")
            assert "The user answers: a green one" in one.editor.text()

    run(work())


def test_calls_of_a_script_are_shown_and_asked_about(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    script = "await write_file(path='a.txt', content='1')\nawait ask_user(question='Which colour?')"

    async def work() -> None:
        async with editing(tmp_path, capabilities=FORMS, code=True) as one:
            one.editor.filled = AcceptElicitationResponse(
                action="accept", content={"answer": "red"}
            )
            id = await one.session(tmp_path)
            await one.say(id, f"script {script}")
            assert len(one.editor.questions) == 2
            assert '"answer":"red"' in one.editor.text()
            calls_shown = one.editor.calls()
            assert [call["status"] for call in calls_shown.values()] == ["completed"] * 3
            assert {one.tool_call_id for one in one.editor.of_kind("tool_call")} == set(calls_shown)
            one.editor.updates.clear()
            await one.agent.load_session(cwd=str(tmp_path), session_id=id, mcp_servers=[])
            assert {one.tool_call_id for one in one.editor.of_kind("tool_call")} == set(calls_shown)

    run(work())


def test_modes_decide_what_is_asked_and_last(tmp_path: Path) -> None:
    async def work() -> None:
        async with editing(tmp_path, answer=lambda *_: "reject_once") as one:
            session = await one.agent.new_session(cwd=str(tmp_path), mcp_servers=[])
            assert session.modes is not None
            assert session.modes.current_mode_id == "ask"
            id = session.session_id
            await one.agent.set_session_mode(session_id=id, mode_id="act")
            await one.say(id, "write a.txt 1")
            assert (tmp_path / "a.txt").read_text() == "1"
            with pytest.raises(acp.RequestError, match="no mode"):
                await one.agent.set_session_mode(session_id=id, mode_id="wild")
            await one.agent.set_session_mode(session_id=id, mode_id="plan")
            await one.say(id, "write a.txt 2")  # denied: there is no plan
            assert (tmp_path / "a.txt").read_text() == "1"
            assert one.editor.questions == []
            await one.say(id, "plan")
            assert "Act" in one.editor.questions[0].content[0].content.text
        async with editing(tmp_path) as one:
            again = await one.agent.load_session(cwd=str(tmp_path), session_id=id, mcp_servers=[])
            assert again is not None
            assert again.modes is not None
            assert again.modes.current_mode_id == "plan"
            await one.say(id, "plan")
            await one.say(id, "write a.txt 3")
            assert (tmp_path / "a.txt").read_text() == "3"

    run(work())


def test_an_mcp_server_of_the_editor_has_tools(tmp_path: Path) -> None:
    server = McpServerStdio(
        name="shout", command=sys.executable, args=["-m", "tests.acp_mcp_server"], env=[]
    )
    broken = McpServerStdio(name="broken", command="/no/such/program", args=[], env=[])

    async def work() -> None:
        async with editing(tmp_path, "--mode", "act") as one:
            session = await one.agent.new_session(cwd=str(ROOT), mcp_servers=[server, broken])
            await one.say(session.session_id, "call shout.shout quietly")
            assert "QUIETLY" in one.editor.text()

    run(work())


def test_a_decision_from_elsewhere_withdraws_the_question(tmp_path: Path) -> None:
    async def work() -> None:
        async with editing(tmp_path, answer=lambda *_: "never") as one:
            id = await one.session(tmp_path)
            saying = asyncio.ensure_future(one.say(id, "write a.txt 1"))
            await one.editor.asking.wait()
            code = await asyncio.to_thread(
                main, ["tell", str(tmp_path / "store.db"), id, "approve"]
            )
            assert code == 0
            assert await asyncio.wait_for(saying, 60) == "end_turn"
            assert (tmp_path / "a.txt").read_text() == "1"

    run(work())


@pytest.mark.parametrize(
    ("diff", "changes"),
    [
        ("", []),
        (
            "--- a\n+++ a\n@@ -1,2 +1,2 @@\n x\n--- b\n+++ c\n",
            [TextChange("a", "x\n-- b\n", "x\n++ c\n")],
        ),
        (
            "--- a\n+++ a\n@@ -1 +1 @@\n-1\n\\ No newline at end of file\n+2\n"
            "\\ No newline at end of file\n@@ -9,0 +10 @@\n+n\n",
            [TextChange("a", "1", "2"), TextChange("a", "", "n\n")],
        ),
        ("--- a\n+++ a\n@@ -1,5 +1,5 @@\n-cut", [TextChange("a", "cut", "")]),
    ],
)
def test_the_changes_of_a_diff(diff: str, changes: list[TextChange]) -> None:
    assert changes_in(diff) == changes


def test_the_library_is_loaded_by_this_command_alone() -> None:
    code = "import sys, holdfast.cli.run, holdfast.cli.mcp; print('acp' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout == "False\n"
