"""Conversations whose provider compacts their history into a form that only its own models can
read."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    FallbackLLM,
    Limits,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    load_agent,
)
from holdfast import events as ev
from holdfast.agent.condensers import (
    CompactionCondenser,
    Pipeline,
    ToolOutputCondenser,
    WindowCondenser,
)
from holdfast.agent.condensers.summary import HEADING
from holdfast.agent.view import View
from holdfast.conversation.replay import replay
from holdfast.errors import ConfigurationError
from holdfast.llm import LLM, RecordedLLM
from holdfast.observe import JsonLog
from holdfast.openhands import write_conversation
from tests import forks
from tests.llm.test_openai_responses import call_item, message_item, response
from tests.model_server import ModelServer, Request, text
from tests.paths import REPO
from tests.samples import one_in

S = ConversationStatus
AT = 3000


def note(n: int) -> str:
    """Looks something up."""
    return f"note {n}: " + "some words of what was found " * 60


def outputs(items: list[dict[str, Any]]) -> int:
    """Return the number of results that the model knows from its input."""
    count = 0
    for item in items:
        if item.get("type") == "function_call_output":
            count += 1
        elif item.get("type") == "compaction":
            count = int(item["encrypted_content"].partition("=")[2])
    return count


def provider(steps: int) -> Any:
    """Return a Responses server that calls `note` until it has seen that many results. A compaction
    keeps the user's messages, and counts the results in its encrypted content."""

    def answer(request: Request) -> Any:
        items = request.json["input"]
        count = outputs(items)
        usage = {"input_tokens": len(request.body) // 4, "output_tokens": 20}
        if request.path.endswith("/compact"):
            messages = [item for item in items if item.get("role") == "user"]
            compaction = {"type": "compaction", "id": "cmp_1", "encrypted_content": f"seen={count}"}
            return {
                "id": "resp_9",
                "object": "response.compaction",
                "output": [*messages, compaction],
                "usage": usage,
            }
        places = [at for at, item in enumerate(items) if item.get("type") == "compaction"]
        assert len(places) <= 1, "an earlier compaction was sent"
        assert all(item.get("role") == "user" for item in items[: sum(places)])
        arguments = json.dumps({"n": count + 1})
        item = (
            call_item("note", arguments, f"call_{count}")
            if count < steps
            else message_item(f"Seen {count}.")
        )
        return response(item, usage=usage)

    return answer


def model(server: ModelServer, **more: Any) -> LLM:
    return LLM("gpt-5", "key", server.url, wire="openai_responses", max_retries=0, **more)


def agent(llm: Any, condenser: Any = None, **more: Any) -> Agent:
    condenser = CompactionCondenser(at=AT) if condenser is None else condenser
    return Agent(llm, [note], condenser=condenser, limits=Limits(steps=None), **more)


def compactions(conversation: Conversation) -> list[ev.HistoryCondensed]:
    return [
        event
        for event in conversation.get_history()
        if isinstance(event, ev.HistoryCondensed) and event.compaction is not None
    ]


def steps_of(server: ModelServer) -> list[Request]:
    return [request for request in server.requests if not request.path.endswith("/compact")]


def test_a_long_run_stays_below_its_bound_and_is_compacted_seldom() -> None:
    with ModelServer(provider(40)) as server, Conversation(agent(model(server))) as conversation:
        conversation.send_message("Take forty notes.")
        assert conversation.run().answer == "Seen 40."
        events, history = compactions(conversation), conversation.get_history()
        assert 2 < len(events) < 12
        assert all(one.hidden == () and one.model == "gpt-5" for one in events)
        assert all(one.usage.output_tokens == 20 for one in events)
        requests = steps_of(server)
        assert max(len(request.body) // 4 for request in requests) < AT * 1.2
        first = {"role": "user", "content": "Take forty notes."}
        assert all(request.json["input"][0] == first for request in requests)
        assert replay(history).same
        assert replay(history, conversation.agent).same
        calls = [event.call_id for event in history if isinstance(event, ev.ToolCallStarted)]
        assert len(calls) == len(set(calls)) == 40


def test_a_log_names_the_compaction_without_its_content() -> None:
    out = io.StringIO()
    with (
        ModelServer(provider(3)) as server,
        Conversation(agent(model(server)), observer=JsonLog(out)) as conversation,
    ):
        conversation.send_message("Take notes.")
        conversation.run()
        conversation.condense()
    (line,) = [one for one in out.getvalue().splitlines() if '"compaction":' in one]
    assert json.loads(line)["compaction"].keys() == {"basedOn", "wire", "host"}


def test_instructions_follow_the_system_prompt_and_settings_are_left_out() -> None:
    with (
        ModelServer(provider(3)) as server,
        Conversation(
            agent(model(server, temperature=0), system_prompt="Be brief."), id="c"
        ) as conversation,
    ):
        conversation.send_message("Take notes.")
        conversation.run()
        conversation.condense("Mind the dates.")
        request = next(one for one in server.requests if one.path.endswith("/responses/compact"))
    assert request.json["instructions"] == "Be brief.\n\nMind the dates."
    assert request.json.keys() == {"model", "input", "instructions"}
    assert outputs(request.json["input"]) == 3


def test_a_message_that_arrives_meanwhile_follows_the_compaction() -> None:
    answer, late = provider(2), threading.Event()

    def busy(request: Request) -> Any:
        if request.path.endswith("/compact") and not late.is_set():
            late.set()
            conversation.send_message("And hurry.")
        return answer(request)

    with ModelServer(busy) as server, Conversation(agent(model(server))) as conversation:
        conversation.send_message("Take notes.")
        conversation.run()
        conversation.condense()
        conversation.run()
        (event,) = compactions(conversation)
        assert event.compaction is not None
        assert event.compaction.based_on < event.seq - 1, "a message came between"
        items = steps_of(server)[-1].json["input"]
        assert [item.get("type", item.get("content")) for item in items] == [
            "Take notes.",
            "compaction",
            "And hurry.",
        ]
        assert replay(conversation.get_history()).same


def test_copies_of_a_conversation_go_on_from_the_compaction(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")
    with ModelServer(provider(12)) as server, store:
        with Conversation(agent(model(server)), store, "c") as conversation:
            conversation.send_message("Take notes.")
            conversation.run()
            assert compactions(conversation)
            state = conversation.state
            notes = write_conversation(state, tmp_path / "openhands")
            assert [note for note in notes if "can be read by gpt-5 alone" in note]
            fork = conversation.fork(id="f")
        lines = [ev.line(event) for event in store.read("c")]
        assert [ev.decode(line) for line in lines] == store.read("c")
        copy = Conversation.from_state(state, agent(model(server)), MemoryStore())
        reopened = Conversation(agent(model(server)), store, "c")
        inputs: list[Any] = []
        for one in (reopened, fork, copy):
            with one:
                one.send_message("Once more.")
                assert one.run().answer == "Seen 12."
                inputs.append(steps_of(server)[-1].json["input"])
                assert replay(one.get_history()).same
        assert inputs[0] == inputs[1] == inputs[2]
        assert "compaction" in [item.get("type") for item in inputs[0]]


def test_another_model_is_sent_the_whole_history_and_the_first_one_its_compaction_again() -> None:
    store = MemoryStore()
    with ModelServer(provider(12)) as server, ModelServer(lambda request: text("Fine.")) as other:
        with Conversation(agent(model(server)), store, "c") as conversation:
            conversation.send_message("Take notes.")
            conversation.run()
            size = conversation.hosting.journal.fold.measure(()).tokens
        chat = LLM("m", "key", other.url, wire="openai_chat", max_retries=0)
        with Conversation(agent(chat, WindowCondenser(at=None)), store, "c") as conversation:
            conversation.send_message("And you?")
            conversation.run()
            messages = other.requests[0].json["messages"]
            assert sum(message["role"] == "tool" for message in messages) == 12
            assert all(message.get("content") or message.get("tool_calls") for message in messages)
            (answer,) = [
                event
                for event in conversation.get_history()
                if isinstance(event, ev.AssistantReplied) and event.text == "Fine."
            ]
            assert [line for line in answer.notes if "compacted" in line] == [
                "gpt-5 has compacted the history in a form that only it can read: m was sent the"
                " whole history."
            ]
            assert replay(conversation.get_history()).same
        with Conversation(agent(model(server)), store, "c") as conversation:
            conversation.send_message("Go on.")
            conversation.run()
            request = steps_of(server)[-1]
            assert "compaction" in [item.get("type") for item in request.json["input"]]
            assert len(request.body) // 4 < AT
            assert size < AT
            assert replay(conversation.get_history()).same


@pytest.mark.parametrize("own", [None, WindowCondenser(keep=3)])
def test_a_model_without_compaction_is_condensed_otherwise(
    own: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The request of a model without compaction has the whole history, so it is condensed. The
    summary replaces the compaction, which is no longer used."""
    store = MemoryStore()
    condenser = CompactionCondenser(own, at=AT)
    with (
        ModelServer(provider(12)) as server,
        ModelServer(lambda request: text("## Goal\nNotes.")) as other,
    ):
        with Conversation(agent(model(server)), store, "c") as conversation:
            conversation.send_message("Take notes.")
            conversation.run()
        chat = LLM("m", "key", other.url, wire="openai_chat", max_retries=0)
        with (
            caplog.at_level(logging.WARNING, "holdfast"),
            Conversation(agent(chat, condenser), store, "c") as conversation,
        ):
            conversation.send_message("And you?")
            conversation.run().raise_for_status()
            last = [
                event
                for event in conversation.get_history()
                if isinstance(event, ev.HistoryCondensed) and event.hidden
            ][-1]
            assert last.summary.startswith(HEADING) == (own is None)
            assert len(other.requests[-1].body) // 4 < AT
        assert "compact is not supported on the wire openai_chat" in caplog.text
        before = len(server.requests)
        with Conversation(agent(model(server)), store, "c") as conversation:
            conversation.send_message("Go on.")
            conversation.run()
            items = server.requests[before].json["input"]
            assert "compaction" not in [item.get("type") for item in items]
            assert last.summary in [item.get("content") for item in items]
            assert replay(conversation.get_history()).same
            events = conversation.get_history()
            assert View.of(store.tail("c")).ready().items == View.of(events).ready().items


@pytest.mark.parametrize(
    ("refusal", "falls_back"),
    [
        ((404, {}, {"error": {"message": "no such path"}}), True),
        ((405, {}, "Method Not Allowed"), True),
        ((400, {}, {"error": {"message": "long", "code": "context_length_exceeded"}}), True),
        ((503, {}, {"error": {"message": "busy"}}), False),
        (response(message_item("Hm.")), False),
    ],
)
def test_a_refused_compaction(refusal: Any, falls_back: bool) -> None:
    answer = provider(3)

    def refusing(request: Request) -> Any:
        return refusal if request.path.endswith("/compact") else answer(request)

    condenser = CompactionCondenser(WindowCondenser(keep=2), at=None)
    with (
        ModelServer(refusing) as server,
        Conversation(agent(model(server), condenser)) as conversation,
    ):
        conversation.send_message("Take notes.")
        conversation.run()
        conversation.condense()
        last = [
            event for event in conversation.get_history() if isinstance(event, ev.HistoryCondensed)
        ][-1]
        assert bool(last.hidden) == falls_back
        assert bool(last.failed) != falls_back
        conversation.send_message("Go on.")
        assert conversation.run().status is S.FINISHED


def test_a_pipeline_trims_first_and_a_window_leaves_the_compaction_alone() -> None:
    condenser = Pipeline([ToolOutputCondenser(), CompactionCondenser()], at=AT, to=0.1)
    store = MemoryStore()
    with ModelServer(provider(12)) as server:
        with Conversation(agent(model(server), condenser), store, "c") as conversation:
            conversation.send_message("Take notes.")
            assert conversation.run().answer == "Seen 12."
            assert any(one.trimmed for one in compactions(conversation))
            assert replay(conversation.get_history()).same
        with Conversation(agent(model(server), WindowCondenser(1)), store, "c") as conversation:
            for message in ("One.", "Two.", "Three."):
                conversation.send_message(message)
                conversation.run()
            conversation.condense()
            conversation.send_message("Four.")
            conversation.run()
            items = steps_of(server)[-1].json["input"]
            assert [item for item in items if item.get("type") == "compaction"]
            assert "One." not in json.dumps(items)
            assert "Four." in json.dumps(items)
            hidden = [
                event.hidden
                for event in conversation.get_history()
                if isinstance(event, ev.HistoryCondensed) and event.hidden
            ]
            assert min(hidden[-1]) > compactions(conversation)[-1].seq
            assert replay(conversation.get_history()).same


def test_nothing_new_is_not_compacted_again() -> None:
    with ModelServer(provider(2)) as server, Conversation(agent(model(server))) as conversation:
        conversation.send_message("Take notes.")
        conversation.condense()
        conversation.run()
        for _ in range(2):
            conversation.condense()
        failed = [
            event.failed
            for event in conversation.get_history()
            if isinstance(event, ev.HistoryCondensed) and event.request is None
        ]
        assert failed[-1] == "nothing can be left out"
        assert len(compactions(conversation)) == 1


def test_a_plan_is_shown_behind_the_compaction() -> None:
    answer = provider(2)

    def planning(request: Request) -> Any:
        items = request.json["input"]
        if len(items) == 1 and not request.path.endswith("/compact"):
            steps = [{"step": "Take the notes", "state": "in_progress"}]
            return response(call_item("plan", json.dumps({"steps": steps}), "call_p"))
        return answer(request)

    with (
        ModelServer(planning) as server,
        Conversation(agent(model(server), planning="tool")) as conversation,
    ):
        conversation.send_message("Take notes.")
        conversation.run()
        conversation.condense()
        conversation.send_message("Go on.")
        conversation.run()
        first, compaction, plan, message = steps_of(server)[-1].json["input"]
        assert (first["content"], compaction["type"]) == ("Take notes.", "compaction")
        assert "Take the notes" in plan["content"]
        assert message["content"] == "Go on."
        assert replay(conversation.get_history()).same


def test_a_composite_has_the_model_compact_that_answered_and_a_recording_repeats_it(
    tmp_path: Path,
) -> None:
    with ModelServer(provider(12)) as server, ModelServer([]) as broken:
        down = LLM("m", "key", broken.url, wire="openai_chat", max_retries=0)
        recorded = RecordedLLM(model(server), tmp_path / "r.jsonl")
        for llm in (FallbackLLM({"a": down, "b": model(server)}), recorded):
            with Conversation(agent(llm)) as conversation:
                conversation.send_message("Take notes.")
                assert conversation.run().answer == "Seen 12."
                assert compactions(conversation)
                assert replay(conversation.get_history()).same
        count = len(server.requests)
        again = RecordedLLM(model(server), tmp_path / "r.jsonl", "replay")
        with Conversation(agent(again)) as conversation:
            conversation.send_message("Take notes.")
            assert conversation.run().answer == "Seen 12."
        assert len(server.requests) == count
        with pytest.raises(ConfigurationError, match="a has no compaction"):
            FallbackLLM({"a": ScriptedLLM([])}).compact("one")


def test_an_agent_document_has_it() -> None:
    other = Agent(
        ScriptedLLM(["a"]), condenser=CompactionCondenser(ToolOutputCondenser(100), at=0.7)
    )
    form = json.loads(other.to_json())
    assert form["condenser"] == {
        "name": "compaction",
        "at": 0.7,
        "otherwise": {"name": "tool_output", "keep": 100},
    }
    copy = Agent.from_json(other.to_json())
    assert copy.condenser == other.condenser
    assert [tool.name for tool in copy.tools.list_tools()] == ["read_output"]
    model = {"use": "scripted", "parameters": {"script": ["a"]}}
    assert load_agent({"model": model, "condenser": "compaction"}).condenser == (
        CompactionCondenser()
    )
    with pytest.raises(ConfigurationError, match="otherwise"):
        CompactionCondenser(5)
    from holdfast.server.policy import Policy, check_agent

    policy = Policy()
    condenser: dict[str, Any] = {"name": "compaction", "otherwise": {"name": "window"}}
    assert check_agent({"model": model, "condenser": condenser}, policy) == []
    condenser["otherwise"] = {"use": "os:getcwd"}
    with pytest.raises(ConfigurationError, match=r"condenser\.otherwise\.use"):
        check_agent({"model": model, "condenser": condenser}, policy)


def test_secrets_in_a_compaction_are_not_journaled() -> None:
    def leaky_provider(request: Request) -> Any:
        body = provider(2)(request)
        if request.path.endswith("/compact"):
            body["output"][-1]["encrypted_content"] = "sk-secret-number-1"
        return body

    with (
        ModelServer(leaky_provider) as server,
        Conversation(agent(model(server)), secrets={"KEY": "sk-secret-number-1"}) as conversation,
    ):
        conversation.send_message("Take notes.")
        conversation.run()
        conversation.condense()
        events = conversation.get_history()
        assert b"sk-secret" not in b"".join(map(ev.encode, events))
        assert compactions(conversation) == []


# --- kill -9 ---

PROGRAM = """
import os, signal, sys
from holdfast import Conversation, SQLiteStore
from tests.conversation.test_compaction import short_agent

url, place, behind = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "behind"

class Store(SQLiteStore):
    count = 0

    def append(self, lease, batch):
        self.count += 1
        if self.count == place and not behind:
            os.kill(os.getpid(), signal.SIGKILL)
        super().append(lease, batch)
        if self.count == place:
            os.kill(os.getpid(), signal.SIGKILL)

conversation = Conversation(short_agent(url), Store("s.db"), "c")
conversation.send_message("Take notes.")
conversation.run()
"""


def short_agent(url: str) -> Agent:
    llm = LLM("gpt-5", "key", url, wire="openai_responses", max_retries=0)
    return agent(llm, CompactionCondenser(at=1400))


@pytest.mark.slow
@pytest.mark.parametrize("side", ["before", "behind"])
def test_a_kill_at_any_append_leaves_one_history(side: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'src'}"}
    kills = compacted = 0
    with ModelServer(provider(4)) as server:
        for place in range(1, 100, one_in(1, 2)):
            folder = tmp_path / str(place)
            folder.mkdir()
            process = forks.run(
                [sys.executable, "-c", PROGRAM, server.url, str(place), side],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
            )
            if process.returncode != -signal.SIGKILL:
                assert process.returncode == 0, process.stderr
                break
            kills += 1
            with (
                SQLiteStore(folder / "s.db") as store,
                Conversation(short_agent(server.url), store, "c") as conversation,
            ):
                prefix = conversation.get_history()
                if not any(isinstance(event, ev.MessageAdded) for event in prefix):
                    conversation.send_message("Take notes.")
                assert conversation.run().answer == "Seen 4."
                events = conversation.get_history()
                assert events[: len(prefix)] == prefix
                compacted += len(compactions(conversation)) > 0
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert replay(events).same
            calls = [event.call_id for event in events if isinstance(event, ev.ToolCallFinished)]
            assert len(calls) == len(set(calls))
    assert place > 10
    assert compacted == kills


def test_an_old_condensation_is_written_as_before() -> None:
    event = ev.HistoryCondensed(seq=4, id="x", timestamp=ev.EPOCH, hidden=(1, 2), summary="s")
    assert b"compaction" not in ev.encode(event)
    empty = ev.HistoryCondensed(
        seq=4, id="x", timestamp=ev.EPOCH, hidden=(), compaction=ev.Compaction()
    )
    assert ev.decode(ev.record(empty)) == empty
