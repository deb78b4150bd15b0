"""Tests of an agent's turns as tasks of MCP, with mcp's own client, over HTTP and through kills."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast import Agent, Conversation, MemoryStore, ScriptedLLM, SQLiteStore, ToolManager
from holdfast.serve import MCPEndpoint
from holdfast.serve.agent_tasks import EXTENSION, AgentTasks
from holdfast.serve.door import LocalDoor
from tests.door_tools import ask_user, pay
from tests.model_server import ModelServer, Stall, calls, text
from tests.serve.test_agent_tool import ASK, BUY, Offer
from tests.waiting import until as eventually

pytestmark = pytest.mark.slow


def extension(answers: Callable[[str, Any], Any] | None = None) -> Any:
    """Return the extension of a client: it polls a task until the task is over. `answers` gives the
    response to a request for input; None leaves the task to the caller."""
    from mcp.client.extension import ClientExtension, ResultClaim
    from mcp_types import CallToolResult, Result

    class Task(Result):
        result_type: Literal["task"] = "task"
        task_id: str
        status: str

    async def resolve(task: Task, context: Any) -> CallToolResult:
        assert answers is not None
        state = await until(context.session, task.task_id, answers)
        return CallToolResult.model_validate(state["result"])

    class Tasks(ClientExtension):
        identifier = EXTENSION

        def claims(self) -> Any:
            return [ResultClaim(result_type="task", model=Task, resolve=resolve)]

    return Tasks()


async def ask(
    session: Any, method: str, id: str, *, name: str | None = "taskId", **more: Any
) -> dict[str, Any]:
    """Return the result of a request about a task, in its form on the wire. `name` is the parameter
    that the header `Mcp-Name` repeats."""
    from mcp_types import Request, RequestParams
    from pydantic import ConfigDict, TypeAdapter

    class Params(RequestParams):
        model_config = ConfigDict(extra="allow")

    class TaskRequest(Request[Params, str]):
        name_param = name

    params = Params.model_validate({"taskId": id, **more})
    request = TaskRequest(method=method, params=params)
    return await session.send_request(request, TypeAdapter(dict[str, Any]))


async def until(
    session: Any, id: str, answers: Callable[[str, Any], Any] | None = None, *statuses: str
) -> dict[str, Any]:
    """Return the state of a task that is over, or has one of the statuses. New requests for input
    are answered."""
    answered: set[str] = set()
    for _ in range(3000):
        state = await ask(session, "tasks/get", id)
        assert state["resultType"] == "complete"
        if state["status"] in ("completed", "cancelled", *statuses):
            return state
        new = {
            key: one for key, one in state.get("inputRequests", {}).items() if key not in answered
        }
        if new and answers is not None:
            answered |= new.keys()
            responses = {key: answers(key, one["params"]) for key, one in new.items()}
            await ask(session, "tasks/update", id, inputResponses=responses)
        await asyncio.sleep(0.02)
    raise AssertionError(f"the task is still {state}")


def accept(questions: list[str]) -> Callable[[str, Any], Any]:
    """Return the answers of a user who allows everything and likes red. The questions are added to
    `questions`."""

    def answer(key: str, params: Any) -> Any:
        questions.append(params["message"])
        fields = params["requestedSchema"]["properties"]
        content = {"approve": True} if "approve" in fields else {"answer": "red"}
        return {"action": "accept", "content": content}

    return answer


async def begin(client: Any, **arguments: Any) -> str:
    """Call the agent, and return the id of the call's task."""
    task = await client.session.call_tool("ask_buyer", arguments, allow_claimed=True)
    assert task.status == "working", task
    return task.task_id


@contextmanager
def endpoint(script: Any) -> Generator[MCPEndpoint]:
    agent = Agent(ScriptedLLM(script), [pay, ask_user], confirm=["pay"])
    with MemoryStore() as store:
        door = LocalDoor(agent, store)
        tasks = AgentTasks(door, "buyer")
        with MCPEndpoint(ToolManager([tasks.tool]), tasks=tasks) as served:
            yield served
        door.close()


def use(url: str, work: Callable[[Any], Awaitable[Any]], asks: bool = True, **more: Any) -> Any:
    async def decline(*_: Any) -> Any:
        raise AssertionError("a task asks through tasks/get")

    async def main() -> Any:
        from mcp import Client

        if asks:
            more["elicitation_callback"] = decline
        async with Client(url, mode="2026-07-28", **more) as client:
            return await work(client)

    return asyncio.run(asyncio.wait_for(main(), 120))


def test_a_call_is_a_task_that_asks_for_approvals_and_answers() -> None:
    questions: list[str] = []

    async def work(client: Any) -> Any:
        return await client.call_tool("ask_buyer", {"message": "Buy."})

    with endpoint([BUY, ASK, "It is red."]) as served:
        result = use(served.url, work, extensions=[extension(accept(questions))])
    assert questions == ['The agent wants to call pay with {"amount": 3}.', "Which colour?"]
    assert result.structured_content["answer"] == "It is red."
    assert not result.is_error


def test_each_turn_of_a_conversation_is_a_task_of_its_own() -> None:
    async def work(client: Any) -> Any:
        first = await begin(client, message="One.")
        one = await until(client.session, first)
        id = one["result"]["structuredContent"]["conversationId"]
        second = await begin(client, message="Two.", conversation_id=id)
        assert second != first
        two = await until(client.session, second)
        # The end of a conversation is a task, too: that of its last message.
        last = await client.session.call_tool(
            "ask_buyer", {"conversation_id": id}, allow_claimed=True
        )
        again = [await ask(client.session, "tasks/get", one) for one in (first, second)]
        return one, two, again, last.task_id == second

    with endpoint(["first", "second"]) as served:
        one, two, again, same = use(served.url, work, extensions=[extension()])
    assert [one["result"]["structuredContent"]["answer"] for one in (one, two)] == [
        "first",
        "second",
    ]
    assert [state["result"] for state in again] == [one["result"], two["result"]]
    assert again[0]["lastUpdatedAt"] < again[1]["createdAt"]
    assert same


def test_a_cancelled_task_is_over_and_a_declined_call_is_not_run() -> None:
    declined = {"action": "decline"}

    async def work(client: Any) -> Any:
        id = await begin(client, message="Buy.")
        waits = await until(client.session, id, None, "input_required")
        (key,) = waits["inputRequests"]
        # Unknown keys and dismissed forms decide nothing.
        for responses in ({"nope": declined}, {key: {"action": "cancel"}}, {key: {"action": "?"}}):
            await ask(client.session, "tasks/update", id, inputResponses=responses)
            assert await ask(client.session, "tasks/get", id) == waits
        await ask(client.session, "tasks/cancel", id)
        cancelled = await until(client.session, id)
        await ask(client.session, "tasks/cancel", id)
        other = await begin(client, message="Buy.")
        declined_task = await until(client.session, other, lambda *_: declined)
        return cancelled, declined_task

    with endpoint(lambda request: "Not bought." if "declined" in request.text else BUY) as served:
        cancelled, declined_task = use(served.url, work, extensions=[extension()])
    assert cancelled["status"] == "cancelled"
    assert "result" not in cancelled
    assert declined_task["result"]["structuredContent"]["answer"] == "Not bought."


def test_clients_without_the_extension_or_without_forms_get_results() -> None:
    async def work(client: Any) -> Any:
        return await client.call_tool("ask_buyer", {"message": "Buy."})

    async def refused(client: Any) -> Any:
        from mcp.shared.exceptions import MCPError

        with pytest.raises(MCPError) as caught:
            await ask(client.session, "tasks/get", "x.1")
        return caught.value.error

    with endpoint([BUY, BUY]) as served:
        for extensions in ([], [extension(lambda *_: None)]):
            result = use(served.url, work, asks=False, extensions=extensions)
            assert "Nobody has decided" in result.structured_content["answer"]
        error = use(served.url, refused, asks=False)
    assert error.code == -32021
    assert EXTENSION in str(error.data)


def test_an_answer_that_does_not_fit_its_form_is_refused_and_may_be_repeated() -> None:
    async def work(client: Any) -> Any:
        from mcp.shared.exceptions import MCPError

        id = await begin(client, message="Paint.")
        waits = await until(client.session, id, None, "input_required")
        (key,) = waits["inputRequests"]
        wrong = {key: {"action": "accept", "content": {"colour": 3}}}
        with pytest.raises(MCPError) as caught:
            await ask(client.session, "tasks/update", id, inputResponses=wrong)
        assert caught.value.error.code == -32602
        return await until(client.session, id, accept([]))

    with endpoint([ASK, "It is red."]) as served:
        state = use(served.url, work, extensions=[extension()])
    assert state["result"]["structuredContent"]["answer"] == "It is red."


def test_a_task_that_another_process_holds_can_be_read_and_says_why_it_is_not_changed(
    tmp_path: Path,
) -> None:
    ids: list[str] = []

    async def start(client: Any) -> None:
        ids.append(await begin(client, message="Buy."))
        await until(client.session, ids[0], None, "input_required")

    async def work(client: Any) -> Any:
        from mcp.shared.exceptions import MCPError

        waits = await ask(client.session, "tasks/get", ids[0])
        arguments = {key: {"action": "decline"} for key in waits["inputRequests"]}
        with pytest.raises(MCPError) as caught:
            await ask(client.session, "tasks/update", ids[0], inputResponses=arguments)
        arguments = {"message": "Go on.", "conversation_id": ids[0].rpartition(".")[0]}
        result = await client.session.call_tool("ask_buyer", arguments, allow_claimed=True)
        return caught.value.error, result

    with ModelServer([calls(BUY)]) as model:
        offer = Offer(tmp_path, model)
        more: Any = {"extensions": [extension()]}
        offer.use("2026-07-28", start, [], killed=True, **more)
        with (
            SQLiteStore(tmp_path / "s.db") as store,
            Conversation(Agent(ScriptedLLM([])), store, ids[0].rpartition(".")[0]) as holder,
        ):
            holder.tag("held")
            error, result = offer.use("2026-07-28", work, [], **more)[0]
    assert (error.code, result.is_error) == (-32603, True)
    assert "Traceback" not in f"{error.message}{result}"
    assert "is held by process" in error.message


def test_bad_input_gets_the_error_of_the_protocol() -> None:
    async def work(client: Any) -> Any:
        from mcp.shared.exceptions import MCPError

        id = await begin(client, message="Hello.")
        await until(client.session, id)
        conversation = id.rpartition(".")[0]
        codes = []
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            for wrong in (
                "",
                "x",
                "x.1",
                f"{conversation}.0",
                f"{conversation}.99",
                "x." + "9" * 99,
            ):
                with pytest.raises(MCPError) as caught:
                    await ask(client.session, method, wrong)
                codes.append(caught.value.error.code)
        for name in (None, "other"):  # no header, and another one
            with pytest.raises(MCPError) as caught:
                await ask(client.session, "tasks/get", id, name=name, other="x")
            assert caught.value.error.code == -32020
        results = [
            await client.session.call_tool("ask_buyer", arguments, allow_claimed=True)
            for arguments in ({}, {"message": ""}, {"conversation_id": "nope"}, {"message": 3})
        ]
        return codes, results

    with endpoint(["hi"]) as served:
        codes, results = use(served.url, work, extensions=[extension()])
    assert set(codes) == {-32602}
    assert all(one.is_error for one in results)
    assert "Traceback" not in str(results)


def test_a_task_survives_kills_of_its_server(tmp_path: Path) -> None:
    """One process begins, one dies while it works, two while they ask; the last one ends it."""
    questions: list[str] = []
    more = {"extensions": [extension()]}

    def answer(request: Any) -> Any:
        results = [one["content"] for one in request.messages if one["role"] == "tool"]
        if not results and len(model.requests) == 1:
            return Stall(60)
        return [calls(BUY), calls(ASK), text("It is red.")][len(results)]

    with ModelServer(answer) as model:
        offer = Offer(tmp_path, model)
        ids: list[str] = []

        async def start(client: Any) -> None:
            ids.append(await begin(client, message="Buy."))
            await asyncio.to_thread(eventually, lambda: model.requests)  # that has no answer

        async def look(client: Any) -> Any:
            return await until(client.session, ids[0], None, "input_required")

        async def decide(client: Any) -> Any:
            first = await look(client)
            (key,) = first["inputRequests"]
            responses = {key: {"action": "accept", "content": {"approve": True}}}
            await ask(client.session, "tasks/update", ids[0], inputResponses=responses)
            while "Which colour?" not in (await look(client))["statusMessage"]:
                await asyncio.sleep(0.02)

        async def finish(client: Any) -> Any:
            return await until(client.session, ids[0], accept(questions))

        offer.use("2026-07-28", start, [], killed=True, **more)
        waits = offer.use("2026-07-28", look, [], killed=True, **more)[0]
        again = offer.use("2026-07-28", decide, [], killed=True, **more)[0]
        last = offer.use("2026-07-28", finish, [], **more)[0]
        prompt = str(model.requests[-1].messages)
    assert again is None
    assert "The agent wants to call pay" in waits["statusMessage"]
    assert questions == ["Which colour?"]
    assert last["result"]["structuredContent"]["answer"] == "It is red."
    assert prompt.count("paid 3") == 1
