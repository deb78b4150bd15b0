"""Tests of agents behind AG-UI, judged by the protocol's own client and types."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import LLM, Agent
from holdfast.serve import agui
from holdfast.server.openai import publish
from holdfast.server.policy import Policy
from tests.agent_servers import Reply, Serving
from tests.door_tools import SCRIPT, ask_user, pay, write_agent
from tests.model_server import ModelServer, Stall, calls, sse, text
from tests.paths import DATA, REPO
from tests.samples import one_in
from tests.serve_process import KEY, ServeProcess
from tests.waiting import until

Json = dict[str, Any]
LOOK: Json = {"name": "look", "description": "Look at the page.", "parameters": {"type": "object"}}


class Thread:
    """A thread of a front end."""

    def __init__(self, server: Any, key: str = "", id: str = "t1") -> None:
        self.server = server
        self.key = key
        self.id = id
        self.messages: list[Json] = []
        self.state: Any = {}
        self.runs: list[tuple[Json, list[Json]]] = []

    def say(self, content: Any) -> Thread:
        self.messages.append({"id": f"u{len(self.messages)}", "role": "user", "content": content})
        return self

    def run(self, **more: Any) -> list[Json]:
        """Run the agent, and add its messages to the thread."""
        input = {
            "threadId": self.id,
            "runId": f"run-{len(self.runs)}",
            "messages": self.messages,
            "state": self.state,
            **more,
        }
        reply = self.server.ask("POST", "/agui/painter", input, key=self.key)
        assert reply.status == 200, reply
        events = events_of(reply)
        self.runs.append((input, events))
        for event in events:
            match event:
                case {"type": "TEXT_MESSAGE_START", "messageId": id}:
                    self.messages.append({"id": id, "role": "assistant", "content": ""})
                case {"type": "TEXT_MESSAGE_CONTENT", "delta": delta}:
                    self.messages[-1]["content"] += delta
                case {"type": "TOOL_CALL_START", "toolCallId": id, "parentMessageId": parent}:
                    function = {"name": event["toolCallName"], "arguments": "{}"}
                    call = {"id": id, "type": "function", "function": function}
                    if self.messages[-1]["id"] != parent:
                        self.messages.append({"id": parent, "role": "assistant", "content": ""})
                    self.messages[-1].setdefault("toolCalls", []).append(call)
                case {"type": "TOOL_CALL_RESULT", "messageId": id, "toolCallId": call}:
                    self.result(id, call, event["content"])
                case {"type": "MESSAGES_SNAPSHOT", "messages": messages}:
                    self.messages = list(messages)
                case {"type": "STATE_SNAPSHOT", "snapshot": state}:
                    self.state = state
                case _:
                    pass
        return events

    def result(self, id: str, call: str, content: str) -> None:
        message = {"id": id, "role": "tool", "toolCallId": call, "content": content}
        self.messages.append(message)


def events_of(reply: Reply) -> list[Json]:
    blocks = reply.body.decode().split("\n\n")
    return [json.loads(one.removeprefix("data: ")) for one in blocks if one.startswith("data: ")]


def answer(one: Any) -> Any:
    if isinstance(one, Stall | tuple):  # a tuple is a whole HTTP answer
        return one
    return sse(text(one) if isinstance(one, str) else calls(*one))


@contextmanager
def serving(folder: Path, script: Any, code: bool = False) -> Iterator[Thread]:
    script = script if callable(script) else [answer(one) for one in script]
    policy = Policy(["tests.*", "holdfast.*"], entry_points=False)
    with ModelServer(script) as model:
        llm = LLM("m", api_key="sk", base_url=model.url, max_retries=0, stream=True)
        agent = Agent(llm, [pay, ask_user], confirm=["pay"], planning="tool", code=code)
        agents = {"painter": publish("painter", agent)}
        with Serving(folder, agents=agents, policy=policy, doors=[agui.add]) as server:
            yield Thread(server)


def outcome(events: Sequence[Json]) -> Json:
    assert events[-1]["type"] == "RUN_FINISHED", events[-1]
    return events[-1]["outcome"]


def check_types(runs: Sequence[tuple[Json, list[Json]]]) -> None:
    core = pytest.importorskip("ag_ui.core", reason="ag-ui-protocol is not installed")
    from pydantic import TypeAdapter

    event = TypeAdapter(core.Event)
    for input, events in runs:
        core.RunAgentInput.model_validate(input)
        for one in events:
            event.validate_python(one)


def judged(runs: Sequence[tuple[Json, list[Json]]]) -> list[Json]:
    """Return the result of the protocol's own client for runs: the messages and the state, or an
    error."""
    modules = Path(sys.prefix) / "ag-ui"
    if shutil.which("node") is None or not (modules / "node_modules/@ag-ui/client").is_dir():
        pytest.skip("@ag-ui/client is not installed (npm install --prefix .venv/ag-ui)")
    lines = [json.dumps({"input": input, "events": events}) for input, events in runs]
    process = subprocess.run(
        ["node", DATA / "agui_judge.mjs", modules],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_a_run_streams_text_and_goes_on_in_its_thread(tmp_path: Path) -> None:
    with serving(tmp_path, ["red as a rose is red", "as blood"]) as thread:
        events = thread.say("Which?").run()
        kinds = [event["type"] for event in events]
        assert kinds[:3] == ["RUN_STARTED", "STATE_SNAPSHOT", "TEXT_MESSAGE_START"]
        assert kinds.count("TEXT_MESSAGE_CONTENT") > 2
        assert outcome(events) == {"type": "success"}
        assert thread.messages[-1]["content"] == "red as a rose is red"
        thread.say("How red?").run()
        assert [one["content"] for one in thread.messages][1::2] == [
            "red as a rose is red",
            "as blood",
        ]
        thread.messages = []
        (snapshot,) = [one for one in thread.run() if one["type"] == "MESSAGES_SNAPSHOT"]
        assert [one["content"] for one in snapshot["messages"]] == [
            "Which?",
            "red as a rose is red",
            "How red?",
            "as blood",
        ]
        check_types(thread.runs)


def test_approvals_and_questions_are_interrupts(tmp_path: Path) -> None:
    script = [[("pay", {"amount": 3})], [("ask_user", {"question": "Which colour?"})], "done"]
    with serving(tmp_path, script) as thread:
        (approval,) = outcome(thread.say("Buy paint.").run())["interrupts"]
        assert approval["metadata"]["arguments"] == {"amount": 3}
        again = outcome(thread.run())["interrupts"]
        assert again == [approval]
        entry = {"interruptId": approval["id"], "status": "resolved"}
        events = thread.run(resume=[{**entry, "payload": {"approved": True}}])
        assert [one["content"] for one in events if one["type"] == "TOOL_CALL_RESULT"] == ["paid 3"]
        (question,) = outcome(events)["interrupts"]
        assert question["message"] == "Which colour?"
        entry = {"interruptId": question["id"], "status": "resolved", "payload": "red"}
        thread.run(resume=[entry])
        assert thread.messages[-1]["content"] == "done"
        failed = thread.run(resume=[entry])
        assert failed[-1]["type"] == "RUN_ERROR"
        check_types(thread.runs)


def test_calls_of_a_script_are_begun_before_their_results(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    with serving(tmp_path, [[SCRIPT], "done"], code=True) as thread:
        (approval,) = outcome(thread.say("Buy paint.").run())["interrupts"]
        entry = {"interruptId": approval["id"], "status": "resolved"}
        (question,) = outcome(thread.run(resume=[{**entry, "payload": True}]))["interrupts"]
        thread.run(resume=[{"interruptId": question["id"], "status": "resolved", "payload": "red"}])
        assert thread.messages[-1]["content"] == "done"
        for messages in (thread.messages, thread.messages):
            started = [call["id"] for one in messages for call in one.get("toolCalls", [])]
            ended = [one["toolCallId"] for one in messages if one["role"] == "tool"]
            assert len(started) == 3
            assert sorted(started) == sorted(ended)
            thread.messages = []
            thread.run()  # the thread as the server has it
        check_types(thread.runs)
        assert all("error" not in one for one in judged(thread.runs))


def test_tools_of_the_front_end_run_there(tmp_path: Path) -> None:
    with serving(tmp_path, [[("look", {}), ("look", {})], "seen", "ok"]) as thread:
        pending = outcome(thread.say("Look.").run(tools=[LOOK]))["pendingToolCallIds"]
        assert len(pending) == 2
        for call in pending:
            thread.result(f"r{call}", call, "blue")
        assert outcome(thread.run(tools=[LOOK])) == {"type": "success"}
        assert thread.messages[-1]["content"] == "seen"
        assert not [one for one in thread.runs[-1][1] if one["type"] == "TOOL_CALL_START"]


def test_the_plan_is_state_and_a_repeated_message_is_sent_once(tmp_path: Path) -> None:
    steps = [{"step": "mix", "state": "in_progress"}]
    with serving(tmp_path, [[("plan", {"steps": steps})], "planned"]) as thread:
        thread.state = {"page": 3}
        events = thread.say("Plan it.").run()
        (delta,) = [one for one in events if one["type"] == "STATE_DELTA"]
        assert delta["delta"] == [{"op": "replace", "path": "/plan", "value": steps}]
        thread.messages = thread.messages[:1]  # the answer was lost
        thread.run()
        assert [one["role"] for one in thread.messages].count("user") == 1
        assert thread.state == {"page": 3, "plan": steps}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"threadId": "t"}, 422),
        ({"threadId": "t", "runId": "r", "messages": [{"id": 1, "role": "user"}]}, 422),
        ([], 422),
    ],
)
def test_a_request_that_is_none_is_refused(tmp_path: Path, body: Any, status: int) -> None:
    with serving(tmp_path, []) as thread:
        assert thread.server.ask("POST", "/agui/painter", body).status == status
        assert thread.server.ask("POST", "/agui/nobody", body).status == 404


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"id": "u", "role": "user", "content": ""}], "threadId": ""},
        {"messages": [{"id": "u", "role": "user", "content": [{"type": "film"}]}]},
        {"messages": [{"id": "u", "role": "user"}]},
        {"resume": [{"interruptId": "no", "status": "resolved"}]},
        {"tools": [{"name": "pay"}]},
        {"tools": [{"name": "${x}"}]},
    ],
)
def test_bad_input_is_an_error_of_the_run(tmp_path: Path, more: Json) -> None:
    with serving(tmp_path, ["hi"]) as thread:
        events = thread.say("Hi").run(**more)
        assert [event["type"] for event in events] == ["RUN_STARTED", "RUN_ERROR"]
        assert events[-1]["code"] == "ConfigurationError"


def test_a_failed_model_is_an_error_of_the_run(tmp_path: Path) -> None:
    with serving(tmp_path, []) as thread:
        assert thread.say("Hi").run()[-1]["type"] == "RUN_ERROR"


@pytest.mark.slow
def test_an_approval_and_a_question_survive_a_kill(tmp_path: Path) -> None:
    script = [[("pay", {"amount": 3})], [("ask_user", {"question": "Which colour?"})], "done"]
    answers = [text(one) if isinstance(one, str) else calls(*one) for one in script]
    with (
        ModelServer(answers) as model,
        ServeProcess(tmp_path, *write_agent(tmp_path, model.url), library=REPO) as server,
    ):
        thread = Thread(server, KEY)
        end = outcome(thread.say("Buy paint.").run())
        for payload in (True, "red"):
            server.kill()
            server.start()
            again = outcome(thread.run())
            assert again == end
            entry = {"interruptId": again["interrupts"][0]["id"], "status": "resolved"}
            end = outcome(thread.run(resume=[{**entry, "payload": payload}]))
        assert thread.messages[-1]["content"] == "done"
        results = [one["content"] for one in thread.messages if one["role"] == "tool"]
        assert results == ["paid 3", "The user answers: red"]


def test_a_repeated_request_continues_the_run_that_was_broken_off(tmp_path: Path) -> None:
    with serving(tmp_path, [(500, {}, b"down"), Stall(60), "done"]) as thread:
        failed = thread.say("Hi.").run()[-1]
        assert failed["type"] == "RUN_ERROR"
        input = {"threadId": thread.id, "runId": "r", "messages": thread.messages}
        server = thread.server
        connection = server.connect()
        headers = {"Authorization": f"Bearer {server.key}"}
        connection.request("POST", "/agui/painter", json.dumps(input), headers)
        response = connection.getresponse()
        assert b"RUN_STARTED" in response.readline()

        def status() -> Any:
            return server.ask("GET", "/api/conversations").json["items"][0]["status"]

        until(lambda: status() == "running")
        response.close()
        connection.close()
        until(lambda: status() == "paused")
        assert outcome(thread.run()) == {"type": "success"}
        assert thread.messages[-1]["content"] == "done"


@pytest.mark.slow
def test_the_own_client_finds_nothing_in_random_conversations(tmp_path: Path) -> None:
    """Check random conversations of up to four turns, each with text, reasoning, plans, calls of
    both sides, approvals, questions and failures."""
    dice = random.Random(7)
    count = 300 // one_in(1)

    def model(request: Any) -> Any:
        roll = dice.random()
        if roll < 0.08:
            return (500, {}, b"down")
        choices = [
            ("pay", {"amount": 3}),
            ("ask_user", {"question": "Which?", "options": ["a", "b"]}),
            ("look", {}),
            ("plan", {"steps": [{"step": "mix", "state": "done"}]}),
        ]
        if roll < 0.5:
            verdicts = calls(*dice.choices(choices, k=dice.randint(1, 3)))
            verdicts["choices"][0]["message"]["content"] = dice.choice([None, "So:"])
        else:
            verdicts = text("red as a rose" * dice.randint(1, 3))
        if dice.random() < 0.4:
            verdicts["choices"][0]["message"]["reasoning_content"] = "I think."
        return sse(verdicts, size=dice.randint(1, 20))

    with serving(tmp_path, model) as first:
        runs: list[tuple[Json, list[Json]]] = []
        for number in range(count):
            thread = Thread(first.server, id=f"t{number}")
            thread.say("Paint.")
            more: Json = {}
            for _ in range(dice.randint(1, 4)):
                if dice.random() < 0.1:
                    thread.messages = thread.messages[:0]  # a reload of the page
                end = thread.run(tools=[LOOK], **more)[-1]
                more = {}
                match end.get("outcome"):
                    case {"type": "interrupt", "interrupts": interrupts}:
                        entries = [
                            {
                                "interruptId": one["id"],
                                "status": dice.choice(["resolved", "cancelled"]),
                                "payload": {"answer": "a"}
                                if one["reason"] == "question"
                                else dice.choice([True, False]),
                            }
                            for one in interrupts
                        ]
                        more = {"resume": entries}
                    case {"type": "success", "pendingToolCallIds": pending}:
                        for call in pending:
                            thread.result(f"r{call}", call, "blue")
                    case _:
                        thread.say("Go on.")
            runs += thread.runs
        check_types(runs)
        input, events = runs[0]
        *verdicts, control = judged([*runs, (input, events[1:])])
        assert "error" in control
        assert len(verdicts) == len(runs) > 2 * count
        assert [(one, run) for one, run in zip(verdicts, runs, strict=True) if "error" in one] == []
