"""`holdfast stats`, which reports the usage of conversations from a read-only store, and
`--log`."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    LLM,
    Agent,
    Conversation,
    RemoteConversation,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    tool,
)
from holdfast import events as ev
from holdfast.answer import AnswerDetails, ServerToolCall
from holdfast.content import TextContent, Usage
from holdfast.errors import ConversationNotFound
from holdfast.observe.stats import stats, tree
from holdfast.store import Batch, Summary
from tests import forks
from tests.model_server import ModelServer, text
from tests.serve_process import ServeProcess

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@tool
def weather(city: str) -> str:
    """Weather of a city."""
    return f"{city}: sunny"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a store with a conversation that spawned a child, and another conversation."""
    child = Agent(ScriptedLLM([[("weather", {"city": "Bern"})], "sunny"]), [weather])

    def ask_child(context: ToolContext) -> str:
        """Asks a child."""
        return context.spawn(child, "go").run().answer or ""

    def fails() -> str:
        """Fails."""
        raise ValueError

    with SQLiteStore(tmp_path / "store.db", "process") as store:
        answers = [[("ask_child", {}), ("fails", {})], "done"]
        with Conversation(
            Agent(ScriptedLLM(answers), [Tool.from_function(ask_child), Tool.from_function(fails)]),
            store,
            "root",
        ) as conversation:
            conversation.send_message("Find out")
            conversation.run()
        with Conversation(Agent(ScriptedLLM(["hello"])), store, "other") as conversation:
            conversation.send_message("Hello")
            conversation.run()
    return tmp_path / "store.db"


def command(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end and return the result."""
    return forks.run(
        [sys.executable, "-m", "holdfast.cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )


class JournalWriter:
    """Writes the events of a test to the journal of a conversation."""

    def __init__(self, store: SQLiteStore, id: str) -> None:
        self.store, self.id, self.lease, self.events = store, id, store.acquire(id), list[Any]()

    def add(self, kind: Any, after: float, **fields: Any) -> None:
        seq = len(self.events) + 1
        self.events.append(
            kind(seq=seq, id=f"{seq}", timestamp=BEGIN + timedelta(seconds=after), **fields)
        )

    def finish(self) -> Summary:
        """Store the events and return the summary."""
        summary = Summary(self.id, last_seq=len(self.events), created=BEGIN, updated=BEGIN)
        self.store.append(self.lease, Batch(self.events, summary))
        self.store.release(self.lease)
        return summary


# --- counting ---


def test_times_tokens_and_costs_are_added_up_by_model_and_tool(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "store.db", "process") as store:
        writer = JournalWriter(store, "c")
        calls = (
            ToolCall("2.0", "a"),
            ToolCall("2.1", "b"),
            ToolCall("2.2", "b"),
            ToolCall("2.3", "denied"),
        )
        writer.add(ev.StatusChanged, 0, status="running")
        writer.add(
            ev.AssistantReplied,
            1,
            calls=calls,
            model="m",
            usage=Usage(1000, 10, 250),
            duration=1.0,
            cost=0.5,
        )
        writer.add(ev.ToolCallStarted, 1, call_id="2.0")
        writer.add(ev.ToolCallStarted, 1, call_id="2.1", runner="somebody")
        writer.add(ev.ToolCallFinished, 3, call_id="2.0", result=ToolResult("x"), duration=2.0)
        # A client-side call has no duration.
        writer.add(
            ev.ToolCallFinished, 5, call_id="2.1", result=ToolResult.failure("no", "timeout")
        )
        # This call never ran.
        writer.add(
            ev.ToolCallFinished, 5, call_id="2.3", result=ToolResult.failure("no", "cancelled")
        )
        writer.add(ev.StatusChanged, 6, status="waiting_for_confirmation")
        writer.add(ev.StatusChanged, 16, status="running")
        writer.add(
            ev.HistoryCondensed,
            17,
            hidden=(1,),
            summary="s",
            usage=Usage(100, 5),
            cost=0.25,
            model="small",
        )
        writer.add(ev.AssistantReplied, 18, model="m", usage=Usage(1000, 10, 750), duration=3.0)
        writer.add(ev.ErrorRecorded, 20, error="ServerError", message="x")
        writer.add(ev.StatusChanged, 20, status="error")
        totals = stats(store, writer.finish())
    assert (totals.events, totals.steps, totals.seconds, totals.waited, totals.condensations) == (
        13,
        2,
        10.0,
        10.0,
        1,
    )
    assert totals.errors == {"ServerError": 1}
    assert [
        (model.name, model.calls, model.seconds, model.cost, model.unpriced)
        for model in totals.models
    ] == [
        ("m", 2, 4.0, 0.5, 1),
        ("small", 0, 0.0, 0.25, 0),
    ]
    assert [(one.name, one.calls, one.errors, one.seconds) for one in totals.tools] == [
        ("b", 1, 1, 4.0),
        ("a", 1, 0, 2.0),
    ]
    assert [(one.name, one.seconds, one.error) for one in totals.longest] == [
        ("b", 4.0, "timeout"),
        ("m", 3.0, ""),
        ("a", 2.0, ""),
        ("m", 1.0, ""),
    ]
    assert totals.usage == Usage(2100, 25, 1000)
    assert totals.cost == 0.75
    assert totals.cached == pytest.approx(1000 / 2100)


def test_a_fork_counts_what_it_did_itself(path: Path) -> None:
    with SQLiteStore(path) as store:
        with (
            Conversation(Agent(ScriptedLLM(["again"])), store, "other") as conversation,
            conversation.fork(id="fork") as forked,
        ):
            forked.send_message("And?")
            forked.run()
        assert stats(store, store.list(["fork"])[0]).steps == 1


def test_a_tree_is_a_conversation_and_what_its_calls_spawned(path: Path) -> None:
    with SQLiteStore(path, read_only=True) as store:
        assert [summary.id for summary in tree(store, "root")] == ["root", "root.4.0"]
        with pytest.raises(ConversationNotFound):
            tree(store, "none")


@pytest.mark.slow
def test_a_long_journal_is_counted_in_bounded_memory(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "store.db", "process") as store:
        writer = JournalWriter(store, "long")
        for begin in range(1, 30_000, 3):
            writer.add(
                ev.AssistantReplied,
                begin,
                calls=(ToolCall(f"{begin}.0", "a"),),
                model="m",
                duration=1.0,
            )
            writer.add(ev.ToolCallStarted, begin, call_id=f"{begin}.0")
            writer.add(
                ev.ToolCallFinished,
                begin,
                call_id=f"{begin}.0",
                result=ToolResult("x" * 100),
                duration=1.0,
            )
        summary = writer.finish()
        del writer
        tracemalloc.start()
        try:
            assert stats(store, summary).steps == 10_000
            assert tracemalloc.get_traced_memory()[1] < 5_000_000
        finally:
            tracemalloc.stop()


# --- the command ---


def test_the_command_draws_a_tree(path: Path) -> None:
    before = path.read_bytes()
    ended = command("stats", str(path), "root", COLUMNS="100")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("root and 1 conversation spawned from it\n4 steps, ")
    for line in (
        r"\n  scripted +4 x .*█",
        r"\n  ask_child +1 x .*█",
        r"\n  fails +1 x .* 1 error\n",
        r"\n  weather +1 x ",
        r"\nlongest calls\n(  .*\n)*.*ask_child",
        r"\n  root\.4\.0  2 steps",
    ):
        assert re.search(line, ended.stdout), (line, ended.stdout)
    assert "\x1b" not in ended.stdout
    assert path.read_bytes() == before


@pytest.mark.slow
def test_without_an_id_it_is_of_all(path: Path) -> None:
    assert command("stats", str(path)).stdout.startswith("3 conversations\n5 steps")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [20, 40, 59, 80, 200])
def test_lines_fit_the_terminal(path: Path, columns: int) -> None:
    ended = command("stats", str(path), COLUMNS=str(columns))
    assert ended.returncode == 0
    assert max(len(line) for line in ended.stdout.splitlines()) <= max(20, columns - 1)
    assert ("█" in ended.stdout) is (columns > 60)


@pytest.fixture
def priced(tmp_path: Path) -> Path:
    """Make a store whose answers have all token counts, prices and provider tool calls."""
    usage = Usage(1000, 50, 100, 20, 30, 5, 6, 7, 8, 9)
    searches = (ServerToolCall("web_search"), ServerToolCall("web_search"), ServerToolCall("code"))
    with SQLiteStore(tmp_path / "priced.db", "process") as store:
        writer = JournalWriter(store, "c")
        for cost, details in (
            (0.25, AnswerDetails(server_calls=searches, provider_cost=0.25, list_cost=0.5)),
            (0.125, None),
        ):
            writer.add(ev.AssistantReplied, 0, model="m", usage=usage, cost=cost, details=details)
        writer.finish()
    return tmp_path / "priced.db"


def test_all_counts_both_prices_and_the_providers_calls_are_shown(priced: Path) -> None:
    output = command("stats", str(priced), COLUMNS="300").stdout
    counts = "2,000 tokens in (10% cached, 40 written to the cache, 10 of them for an hour,"
    counts += " 12 audio, 16 image), 100 out (60 reasoning, 14 audio, 18 image)"
    assert f"{counts}, $0.3750, of it $0.2500 as providers state (list $0.5000)" in output
    assert f"$0.3750 (list $0.5000), {counts}" in output
    assert "run by providers\n  2 x web_search, 1 x code\n" in output


def test_all_counts_and_both_prices_are_data(priced: Path) -> None:
    whole = json.loads(command("stats", str(priced), "--json").stdout)["whole"]
    assert whole["usage"] == {
        "inputTokens": 2000,
        "outputTokens": 100,
        "cachedInputTokens": 200,
        "cacheWriteTokens": 40,
        "reasoningTokens": 60,
        "cacheWrite1HTokens": 10,
        "inputAudioTokens": 12,
        "outputAudioTokens": 14,
        "inputImageTokens": 16,
        "outputImageTokens": 18,
    }
    assert (whole["cost"], whole["providerCost"], whole["listCost"]) == (0.375, 0.25, 0.5)
    assert whole["models"][0]["providerCost"] == 0.25
    assert whole["serverTools"] == {"web_search": 2, "code": 1}


@pytest.mark.slow
def test_json_is_one_object(path: Path) -> None:
    report = json.loads(command("stats", str(path), "root", "--json").stdout)
    assert [one["id"] for one in report["conversations"]] == ["root", "root.4.0"]
    assert report["whole"]["steps"] == 4
    assert {one["name"]: one["errors"] for one in report["whole"]["tools"]} == {
        "ask_child": 0,
        "fails": 1,
        "weather": 0,
    }
    assert report["whole"]["usage"]["inputTokens"] > 0


@pytest.mark.slow
def test_a_terminal_gets_colour_and_an_ascii_one_plain_bars(path: Path) -> None:
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "PYTHONIOENCODING": "ascii"}
    env.pop("NO_COLOR", None)
    with forks.Popen(
        [sys.executable, "-m", "holdfast.cli", "stats", str(path)],
        stdout=follower,
        stderr=follower,
        env=env,
    ) as process:
        os.close(follower)
        output = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            if not piece:
                break
            output += piece
    os.close(leader)
    assert process.returncode == 0
    assert b"\x1b[1mmodels" in output
    assert b"####" in output


@pytest.mark.slow
def test_what_is_not_there_is_said(path: Path, tmp_path: Path) -> None:
    missing, none = command("stats", str(tmp_path / "no.db")), command("stats", str(path), "zzz")
    assert (missing.returncode, none.returncode) == (2, 2)
    assert "no.db" in missing.stderr
    assert "zzz" in none.stderr


@pytest.mark.slow
def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "store.db", "process") as store:
        writer = JournalWriter(store, "long")
        for _ in range(60_000):
            writer.add(ev.AssistantReplied, 0, text="x" * 100, model="m")
        writer.finish()
    program = "import sys; from holdfast.cli import main; print('in', flush=True); sys.exit(main())"
    with forks.Popen(
        [sys.executable, "-c", program, "stats", str(tmp_path / "store.db")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        time.sleep(0.3)  # before, during or after the read: each must end without a message
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode in (
        130,
        0,
        -signal.SIGINT,
    ), errors  # the last signal came while the interpreter ended
    assert "Traceback" not in errors


# --- the log of a run ---


@pytest.mark.slow
def test_run_writes_a_log_without_its_key(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    with ModelServer(lambda request: text("done, with key-of-mine-123456")) as server:
        words = [
            "run",
            "go",
            "--model",
            "m",
            "--base-url",
            server.url,
            "--api-key-env",
            "MY_KEY",
            "--no-stream",
            "--log",
            str(log),
            "--workdir",
            str(tmp_path),
        ]
        ended = command(*words, MY_KEY="key-of-mine-123456")
    assert ended.returncode == 0, ended.stderr
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["kind"] for line in records} == {"event", "span"}
    assert records[-1]["name"] == "invoke_agent"
    assert "key-of-mine" not in log.read_text()


@pytest.mark.slow
def test_serve_writes_a_log_without_what_was_said(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with (
        ModelServer(lambda request: text("Geheimnis")) as model,
        ServeProcess(tmp_path, "--log", str(log), "--trace") as server,
        server.workspace() as workspace,
        RemoteConversation(
            Agent(LLM("m", base_url=model.url)), workspace=workspace
        ) as conversation,
    ):
        conversation.send_message("Geheimnis")
        assert conversation.run().answer == "Geheimnis"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["kind"] for line in records} == {"event", "span", "request"}
    assert any(line.get("name") == "chat m" for line in records)
    assert "Geheimnis" not in log.read_text()


@pytest.mark.slow
def test_a_log_that_cannot_be_opened_is_said(tmp_path: Path) -> None:
    ended = command(
        "run",
        "go",
        "--model",
        "m",
        "--base-url",
        "http://127.0.0.1:9/v1",
        "--log",
        str(tmp_path / "no" / "log"),
    )
    assert ended.returncode == 2
    assert "--log" in ended.stderr
    ended = command("run", "go", "--model", "m", "--server", "http://127.0.0.1:9", "--log", "log")
    assert ended.returncode == 2
    assert "--log" in ended.stderr


@pytest.mark.parametrize("kind", [ev.HistoryCondensed, ev.MessageAdded, ev.NoteRecorded])
def test_a_price_without_tokens_counts(tmp_path: Path, kind: Any) -> None:
    fields: dict[str, Any] = {
        ev.HistoryCondensed: {"hidden": (1,)},
        ev.MessageAdded: {"content": (TextContent("a"),), "sender": "holdfast"},
        ev.NoteRecorded: {"about": "llm", "text": "asked"},
    }[kind]
    with SQLiteStore(tmp_path / "store.db", "process") as store:
        writer = JournalWriter(store, "c")
        writer.add(kind, 0, cost=0.25, model="per call", **fields)
        totals = stats(store, writer.finish())
    assert totals.cost == 0.25
    assert [(model.name, model.cost) for model in totals.models] == [("per call", 0.25)]
