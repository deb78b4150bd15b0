"""Tests of agents behind OpenAI's Chat Completions: turns, tools of both sides, streams, errors,
and the judgement of other programs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import LLM, Agent, LocalRuntime
from holdfast.content import AudioContent, FileContent
from holdfast.errors import ConfigurationError
from holdfast.server.openai import content_of, publish
from tests.agent_servers import Reply, Serving
from tests.model_server import ModelServer, Request, Stream, calls, sse, text

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
HI = [{"role": "user", "content": "Hi"}]


@contextmanager
def serving(
    folder: Path, answer: Callable[[Request], Any], names: tuple[str, ...] = (), **options: Any
) -> Iterator[tuple[Serving, ModelServer]]:
    """Run a server with the agent `coder`, whose model gives these answers."""

    def streaming(request: Request) -> Any:
        reply = answer(request)
        if not (request.json.get("stream") and isinstance(reply, dict) and "choices" in reply):
            return reply
        pieces = [f"{piece}\n\n".encode() for piece in sse(reply, size=8).split("\n\n") if piece]
        return Stream(pieces, delay=0.05)

    with ModelServer(streaming) as model, LocalRuntime() as runtime:
        tools = [tool for tool in runtime.tools if tool.name in names]
        agent = Agent(
            LLM("gpt-test", api_key="sk-model", base_url=model.url, max_retries=0, stream=True),
            tools,
            system_prompt="You are careful.",
        )
        with Serving(folder, agents={"coder": publish("coder", agent)}, **options) as server:
            yield server, model


def chat(server: Serving, messages: list[dict[str, Any]], **more: Any) -> Reply:
    return server.ask(
        "POST", "/v1/chat/completions", {"model": "coder", "messages": messages, **more}
    )


def chunks(reply: Reply) -> list[dict[str, Any]]:
    lines = [
        line.removeprefix("data: ")
        for line in reply.body.decode().split("\n\n")
        if line.startswith("data: ")
    ]
    assert lines[-1] == "[DONE]", reply.body[-300:]
    return [json.loads(line) for line in lines[:-1]]


def test_the_agents_are_models(tmp_path: Path) -> None:
    with serving(tmp_path, lambda _: text("hello")) as (server, _):
        (model,) = server.ask("GET", "/v1/models").json["data"]
        assert model["id"] == "coder"
        assert server.ask("GET", "/v1/models/coder").json == model
        assert server.ask("GET", "/v1/models/other").status == 404
        assert server.ask("GET", "/v1/models", key=None).status == 401


@pytest.mark.slow
def test_a_question_is_answered_plain_and_streamed_alike(tmp_path: Path) -> None:
    with serving(tmp_path, lambda _: text("Hello there, you.")) as (server, model):
        plain = chat(server, [{"role": "system", "content": "Be brief."}, *HI])
        assert plain.status == 200, plain
        (choice,) = plain.json["choices"]
        assert choice["message"]["content"] == "Hello there, you."
        assert choice["finish_reason"] == "stop"
        assert (
            plain.json["usage"]["total_tokens"]
            == plain.json["usage"]["prompt_tokens"] + plain.json["usage"]["completion_tokens"]
            > 0
        )
        assert "You are careful." in model.requests[0].messages[0]["content"]
        assert "Be brief." in model.requests[0].messages[0]["content"]
        pieces = chunks(chat(server, HI, stream=True, stream_options={"include_usage": True}))
        assert (
            "".join(
                one["choices"][0]["delta"].get("content", "") for one in pieces if one["choices"]
            )
            == "Hello there, you."
        )
        assert len(pieces) > 4  # in pieces
        assert pieces[-2]["choices"][0]["finish_reason"] == "stop"
        assert pieces[-1]["choices"] == []
        assert pieces[-1]["usage"]["prompt_tokens"] > 0
        assert all(one["usage"] is None for one in pieces[:-1])


def test_tokens_of_sound_are_counted(tmp_path: Path) -> None:
    counts = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "prompt_tokens_details": {"audio_tokens": 6},
        "completion_tokens_details": {"audio_tokens": 7},
    }
    with serving(tmp_path, lambda _: text("Hi.", usage=counts)) as (server, _):
        usage = chat(server, HI).json["usage"]
    assert usage["prompt_tokens_details"]["audio_tokens"] == 6
    assert usage["completion_tokens_details"]["audio_tokens"] == 7


@pytest.mark.slow
def test_sources_are_annotations_plain_and_streamed(tmp_path: Path) -> None:
    cited = {"type": "url_citation", "url": "https://a.example/", "title": "A"}
    cited |= {"start_index": 3, "end_index": 5}
    content = [{"type": "output_text", "text": "It is so.", "annotations": [cited]}]
    answer = {"output": [{"type": "message", "role": "assistant", "content": content}]}
    with ModelServer([answer, answer]) as model:
        llm = LLM("m", base_url=model.url, wire="openai_responses", max_retries=0)
        agents = {"coder": publish("coder", Agent(llm))}
        with Serving(tmp_path, agents=agents) as server:
            (choice,) = chat(server, HI).json["choices"]
            pieces = chunks(chat(server, HI, stream=True))
    about = {"url": "https://a.example/", "title": "A", "start_index": 3, "end_index": 5}
    expected = [{"type": "url_citation", "url_citation": about}]
    assert choice["message"]["annotations"] == expected
    deltas = [one["choices"][0]["delta"] for one in pieces]
    assert [delta["annotations"] for delta in deltas if "annotations" in delta] == [expected]


@pytest.mark.slow
def test_a_refusal_is_told_as_one_plain_and_streamed(tmp_path: Path) -> None:
    content = [{"type": "refusal", "refusal": "I will not."}]
    refused = {"output": [{"type": "message", "role": "assistant", "content": content}]}
    with ModelServer([refused, refused]) as model:
        llm = LLM("m", base_url=model.url, wire="openai_responses", max_retries=0)
        agents = {"coder": publish("coder", Agent(llm))}
        with Serving(tmp_path, agents=agents) as server:
            (choice,) = chat(server, HI).json["choices"]
            pieces = chunks(chat(server, HI, stream=True))
    assert choice["message"]["refusal"] == "I will not."
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "stop"
    deltas = [one["choices"][0]["delta"] for one in pieces]
    assert [delta["refusal"] for delta in deltas if "refusal" in delta] == ["I will not."]


@pytest.mark.slow
def test_a_longer_history_goes_on_with_the_same_conversation_and_runs_no_tool_again(
    tmp_path: Path,
) -> None:
    def answer(request: Request) -> Any:
        if request.messages[-1]["role"] == "user":
            return (
                calls(("terminal", {"command": "echo x >> ran; wc -l < ran"}))
                if "Count" in str(request.messages[-1])
                else text("Bye.")
            )
        return text(f"There are {request.messages[-1]['content'].strip().splitlines()[0]}.")

    with serving(tmp_path, answer, ("terminal",)) as (server, model):
        question = [{"role": "user", "content": "Count."}]
        first = chat(server, question)
        answer_message = first.json["choices"][0]["message"]
        assert answer_message["content"] == "There are 1."
        history = [
            *question,
            {"role": "assistant", "content": answer_message["content"]},
            {"role": "user", "content": "Thanks"},
        ]
        second = chat(server, history)
        assert second.json["choices"][0]["message"]["content"] == "Bye."
        place = "x-holdfast-conversation"
        assert second.headers[place] == first.headers[place]
        # The model receives the call and its result, which the client never saw.
        assert [message["role"] for message in model.requests[-1].messages] == [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
        ]
        again = chat(server, history)  # the same request again: a fork of it
        assert again.json["choices"][0]["message"]["content"] == "Bye."
        assert again.headers[place] != first.headers[place]
        assert [message["role"] for message in model.requests[-1].messages] == [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
        ]
        state = server.ask("GET", f"/api/conversations/{first.headers[place]}/state").json
        assert sum(event["type"] == "toolCallStarted" for event in state["events"]) == 1


@pytest.mark.slow
def test_a_history_that_nobody_here_knows_is_taken_over(tmp_path: Path) -> None:
    with serving(tmp_path, lambda _: text("Alice.")) as (server, model):
        history = [
            *HI,
            {"role": "assistant", "content": "Hello Alice!"},
            {"role": "user", "content": [{"type": "text", "text": "My name?"}]},
        ]
        reply = chat(server, history)
        assert reply.json["choices"][0]["message"]["content"] == "Alice."
        assert [
            (message["role"], message["content"]) for message in model.requests[-1].messages[1:]
        ] == [
            ("user", "Hi"),
            ("assistant", "Hello Alice!"),
            ("user", "My name?"),
        ]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_the_clients_tools_are_run_by_the_client(tmp_path: Path, stream: bool) -> None:
    def answer(request: Request) -> Any:
        last = request.messages[-1]
        return (
            text(f"It is {last['content']}.")
            if last["role"] == "tool"
            else calls(("get_weather", {"city": "Ulm"}))
        )

    with serving(tmp_path, answer) as (server, _):
        question = [{"role": "user", "content": "Weather?"}]
        reply = chat(server, question, tools=[WEATHER], stream=stream)
        if stream:
            pieces = chunks(reply)
            assert pieces[-1]["choices"][0]["finish_reason"] == "tool_calls"
            (call,) = [
                call for one in pieces for call in one["choices"][0]["delta"].get("tool_calls", [])
            ]
            call.pop("index")
        else:
            (choice,) = reply.json["choices"]
            assert choice["finish_reason"] == "tool_calls"
            assert choice["message"]["content"] is None
            (call,) = choice["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"city": "Ulm"}
        history = [
            *question,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
        ]
        second = chat(server, history, tools=[WEATHER])
        assert second.json["choices"][0]["message"]["content"] == "It is sunny."
        assert second.headers["x-holdfast-conversation"] == reply.headers["x-holdfast-conversation"]
        # The same with an id that this server never gave.
        other = [
            *question,
            {"role": "assistant", "content": "", "tool_calls": [{**call, "id": "call_x"}]},
            {"role": "tool", "tool_call_id": "call_x", "content": "rainy"},
        ]
        third = chat(server, other, tools=[WEATHER])
        assert third.json["choices"][0]["message"]["content"] == "It is rainy."


@pytest.mark.slow
def test_a_call_that_the_client_does_not_answer_is_told_as_not_run(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        return calls(("get_weather", {})) if len(request.messages) == 2 else text("Never mind.")

    with serving(tmp_path, answer) as (server, model):
        question = [{"role": "user", "content": "Weather?"}]
        (call,) = chat(server, question, tools=[WEATHER]).json["choices"][0]["message"][
            "tool_calls"
        ]
        history = [
            *question,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "user", "content": "Forget it."},
        ]
        assert (
            chat(server, history, tools=[WEATHER]).json["choices"][0]["message"]["content"]
            == "Never mind."
        )
        assert "Not run" in str(model.requests[-1].messages[-2]["content"])


@pytest.mark.slow
def test_pictures_come_inline(tmp_path: Path) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    with serving(tmp_path, lambda _: text("A dot.")) as (server, _):
        assert (
            chat(
                server, [{"role": "user", "content": [{"type": "text", "text": "What?"}, picture]}]
            ).json["choices"][0]["message"]["content"]
            == "A dot."
        )
        local = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
        refused = chat(server, [{"role": "user", "content": [local]}])
        assert refused.status == 400
        assert "takes an https: URL" in refused.json["error"]["message"]


def test_pictures_files_and_sound_become_blocks() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": "https://example.com/photo?id=7"},
        {
            "type": "file",
            "file": {"file_data": "data:application/pdf;base64,JVBE", "filename": "a"},
        },
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_audio", "input_audio": {"data": "YWJj", "format": "mp3"}},
    ]
    assert content_of(parts, "messages") == (
        FileContent(url="https://example.com/a.png", mime_type="image/png"),
        FileContent(url="https://example.com/photo?id=7", mime_type="image/jpeg"),
        FileContent(b"%PD", "application/pdf", name="a"),
        FileContent(file_id="file-1", provider="openai"),
        AudioContent(b"abc", "audio/mpeg"),
    )


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": 3}},
        {"type": "file", "file": {}},
        {"type": "file", "file": {"file_data": "JVBE"}},
        {"type": "file", "file": {"file_data": "data:a/b;base64,!"}},
        {"type": "input_audio", "input_audio": {"data": "YWJj", "format": "a b"}},
        {"type": "input_audio", "input_audio": None},
        {"type": "video", "video": {}},
    ],
)
def test_a_wrong_part_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"^messages: "):
        content_of([part], "messages")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({"messages": HI}, 422, "model"),
        ({"model": "none", "messages": HI}, 404, "no agent 'none'"),
        ({"model": "coder", "messages": []}, 400, "messages is empty"),
        ({"model": "coder", "messages": HI, "n": 2}, 400, "n must be 1"),
        (
            {"model": "coder", "messages": [*HI, {"role": "assistant", "content": "Hello"}]},
            400,
            "nothing to answer",
        ),
        ({"model": "coder", "messages": [{"role": "robot", "content": "x"}]}, 400, "role takes"),
        (
            {
                "model": "coder",
                "messages": [{"role": "tool", "tool_call_id": "call_9", "content": "x"}],
            },
            400,
            "matches no earlier call",
        ),
        (
            {"model": "coder", "messages": HI, "tools": [WEATHER, WEATHER]},
            400,
            "the name 'get_weather' is taken",
        ),
    ],
    ids=lambda value: "" if isinstance(value, dict | int) else value,
)
def test_what_does_not_fit_is_told_in_that_apis_form(
    tmp_path: Path, body: dict[str, Any], status: int, part: str
) -> None:
    with serving(tmp_path, lambda _: text("hello")) as (server, model):
        reply = server.ask("POST", "/v1/chat/completions", body)
        assert (reply.status, part in reply.json["error"]["message"]) == (status, True), reply
        assert model.requests == []


@pytest.mark.slow
def test_a_model_that_fails_is_told_plain_and_streamed(tmp_path: Path) -> None:
    with serving(tmp_path, lambda _: (400, {"error": {"message": "bad things", "type": "x"}})) as (
        server,
        _,
    ):
        plain = chat(server, HI)
        assert (plain.status, plain.headers["x-should-retry"]) == (422, "false")
        assert "bad things" in plain.json["error"]["message"]
        streamed = chat(server, HI, stream=True)
        assert "bad things" in streamed.body.decode()
        assert "[DONE]" not in streamed.body.decode()


@pytest.mark.slow
def test_another_tenant_has_conversations_of_his_own(tmp_path: Path) -> None:
    with serving(tmp_path, lambda _: text("hello")) as (server, _):
        first = chat(server, HI)
        id = first.headers["x-holdfast-conversation"]
        assert server.ask("GET", f"/api/conversations/{id}", key=server.other).status == 404
        history = [
            *HI,
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": "And?"},
        ]
        other = server.ask(
            "POST", "/v1/chat/completions", {"model": "coder", "messages": history}, server.other
        )
        assert other.status == 200, other
        assert other.headers["x-holdfast-conversation"] != id


@pytest.mark.slow
def test_a_client_that_hangs_up_ends_the_run(tmp_path: Path) -> None:
    model_called, release = threading.Event(), threading.Event()

    def answer(request: Request) -> Any:
        model_called.set()
        release.wait(30)
        return text("late")

    with serving(tmp_path, answer) as (server, _):
        connection = server.connect()
        body = json.dumps({"model": "coder", "messages": HI}).encode()
        connection.request(
            "POST",
            "/v1/chat/completions",
            body,
            {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"},
        )
        assert model_called.wait(30)
        connection.close()
        items = server.ask("GET", "/api/conversations").json["items"]
        path = f"/api/conversations/{items[0]['id']}"
        events = server.stream(path)
        try:
            assert any(
                event == "status" and json.loads(data)["status"] == "paused"
                for _, event, data in events
                if event
            )
        finally:
            release.set()


# --- the judgement of other programs ---


@pytest.mark.slow
def test_the_official_client_agrees(tmp_path: Path) -> None:
    openai = pytest.importorskip("openai", reason="the official client is not installed")

    def answer(request: Request) -> Any:
        if request.json.get("tools") and request.messages[-1]["role"] == "user":
            return calls(("get_weather", {"city": "Ulm"}))
        return text("Hello there.")

    with (
        serving(tmp_path, answer) as (server, _),
        openai.OpenAI(
            api_key=server.key,
            base_url=f"{server.server.url}/v1",
            max_retries=0,
            _strict_response_validation=True,
        ) as client,
    ):
        assert [model.id for model in client.models.list()] == ["coder"]
        completion = client.chat.completions.create(model="coder", messages=HI)
        assert completion.choices[0].message.content == "Hello there."
        called = client.chat.completions.create(model="coder", messages=HI, tools=[WEATHER])
        assert called.choices[0].message.tool_calls[0].function.name == "get_weather"
        history = [
            *HI,
            called.choices[0].message,
            {
                "role": "tool",
                "tool_call_id": called.choices[0].message.tool_calls[0].id,
                "content": "sunny",
            },
        ]
        assert (
            client.chat.completions.create(model="coder", messages=history, tools=[WEATHER])
            .choices[0]
            .message.content
            == "Hello there."
        )
        with client.chat.completions.stream(model="coder", messages=HI) as stream:
            for _ in stream:
                pass
            assert stream.get_final_completion().choices[0].message.content == "Hello there."
        with pytest.raises(openai.NotFoundError, match="no agent 'other'"):
            client.chat.completions.create(model="other", messages=HI)
        with pytest.raises(openai.BadRequestError, match="n must be 1"):
            client.chat.completions.create(model="coder", messages=HI, n=2)


@pytest.mark.proof
def test_llm_comply_finds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("llm_comply", reason="llm-comply is not installed")

    def answer(request: Request) -> Any:
        wants = request.json.get("tools") and request.messages[-1]["role"] == "user"
        return (
            calls(("get_weather", {"location": "San Francisco"}))
            if wants
            else text("Hello there you.")
        )

    with serving(tmp_path, answer) as (server, _):
        command = [
            sys.executable,
            "-m",
            "llm_comply.cli",
            "-u",
            f"{server.server.url}/v1",
            "-k",
            server.key,
            "-m",
            "coder",
            "--format",
            "openai-chat",
            "--json",
        ]
        process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        report = json.loads(process.stdout)
        assert process.returncode == 0, process.stdout + process.stderr
        assert report
