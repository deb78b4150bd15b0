"""Tests of the end of a `RemoteConversation` on a real agent server: no run is left there, and no
connection stays open here."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, RemoteConversation, RemoteWorkspace, ScriptedLLM
from holdfast.conversation.state import ConversationStatus
from holdfast.errors import ConversationClosed
from tests.remote_parts import KEY as STUB_KEY
from tests.remote_parts import StubServer, connections
from tests.serve_process import ServeProcess
from tests.waiting import until

SLOW = """
from holdfast import ToolContext, tool

@tool
def slow(context: ToolContext) -> str:
    "Take long."
    context.sleep(60)
    return "late"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    library = tmp_path_factory.mktemp("library")
    (library / "hf_slow_tool.py").write_text(SLOW)
    folder = tmp_path_factory.mktemp("server")
    process = ServeProcess(folder, "--allow-tools", "hf_slow_tool", library=library)
    with process as running, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(library))
        yield running


def open_on(space: RemoteWorkspace) -> RemoteConversation:
    from hf_slow_tool import slow  # pyright: ignore[reportMissingImports]

    agent = Agent(ScriptedLLM([("slow", {}), "Done."]), [slow])
    return RemoteConversation(agent, space)


def begin(conversation: RemoteConversation, how: str) -> None:
    with suppress(ConversationClosed):
        getattr(conversation, how)()


def runs(server: ServeProcess, id: str) -> bool:
    summary = server.ask("GET", f"/api/conversations/{id}").json
    return summary["busy"] or summary["driven"]


@pytest.mark.parametrize("how", ["stream", "run", "start_thread"])
def test_a_run_that_begins_as_the_conversation_closes_ends_on_the_server(
    server: ServeProcess, how: str
) -> None:
    with server.workspace() as space:
        for number in range(10):
            with open_on(space) as conversation:
                if how == "stream":
                    next(conversation.stream("go"))
                else:
                    conversation.send_message("go")
                    threading.Thread(target=begin, args=(conversation, how), daemon=True).start()
                    time.sleep(0.003 * number)
            assert conversation.status is ConversationStatus.CLOSED
            time.sleep(0.1)
            assert not runs(server, conversation.id)


def test_a_conversation_that_closes_with_its_stream_has_no_connection_left(
    server: ServeProcess,
) -> None:
    gc.disable()  # which would close a connection that is left
    try:
        for _ in range(10):
            with server.workspace() as space, open_on(space) as conversation:
                next(conversation.stream("go"))
            assert not connections(server.port)
    finally:
        gc.enable()


def test_a_request_that_outlives_the_close_leaves_no_connection(server: ServeProcess) -> None:
    gc.disable()
    space = server.workspace()
    try:
        command = threading.Thread(target=space.run_command, args=("sleep 0.5",))
        command.start()
        until(lambda: connections(server.port))
        time.sleep(0.2)
        space.link.close()
        command.join(20)
        assert not connections(server.port)
        space.close()
        assert not connections(server.port)
    finally:
        gc.enable()


def test_a_detached_conversation_goes_on_though_its_run_had_no_answer_yet(
    server: ServeProcess,
) -> None:
    with server.workspace() as space:
        conversation = open_on(space)
        conversation.send_message("go")
        runner = threading.Thread(target=conversation.run, daemon=True)
        runner.start()
        until(lambda: conversation._run.drives)
        conversation.detach()
        runner.join(20)
        assert runs(server, conversation.id)
        server.ask("POST", f"/api/conversations/{conversation.id}/close")


def test_close_does_not_wait_long_for_a_server_that_does_not_answer_a_run() -> None:
    with StubServer() as server, RemoteWorkspace(server.url, STUB_KEY) as space:
        server.answers += [("/run", 503, {}, b"")] * 1000
        conversation = RemoteConversation(Agent(ScriptedLLM([])), space)
        stream = conversation.stream("go")
        until(lambda: any(path.endswith("/run") for _, path, _, _ in server.requests))
        began = time.monotonic()
        conversation.close(0.5)
        assert time.monotonic() - began < 10
        assert any(path.endswith("/close") for _, path, _, _ in server.requests)
        count = len(server.requests)
        assert not [item for item in stream if item.type == "assistant"]
        assert len(server.requests) == count
