"""Tests of `holdfast mcp --agent FILE`, with mcp's own client: in both eras, and through a kill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.door_tools import SCRIPT
from tests.model_server import ModelServer, calls, text
from tests.paths import REPO

pytestmark = pytest.mark.slow
ERAS = ["legacy", "2026-07-28"]
BUY = ("pay", {"amount": 3})
ASK = ("ask_user", {"question": "Which colour?"})


class Offer:
    """An agent in a file, served over stdio by a process for each use."""

    def __init__(
        self, folder: Path, model: ModelServer, code: bool = False, delegated: bool = False
    ) -> None:
        functions = [
            {"module": "tests.door_tools", "function": "pay"},
            {"module": "tests.door_tools", "function": "ask_user"},
        ]
        llm = {"name": "m", "base_url": model.url, "api_key": "k"}
        form: dict[str, Any] = {
            "model": llm,
            "tools": {"local_functions": functions},
            "confirm": ["pay"],
            "code": code,
        }
        if delegated:
            form = {"model": llm, "delegates": {"payer": form}}
        file = folder / "buyer.json"
        file.write_text(json.dumps(form))
        self._file, store = str(file), str(folder / "s.db")
        self._command = ["-m", "holdfast.cli", "mcp", "--agent", str(file), "--store", store]

    def kill(self) -> None:
        """`kill -9` the server, which is a child of this process."""
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdecimal() and self._file in (folder / "cmdline").read_text():
                    os.kill(int(folder.name), signal.SIGKILL)

    def use(
        self,
        mode: str,
        work: Callable[[Any], Awaitable[Any]],
        answers: list[Any] | None = None,
        *,
        killed: bool = False,
        **options: Any,
    ) -> tuple[Any, list[str]]:
        """Return the result of `work(client)`, and the questions to the user. Each of `answers` is
        the content of an accepted form, None to decline, or a function to call instead. `killed`
        kills the server after the work."""
        from mcp import Client, StdioServerParameters
        from mcp_types import ElicitResult

        questions: list[str] = []
        ended: asyncio.Event

        async def elicit(context: Any, params: Any) -> Any:
            questions.append(params.message)
            answer = (answers or []).pop(0)
            if callable(answer):
                answer()
                ended.set()
                return ElicitResult(action="decline")
            if answer is None:
                return ElicitResult(action="decline")
            return ElicitResult(action="accept", content=answer)

        async def main() -> Any:
            nonlocal ended
            ended = asyncio.Event()
            target = StdioServerParameters(command=sys.executable, args=self._command, cwd=REPO)
            more = {} if answers is None else {"elicitation_callback": elicit}
            more |= options
            async with Client(target, mode=mode, **more) as client:
                working = asyncio.ensure_future(work(client))
                ending = asyncio.ensure_future(ended.wait())
                await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
                ending.cancel()
                if not ended.is_set():
                    result = await working
                    if killed:
                        self.kill()
                    return result
                working.cancel()
            return None

        return asyncio.run(asyncio.wait_for(main(), 60)), questions


@pytest.mark.parametrize("mode", ERAS)
def test_approvals_and_questions_go_to_the_user_of_the_client(tmp_path: Path, mode: str) -> None:
    progress_texts: list[str] = []

    async def progress(number: float, total: float | None, message: str | None) -> None:
        progress_texts.append(message or "")

    async def work(client: Any) -> Any:
        (tool,) = (await client.list_tools()).tools
        first = await client.call_tool(tool.name, {"message": "Buy."}, progress_callback=progress)
        id = first.structured_content["conversationId"]
        again = {"message": "And?", "conversation_id": id}
        return tool.name, first, await client.call_tool(tool.name, again)

    script = [calls(BUY), calls(ASK), text("It is red."), text("Nothing more.")]
    with ModelServer(script) as model:
        offer = Offer(tmp_path, model)
        answers = [{"approve": True}, {"answer": "red"}]
        (name, first, second), questions = offer.use(mode, work, answers)
        prompt = str(model.requests[-1].messages)
    assert name == "ask_buyer"
    assert first.structured_content["answer"] == "It is red."
    assert second.structured_content["answer"] == "Nothing more."
    assert questions == ['The agent wants to call pay with {"amount": 3}.', "Which colour?"]
    assert "calls pay" in progress_texts
    assert "paid 3" in prompt
    assert "red" in prompt


@pytest.mark.parametrize("mode", ERAS)
def test_approvals_and_questions_of_a_delegate_go_to_the_user_of_the_client(
    tmp_path: Path, mode: str
) -> None:
    def answer(request: Any) -> Any:
        tools = {one["function"]["name"] for one in request.json.get("tools", ())}
        results = [one["content"] for one in request.messages if one["role"] == "tool"]
        if "delegate" in tools:
            task = ("delegate", {"agent": "payer", "task": "Pay 3."})
            return text(f"Heard: {results[-1]}") if results else calls(task)
        steps = [calls(BUY), calls(ASK), text(f"Learnt: {results}")]
        return steps[len(results)]

    with ModelServer(answer) as model:
        offer = Offer(tmp_path, model, delegated=True)
        result, questions = offer.use(
            mode,
            lambda client: client.call_tool("ask_buyer", {"message": "Buy."}),
            [{"approve": True}, {"answer": "red"}],
        )
    assert questions == ['The agent wants to call pay with {"amount": 3}.', "Which colour?"]
    assert not result.is_error
    assert "paid 3" in result.structured_content["answer"]
    assert "red" in result.structured_content["answer"]


@pytest.mark.parametrize("mode", ERAS)
def test_without_an_answer_nothing_runs_and_another_process_goes_on(
    tmp_path: Path, mode: str
) -> None:
    """Check the wait for an answer: the first client cannot ask its user, and its server ends with
    it."""

    async def begin(client: Any) -> Any:
        return await client.call_tool("ask_buyer", {"message": "Buy."})

    with ModelServer([calls(BUY), text("Bought.")]) as model:
        offer = Offer(tmp_path, model)
        first, _ = offer.use(mode, begin)
        id = first.structured_content["conversationId"]
        assert "Nobody has decided" in first.structured_content["answer"]
        assert len(model.requests) == 1

        async def go_on(client: Any) -> Any:
            return await client.call_tool("ask_buyer", {"conversation_id": id})

        second, questions = offer.use(mode, go_on, [{"approve": True}])
    assert len(questions) == 1
    assert second.structured_content["answer"] == "Bought."


@pytest.mark.parametrize("mode", ERAS)
def test_a_script_ends_with_a_call_that_the_user_declines(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("pydantic_monty")
    with ModelServer([calls(SCRIPT), text("Not bought.")]) as model:
        result, questions = Offer(tmp_path, model, code=True).use(
            mode, lambda client: client.call_tool("ask_buyer", {"message": "Buy."}), [None]
        )
        prompt = str(model.requests[-1].messages)
    assert questions == ['The agent wants to call pay with {"amount": 3}.']
    assert result.structured_content["answer"] == "Not bought."
    assert "The user declined." in prompt


@pytest.mark.parametrize("mode", ERAS)
def test_an_approval_and_a_question_survive_a_kill(tmp_path: Path, mode: str) -> None:
    """Check a server that is killed while it asks. The progress has the conversation's id."""
    progress_texts: list[str] = []

    async def progress(number: float, total: float | None, message: str | None) -> None:
        progress_texts.append(message or "")

    with ModelServer([calls(BUY), calls(ASK), text("It is red.")]) as model:
        offer = Offer(tmp_path, model)

        def begin(client: Any) -> Any:
            first_arguments = {"message": "Buy."}
            return client.call_tool("ask_buyer", first_arguments, progress_callback=progress)

        def go_on(client: Any) -> Any:
            arguments = {"conversation_id": progress_texts[0].partition(": ")[2]}
            return client.call_tool("ask_buyer", arguments)

        for answers in ([offer.kill], [{"approve": True}, offer.kill]):
            with contextlib.suppress(Exception, BaseExceptionGroup):
                offer.use(mode, begin if not progress_texts else go_on, answers)
        last, questions = offer.use(mode, go_on, [{"answer": "red"}])
        prompt = str(model.requests[-1].messages)
    assert questions == ["Which colour?"], (last.structured_content, progress_texts)
    assert last.structured_content["answer"] == "It is red."
    assert prompt.count("paid 3") == 1


def test_bad_input_is_the_result_of_the_call(tmp_path: Path) -> None:
    async def work(client: Any) -> Any:
        wrong = ({}, {"message": ""}, {"conversation_id": "nope"}, {"message": 3})
        return [await client.call_tool("ask_buyer", arguments) for arguments in wrong]

    with ModelServer([]) as model:
        results, _ = Offer(tmp_path, model).use("legacy", work)
    assert [one.is_error for one in results] == [True] * 4
    assert "Traceback" not in str(results)
