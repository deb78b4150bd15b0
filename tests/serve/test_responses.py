"""Tests of agents behind OpenAI's Responses API, judged by the official client with strict
validation and by the types of the Open Responses specification."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import LLM, Agent
from holdfast.serve import responses_routes
from holdfast.server.openai import publish
from holdfast.server.policy import Policy
from holdfast.tools.preset.asking import register_asking_tools
from tests.agent_servers import Reply, Serving
from tests.door_tools import SCRIPT, pay, write_agent
from tests.model_server import ModelServer, Stall, calls, sse, text
from tests.paths import REPO
from tests.serve_process import KEY, ServeProcess
from tests.waiting import until

openai = pytest.importorskip("openai", reason="the official client is not installed")

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


class Ask:
    """The official client, and plain requests, of one server."""

    def __init__(self, server: Serving) -> None:
        self.server = server
        client = openai.OpenAI(
            api_key=server.key,
            base_url=f"{server.server.url}/v1",
            max_retries=0,
            _strict_response_validation=True,
        )
        self.responses: Any = client.responses

    def __call__(self, input: Any, **more: Any) -> Any:
        return self.responses.create(model="painter", input=input, **more)

    def post(self, **body: Any) -> Reply:
        return self.server.ask("POST", "/v1/responses", {"model": "painter", **body})


def ended(responses: Any, id: str) -> Any:
    return until(
        lambda: None if (one := responses.retrieve(id)).status == "in_progress" else one,
        "the end of the response",
    )


@contextmanager
def serving(folder: Path, script: Any, code: bool = False, **options: Any) -> Iterator[Ask]:
    policy = Policy(["tests.*", "holdfast.*"], entry_points=False)
    doors = [responses_routes.add]
    answers = [sse(text(one) if isinstance(one, str) else calls(*one), size=6) for one in script]
    with ModelServer(answers) as model:
        llm = LLM("m", api_key="sk", base_url=model.url, max_retries=0, stream=True)
        agent = Agent(llm, [pay, *register_asking_tools()], confirm=["pay"], code=code)
        agents = {"painter": publish("painter", agent)}
        with Serving(folder, agents=agents, policy=policy, doors=doors, **options) as server:
            yield Ask(server)


def test_a_response_goes_on_from_another_and_is_found_again(tmp_path: Path) -> None:
    with serving(tmp_path, ["red as a rose", "as blood"]) as ask:
        first = ask("Which colour?", metadata={"job": "7"}, instructions="Be brief.")
        assert (first.output_text, first.status) == ("red as a rose", "completed")
        second = ask("How red?", previous_response_id=first.id)
        assert second.output_text == "as blood"
        assert second.previous_response_id == first.id
        for one in (first, second):
            assert ask.responses.retrieve(one.id) == one
        (item,) = ask.responses.input_items.list(second.id).data
        assert item.content[0].text == "How red?"
        ask.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            ask.responses.retrieve(second.id)
        assert ask.responses.retrieve(first.id).id == first.id
        ask.responses.delete(first.id)
        assert not ask.server.ask("GET", "/api/conversations").json["items"]


def test_an_answer_asked_twice_is_a_fork(tmp_path: Path) -> None:
    with serving(tmp_path, ["one", "two", "three"]) as ask:
        first = ask("1")
        second = ask("2", previous_response_id=first.id)
        third = ask("again", previous_response_id=first.id)
        assert [one.output_text for one in (second, third)] == ["two", "three"]
        texts = [ask.responses.retrieve(one.id).output_text for one in (first, second, third)]
        assert texts == ["one", "two", "three"]


def test_the_stream_of_a_response_can_be_taken_up_anywhere(tmp_path: Path) -> None:
    with serving(tmp_path, ["red as a rose is red"]) as ask:
        events = list(ask("Which?", stream=True))
        kinds = [event.type for event in events]
        assert kinds[:3] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
        ]
        assert kinds[-1] == "response.completed"
        assert kinds.count("response.output_text.delta") > 2
        numbers = [event.sequence_number for event in events]
        assert numbers == sorted(set(numbers))
        id = events[0].response.id
        text = "".join(one.delta for one in events if one.type == "response.output_text.delta")
        assert events[-1].response.output_text == text == "red as a rose is red"
        for at, event in enumerate(events):
            later = list(
                ask.responses.retrieve(id, stream=True, starting_after=event.sequence_number)
            )
            if at + 1 < len(events):
                assert later[-1] == events[-1]
            deltas = [one.delta for one in (*events[: at + 1], *later) if hasattr(one, "delta")]
            assert "".join(deltas) == text


def test_functions_of_the_client_run_there(tmp_path: Path) -> None:
    script = [[("get_weather", {"city": "Ghent"}), ("get_weather", {"city": "Rome"})], "fine", "k"]
    with serving(tmp_path, script) as ask:
        events = list(ask("Weather?", tools=[WEATHER], stream=True))
        calls = events[-1].response.output
        assert [json.loads(call.arguments)["city"] for call in calls] == ["Ghent", "Rome"]
        assert "response.function_call_arguments.done" in [event.type for event in events]
        outputs = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
            for call in calls
        ]
        about = {"previous_response_id": events[-1].response.id, "tools": [WEATHER]}
        last = ask(outputs, **about)
        assert last.output_text == "fine"
        items = ask.responses.input_items.list(last.id, order="asc").data
        assert [one.output for one in items] == ["rain", "rain"]
        with pytest.raises(openai.BadRequestError, match="no call waits"):
            ask(outputs, previous_response_id=last.id)


def test_approvals_and_questions_are_items(tmp_path: Path) -> None:
    script = [[("pay", {"amount": 3})], [("ask_user", {"question": "Which colour?"})], "done"]
    with serving(tmp_path, script) as ask:
        first = ask("Buy paint.")
        (item,) = first.output
        assert (item.type, item.name) == ("mcp_approval_request", "pay")
        decision = {"type": "mcp_approval_response", "approval_request_id": item.id}
        second = ask([{**decision, "approve": True}], previous_response_id=first.id)
        paid, _, question = second.output
        assert (paid.type, paid.output) == ("mcp_call", "paid 3")
        assert question.name == "ask_user"
        output = {"type": "function_call_output", "call_id": question.call_id, "output": "red"}
        third = ask([output], previous_response_id=second.id)
        assert third.output_text == "done"


def test_calls_of_a_script_are_items(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    with serving(tmp_path, [[SCRIPT], "done"], code=True) as ask:
        first = ask("Buy paint.")
        item = first.output[-1]
        assert (item.type, item.name) == ("mcp_approval_request", "pay")
        decision = {"type": "mcp_approval_response", "approval_request_id": item.id}
        second = ask([{**decision, "approve": True}], previous_response_id=first.id)
        question = second.output[-1]
        output = {"type": "function_call_output", "call_id": question.call_id, "output": "red"}
        third = ask([output], previous_response_id=second.id)
        assert third.output_text == "done"
        for one in (second, third):
            assert ask.responses.retrieve(one.id).output == one.output
        paid = [one.output for one in second.output if one.name == "pay"]
        assert paid == ["paid 3"]


def test_a_background_response_is_retrieved_or_cancelled(tmp_path: Path) -> None:
    with serving(tmp_path, ["done", [("ask_user", {"question": "?"})], "late"]) as ask:
        started = ask("Work.", background=True)
        retrieved = ended(ask.responses, started.id)
        assert (started.status, retrieved.output_text) == ("in_progress", "done")
        events = list(ask.responses.retrieve(started.id, stream=True))
        assert events[-1].response == retrieved
        other = ask("More.", background=True)
        assert ask.responses.cancel(other.id).status in ("cancelled", "completed")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"input": [{"type": "message", "role": "critic", "content": "x"}]}, 400, "role takes"),
        ({"input": [{"type": "computer_call_output"}]}, 400, "input[0]: type takes"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, 400, "tools[0]: type"),
        ({"input": "x", "previous_response_id": "resp_no"}, 404, "not found"),
        ({"input": "x", "conversation": "c"}, 400, "previous_response_id"),
        ({"input": [{"type": "message", "role": "user", "content": 7}]}, 400, "content takes"),
        ({"input": []}, 400, "empty"),
        ({"input": "x", "model": "no"}, 404, "no agent"),
        ({"input": 7}, 422, "input"),
    ],
)
def test_bad_requests_have_the_apis_errors(
    tmp_path: Path, body: dict[str, Any], status: int, message: str
) -> None:
    with serving(tmp_path, []) as ask:
        reply = ask.post(**body)
        assert reply.status == status, reply
        assert message in reply.json["error"]["message"]


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PDF = "JVBERi0xLjEKdHJhaWxlcgo8PD4+CiUlRU9G"
# The scenarios of the compliance tests of github.com/openresponses/openresponses, whose schema
# `openresponses-types` has.
SCENARIOS: dict[str, tuple[Any, list[dict[str, Any]], str]] = {
    "basic": ([{"role": "user", "content": "Say hello."}], [], "message"),
    "system": (
        [
            {"role": "system", "content": "You are a pirate."},
            {"role": "user", "content": "Say hello."},
        ],
        [],
        "message",
    ),
    "tool": ([{"role": "user", "content": "Weather?"}], [WEATHER], "function_call"),
    "image": (
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is it?"},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
                ],
            }
        ],
        [],
        "message",
    ),
    "file": (
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Its title?"},
                    {
                        "type": "input_file",
                        "filename": "a.pdf",
                        "file_data": f"data:application/pdf;base64,{PDF}",
                    },
                ],
            }
        ],
        [],
        "message",
    ),
    "turns": (
        [
            {"role": "user", "content": "My name is Alice."},
            {"role": "assistant", "content": "Hello Alice!"},
            {"role": "user", "content": "What is my name?"},
        ],
        [],
        "message",
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
def test_it_complies_with_open_responses(
    tmp_path: Path, name: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(sys.prefix) / "openresponses")
    types = pytest.importorskip(
        "openresponses_types.types", reason="openresponses-types is not installed"
    )
    input, tools, kind = SCENARIOS[name]
    script = [[("get_weather", {"city": "Ghent"})] if tools else "hello there"]
    items = [{"type": "message", **item} for item in input]
    with serving(tmp_path, script) as ask:
        reply = ask.post(input=items, tools=tools, stream=stream)
        assert reply.status == 200
        if not stream:
            resource = types.ResponseResource.model_validate(reply.json)
        else:
            *frames, end, _ = reply.body.decode().split("\n\n")
            assert end == "data: [DONE]"
            kinds = {frame.partition("\n")[0].removeprefix("event: ") for frame in frames}
            ends = {"function_call_arguments.delta", "function_call_arguments.done"}
            expected = ends if tools else {"output_text.delta", "output_text.done"}
            expected |= {"output_item.added", "output_item.done"}
            assert {f"response.{one}" for one in expected} <= kinds
            for frame in frames:
                event_line, _, data = frame.partition("\ndata: ")
                event = json.loads(data)
                assert event_line == f"event: {event['type']}"
                words = event["type"].replace(".", "_").split("_")
                shape = "".join(word.title() for word in words) + "StreamingEvent"
                one = getattr(types, shape).model_validate(event)
            resource = one.response
        assert resource.status == "completed"
        assert [item.type for item in resource.output] == [kind]


def test_a_function_call_goes_round_in_the_schema_of_open_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(sys.prefix) / "openresponses")
    types = pytest.importorskip(
        "openresponses_types.types", reason="openresponses-types is not installed"
    )
    choice = {"type": "function", "name": "get_weather"}
    script = [[("get_weather", {"city": "Ghent"})], "It rains.", "Take an umbrella.", "It rains."]
    with serving(tmp_path, script) as ask:

        def respond(**body: Any) -> Any:
            reply = ask.post(tools=[WEATHER], **body)
            assert reply.status == 200, reply
            resource = types.ResponseResource.model_validate(reply.json)
            assert resource.status == "completed"
            return resource

        first = respond(input="Weather?", tool_choice=choice)
        (call,) = first.output
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        second = respond(input=[output], previous_response_id=first.id)
        third = respond(input="What do I need?", previous_response_id=second.id)
        texts = [one.output[0].content[0].text for one in (second, third)]
        assert texts == ["It rains.", "Take an umbrella."]
        # The same without the server's memory.
        question = {"type": "message", "role": "user", "content": "Weather?"}
        function_call = {"type": "function_call", "call_id": call.call_id, "name": call.name}
        function_call["arguments"] = call.arguments
        (last,) = respond(input=[question, function_call, output]).output
        assert last.content[0].text == "It rains."


@pytest.mark.slow
def test_approvals_questions_and_background_work_survive_a_kill(tmp_path: Path) -> None:
    script = [
        calls(("pay", {"amount": 3})),
        calls(("ask_user", {"question": "Which colour?"})),
        Stall(60),
        text("done"),
    ]
    with (
        ModelServer(script) as model,
        ServeProcess(tmp_path, *write_agent(tmp_path, model.url), library=REPO) as server,
    ):
        client = openai.OpenAI(api_key=KEY, base_url=f"{server.url}/v1", max_retries=0)

        def again() -> Any:
            server.kill()
            server.start()
            return openai.OpenAI(
                api_key=KEY,
                base_url=f"{server.url}/v1",
                max_retries=0,
                _strict_response_validation=True,
            ).responses

        first = client.responses.create(model="painter", input="Buy paint.")
        responses = again()
        (item,) = responses.retrieve(first.id).output
        decision = {"type": "mcp_approval_response", "approval_request_id": item.id}
        second = responses.create(
            model="painter",
            input=[{**decision, "approve": True}],
            previous_response_id=first.id,
        )
        responses = again()
        question = ended(responses, second.id).output[-1]
        output = {"call_id": question.call_id, "output": "red", "type": "function_call_output"}
        third = responses.create(
            model="painter", input=[output], previous_response_id=second.id, background=True
        )
        until(lambda: len(model.requests) == 3)
        responses = again()
        assert ended(responses, third.id).output_text == "done"


def test_a_failed_model_is_a_failed_response(tmp_path: Path) -> None:
    with serving(tmp_path, []) as ask:
        response = ask("Hi")
        assert response.status == "failed"
        assert "500" in response.error.message
        assert [event.type for event in ask("Hi", stream=True)][-1] == "response.failed"
