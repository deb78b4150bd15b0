"""An agent's turns as tasks of MCP, as mcp's own client finds them, over HTTP and through kills."""

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
    """The extension as a client has it: a task is asked for until it is over. `answers` gives the
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
    """The result of a request about a task, as the wire has it. `name` is the parameter that the
    header `Mcp-Name` repeats."""
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
    """The state of a task that is over, or has one of the statuses. Requests for input that are
    new are answered."""
    seen: set[str] = set()
    for _ in range(3000):
        state = await ask(session, "tasks/get", id)
        assert state["resultType"] == "complete"
        if state["status"] in ("completed", "cancelled", *statuses):
            return state
        new = {key: one for key, one in state.get("inputRequests", {}).items() if key not in seen}
        if new and answers is not None:
            seen |= new.keys()
            given = {key: answers(key, one["params"]) for key, one in new.items()}
            await ask(session, "tasks/update", id, inputResponses=given)
        await asyncio.sleep(0.02)
    raise AssertionError(f"the task is still {state}")


def accept(asked: list[str]) -> Callable[[str, Any], Any]:
    """Answers as a user who allows everything and likes red; `asked` gets the questions."""

    def answer(key: str, params: Any) -> Any:
        asked.append(params["message"])
        fields = params["requestedSchema"]["properties"]
        content = {"approve": True} if "approve" in fields else {"answer": "red"}
        return {"action": "accept", "content": content}

    return answer


async def begin(client: Any, **arguments: Any) -> str:
    """The id of the task of a call."""
    found = await client.session.call_tool("ask_buyer", arguments, allow_claimed=True)
    assert found.status == "working", found
    return found.task_id


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
    asked: list[str] = []

    async def work(client: Any) -> Any:
        return await client.call_tool("ask_buyer", {"message": "Buy."})

    with endpoint([BUY, ASK, "It is red."]) as served:
        found = use(served.url, work, extensions=[extension(accept(asked))])
    assert asked == ['The agent wants to call pay with {"amount": 3}.', "Which colour?"]
    assert found.structured_content["answer"] == "It is red."
    assert not found.is_error


def test_each_turn_of_a_conversation_is_a_task_of_its_own() -> None:
    async def work(client: Any) -> Any:
        first = await begin(client, message="One.")
        one = await until(client.session, first)
        id = one["result"]["structuredContent"]["conversationId"]
        second = await begin(client, message="Two.", conversation_id=id)
        assert second != first
        two = await until(client.session, second)
        # The end of a conversation is a task too: that of its last message.
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
        for given in ({"nope": declined}, {key: {"action": "cancel"}}, {key: {"action": "?"}}):
            await ask(client.session, "tasks/update", id, inputResponses=given)
            assert await ask(client.session, "tasks/get", id) == waits
        await ask(client.session, "tasks/cancel", id)
        cancelled = await until(client.session, id)
        await ask(client.session, "tasks/cancel", id)
        other = await begin(client, message="Buy.")
        done = await until(client.session, other, lambda *_: declined)
        return cancelled, done

    with endpoint(lambda request: "Not bought." if "declined" in request.text else BUY) as served:
        cancelled, done = use(served.url, work, extensions=[extension()])
    assert cancelled["status"] == "cancelled"
    assert "result" not in cancelled
    assert done["result"]["structuredContent"]["answer"] == "Not bought."


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
            found = use(served.url, work, asks=False, extensions=extensions)
            assert "Nobody has decided" in found.structured_content["answer"]
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
        found = use(served.url, work, extensions=[extension()])
    assert found["result"]["structuredContent"]["answer"] == "It is red."


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
        given = {key: {"action": "decline"} for key in waits["inputRequests"]}
        with pytest.raises(MCPError) as caught:
            await ask(client.session, "tasks/update", ids[0], inputResponses=given)
        given = {"message": "Go on.", "conversation_id": ids[0].rpartition(".")[0]}
        found = await client.session.call_tool("ask_buyer", given, allow_claimed=True)
        return caught.value.error, found

    with ModelServer([calls(BUY)]) as model:
        offer = Offer(tmp_path, model)
        more: Any = {"extensions": [extension()]}
        offer.use("2026-07-28", start, [], killed=True, **more)
        with (
            SQLiteStore(tmp_path / "s.db") as store,
            Conversation(Agent(ScriptedLLM([])), store, ids[0].rpartition(".")[0]) as held,
        ):
            held.tag("held")
            error, found = offer.use("2026-07-28", work, [], **more)[0]
    assert (error.code, found.is_error) == (-32603, True)
    assert "Traceback" not in f"{error.message}{found}"
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
            await client.session.call_tool("ask_buyer", given, allow_claimed=True)
            for given in ({}, {"message": ""}, {"conversation_id": "nope"}, {"message": 3})
        ]
        return codes, results

    with endpoint(["hi"]) as served:
        codes, results = use(served.url, work, extensions=[extension()])
    assert set(codes) == {-32602}
    assert all(one.is_error for one in results)
    assert "Traceback" not in str(results)


def test_a_task_survives_kills_of_its_server(tmp_path: Path) -> None:
    """One process begins, one dies while it works, two while they ask; the last one ends it."""
    asked: list[str] = []
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
            given = {key: {"action": "accept", "content": {"approve": True}}}
            await ask(client.session, "tasks/update", ids[0], inputResponses=given)
            while "Which colour?" not in (await look(client))["statusMessage"]:
                await asyncio.sleep(0.02)

        async def finish(client: Any) -> Any:
            return await until(client.session, ids[0], accept(asked))

        offer.use("2026-07-28", start, [], killed=True, **more)
        waits = offer.use("2026-07-28", look, [], killed=True, **more)[0]
        again = offer.use("2026-07-28", decide, [], killed=True, **more)[0]
        last = offer.use("2026-07-28", finish, [], **more)[0]
        sent = str(model.requests[-1].messages)
    assert again is None
    assert "The agent wants to call pay" in waits["statusMessage"]
    assert asked == ["Which colour?"]
    assert last["result"]["structuredContent"]["answer"] == "It is red."
    assert sent.count("paid 3") == 1
