"""Tests of approvals and questions of delegates through each door, also over the death of the
server."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, MemoryStore, ScriptedLLM, ToolManager
from holdfast.serve.agent_tool import agent_tool
from holdfast.serve.door import LocalDoor
from tests.a2a_parts import needs_a2a
from tests.door_tools import pay
from tests.model_server import ModelServer, calls, text
from tests.paths import REPO
from tests.serve_process import KEY, ServeProcess
from tests.waiting import until

Json = dict[str, Any]
DELEGATE = ("delegate", {"agent": "payer", "task": "Pay 3."})
ASKING = ("delegate", {"agent": "payer", "task": "Ask."})


def model(request: Any) -> Json:
    """Return the answer of the agent or of its delegate, for the one that calls."""
    tools = {one["function"]["name"] for one in request.json.get("tools", ())}
    last = request.json["messages"][-1]
    asks = "Ask." in str(request.json["messages"])
    if "delegate" in tools:
        if last["role"] != "tool":
            return calls(ASKING if asks else DELEGATE)
        return text("red" if "answers: red" in str(last["content"]) else "done")
    if asks:
        asking = calls(("ask_user", {"question": "Which colour?"}))
        return text(str(last["content"])) if last["role"] == "tool" else asking
    return text("It is paid.") if last["role"] == "tool" else calls(("pay", {"amount": 3}))


@contextmanager
def serving(folder: Path) -> Generator[ServeProcess]:
    with ModelServer(model) as models:
        llm = {"name": "m", "base_url": models.url, "api_key": "sk", "max_retries": 0}
        functions = [{"function": f"tests.door_tools:{name}"} for name in ("pay", "ask_user")]
        payer = {"model": llm, "tools": {"local_functions": functions}, "confirm": ["pay"]}
        file = folder / "painter.json"
        file.write_text(json.dumps({"model": llm, "delegates": {"payer": payer}}))
        agent_option = f"painter={file}"
        options = ("--agent", agent_option, "--a2a", "painter", "--allow-tools", "tests.*")
        with ServeProcess(folder, *options, library=REPO) as server:
            yield server


def post(server: ServeProcess, path: str, body: Json, **headers: str) -> Any:
    reply = server.ask("POST", path, body, key=KEY, **headers)
    assert reply.status == 200, reply
    return reply


class ResponsesClient:
    """A client of the Responses API."""

    last: Json = {}

    def begin(self, server: ServeProcess, message_text: str = "Buy it.") -> None:
        self._ask(server, input=message_text)

    def approval_request(self, server: ServeProcess) -> Json:
        reply = server.ask("GET", f"/v1/responses/{self.last['id']}", key=KEY)
        (item,) = [one for one in reply.json["output"] if one["type"] == "mcp_approval_request"]
        assert (item["name"], json.loads(item["arguments"])) == ("pay", {"amount": 3})
        return item

    def approve(self, server: ServeProcess) -> str:
        item = {"approval_request_id": self.approval_request(server)["id"], "approve": True}
        decision = {"type": "mcp_approval_response", **item}
        self._ask(server, input=[decision], previous_response_id=self.last["id"])
        assert self.last["status"] == "completed"
        return self.last["output"][-1]["content"][0]["text"]

    def question(self, server: ServeProcess) -> str:
        reply = server.ask("GET", f"/v1/responses/{self.last['id']}", key=KEY)
        function_calls = [one for one in reply.json["output"] if one["type"] == "function_call"]
        return function_calls[0]["call_id"] if function_calls else ""

    def answer(self, server: ServeProcess) -> str:
        output = {"call_id": self.question(server), "output": "red"}
        item = {"type": "function_call_output", **output}
        self._ask(server, input=[item], previous_response_id=self.last["id"])
        assert self.last["status"] == "completed"
        return self.last["output"][-1]["content"][0]["text"]

    def _ask(self, server: ServeProcess, **body: Any) -> None:
        self.last = post(server, "/v1/responses", {"model": "painter", **body}).json


class AguiClient:
    """A front end of AG-UI."""

    def begin(self, server: ServeProcess, message_text: str = "Buy it.") -> None:
        message = {"id": "1", "role": "user", "content": message_text}
        self._outcome(server, messages=[message])

    def approval_request(self, server: ServeProcess) -> Json:
        (interrupt,) = self._outcome(server, messages=[])["interrupts"]
        assert (interrupt["reason"], interrupt["metadata"]["toolCallName"]) == ("approval", "pay")
        return interrupt

    def approve(self, server: ServeProcess) -> str:
        return self._resume(server, self.approval_request(server)["id"], True)

    def question(self, server: ServeProcess) -> str:
        (interrupt,) = self._outcome(server, messages=[])["interrupts"]
        assert interrupt["reason"] == "question", interrupt
        return interrupt["id"]

    def answer(self, server: ServeProcess) -> str:
        return self._resume(server, self.question(server), "red")

    def _resume(self, server: ServeProcess, id: str, payload: object) -> str:
        entry = {"interruptId": id, "status": "resolved", "payload": payload}
        events = self._run(server, messages=[], resume=[entry])
        assert events[-1]["outcome"]["type"] == "success", events[-1]
        return "".join(one["delta"] for one in events if one["type"] == "TEXT_MESSAGE_CONTENT")

    def _outcome(self, server: ServeProcess, **more: Any) -> Json:
        last = self._run(server, **more)[-1]
        assert last["type"] == "RUN_FINISHED", last
        return last["outcome"]

    def _run(self, server: ServeProcess, **more: Any) -> list[Json]:
        body = post(server, "/agui/painter", {"threadId": "t", "runId": "r", **more}).body
        blocks = body.decode().split("\n\n")
        return [json.loads(one.removeprefix("data: ")) for one in blocks if "data: " in one]


class A2AClient:
    """A client of A2A."""

    id = ""

    def begin(self, server: ServeProcess, message_text: str = "Buy it.") -> None:
        self.id = self._send(server, message_text)["id"]

    def question(self, server: ServeProcess) -> str:
        data = self._data(server)
        assert "questionId" in data, data
        return data["questionId"].rpartition("?")[0]

    def answer(self, server: ServeProcess) -> str:
        task = self._send(server, "red", taskId=self.id)
        assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
        return task["artifacts"][-1]["parts"][0]["text"]

    def _data(self, server: ServeProcess) -> Json:
        headers = {"A2A_Version": "1.0"}
        task = server.ask("GET", f"/a2a/painter/tasks/{self.id}", key=KEY, **headers).json
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED", task
        (data,) = [one["data"] for one in task["status"]["message"]["parts"] if "data" in one]
        return data

    def approval_request(self, server: ServeProcess) -> Json:
        data = self._data(server)
        assert (data["tool"], data["arguments"]) == ("pay", {"amount": 3})
        return data

    def approve(self, server: ServeProcess) -> str:
        decision = {"callId": self.approval_request(server)["callId"], "approve": True}
        task = self._send(server, "", taskId=self.id, parts=[{"data": decision}])
        assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
        return task["artifacts"][-1]["parts"][0]["text"]

    def _send(self, server: ServeProcess, message_text: str, **more: Any) -> Json:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": message_text}], **more}
        headers = {"A2A_Version": "1.0"}
        path = "/a2a/painter/message:send"
        return post(server, path, {"message": message}, **headers).json["task"]


CLIENTS = [ResponsesClient, AguiClient, pytest.param(A2AClient, marks=needs_a2a)]


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_an_approval_of_a_delegate_survives_a_kill(
    tmp_path: Path, client: Callable[[], Any]
) -> None:
    with serving(tmp_path) as server:
        user = client()
        user.begin(server)
        before = user.approval_request(server)
        server.kill()
        server.start()
        assert user.approval_request(server) == before
        assert user.approve(server) == "done"


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_a_question_of_a_delegate_survives_a_kill(
    tmp_path: Path, client: Callable[[], Any]
) -> None:
    with serving(tmp_path) as server:
        user = client()
        user.begin(server, "Ask.")
        before = user.question(server)
        assert before
        server.kill()
        server.start()
        until(lambda: user.question(server) == before, "the question, asked anew", 60)
        assert user.answer(server) == "red"


def test_the_user_of_an_agent_as_a_tool_is_asked() -> None:
    payer = Agent(ScriptedLLM([[("pay", {"amount": 3})], "It is paid."]), [pay], confirm=["pay"])
    agent = Agent(ScriptedLLM([[DELEGATE], "done"]), delegates={"payer": payer})
    questions: list[str] = []

    def answer(question: Any) -> Json:
        questions.append(question.message)
        return {"approve": True}

    with MemoryStore() as store:
        door = LocalDoor(agent, store)
        caller = Agent(
            ScriptedLLM([[("ask_it", {"message": "Buy it."})], "ok"]),
            ToolManager([agent_tool(door, "it")]),
        )
        with Conversation(caller, on_question=answer) as conversation:
            conversation.send_message("Go.")
            conversation.run()
            (result,) = [
                one.result for one in conversation.state.events if one.type == "toolResult"
            ]
        door.close()
    assert questions == ['The agent wants to call pay with {"amount": 3}.']
    assert result.structured_content["answer"] == "done"
