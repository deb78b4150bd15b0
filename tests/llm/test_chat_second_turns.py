"""The second turn of Chat Completions after answers that are more than text: pictures, sound that
expires, content in parts, and Claude's signed thinking behind a LiteLLM proxy."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Raw

from holdfast import Agent, Conversation, MemoryStore, Tool
from holdfast import events as ev
from holdfast.content import ImageContent, Message, TextContent, ToolCall
from holdfast.conversation.replay import replay
from holdfast.errors import BadRequest, ConfigurationError
from holdfast.llm import LLM, Completion, Transcript
from holdfast.llm.request import Prompt, RequestTarget, make_request
from holdfast.llm.wires import openai_chat
from tests.model_server import ModelServer, calls, chat, text

PNG = base64.b64encode(b"\x89PNG fake").decode()
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
NOTE = "[image/png, 9 bytes: generated here, and not sent back]"
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def stream_of(*deltas: dict[str, Any]) -> str:
    chunks: list[dict[str, Any]] = [
        {"id": "c", "model": "mock", "choices": [{"index": 0, "delta": delta}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def model(server: ModelServer, name: str = "mock", **more: Any) -> LLM:
    return LLM(name, "key", server.url, max_retries=0, **more)


def second(answer: Any, **more: Any) -> tuple[Completion, list[dict[str, Any]]]:
    """Return an answer, and the messages of the request that follows it."""
    with ModelServer([answer, text("ok")]) as server:
        llm = model(server, stream=isinstance(answer, str), **more)
        history = Transcript.from_messages("hi")
        history.append(llm.completion(history))
        history.say("more")
        llm.completion(history)
        answer_read = history.items[1]
        assert isinstance(answer_read, Completion)
        return answer_read, server.requests[1].messages


# --- pictures ---


@pytest.mark.parametrize(
    "answer",
    [
        chat({"role": "assistant", "content": None, "images": [PICTURE]}, "stop"),
        chat({"role": "assistant", "content": "", "images": [PICTURE]}, "stop"),
        chat({"role": "assistant", "content": [PICTURE]}, "stop"),
        stream_of({"images": [PICTURE]}),
    ],
)
def test_an_answer_of_a_picture_alone_is_not_sent_back_empty(answer: Any) -> None:
    completion, messages = second(answer)
    assert completion.media == (ImageContent(b"\x89PNG fake", "image/png"),)
    assert messages[1] == {"role": "assistant", "content": NOTE}


def test_content_in_parts_goes_back_without_media() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "Here it is:"},
        PICTURE,
        {"type": "reference", "reference_ids": [1]},
        {"type": "tool_reference", "tool": "web_search", "title": "A", "url": "https://a.example"},
        {"type": "of_the_future", "x": 1},
    ]
    completion, messages = second(chat({"role": "assistant", "content": parts}, "stop"))
    assert completion.text == "Here it is:"
    assert messages[1]["content"] == [parts[0], parts[1], parts[3]]


def test_a_picture_in_a_conversation_replays_and_other_wires_get_the_note() -> None:
    answers = [chat({"role": "assistant", "content": None, "images": [PICTURE]}, "stop")]
    store = MemoryStore()
    with (
        ModelServer([*answers, text("ok")]) as server,
        Conversation(Agent(model(server)), store, "c") as conversation,
    ):
        for word in ("hi", "more"):
            conversation.send_message(word)
            conversation.run().raise_for_status()
        assert replay(conversation.get_history()).same
    claude = {
        "content": [{"type": "text", "text": "a"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    with ModelServer([claude]) as server:
        other = LLM("m", "key", server.url, wire="anthropic_messages", max_retries=0)
        with Conversation(Agent(other), store, "c") as conversation:
            conversation.send_message("And now?")
            conversation.run().raise_for_status()
        messages = server.requests[0].messages[1]
        assert messages == {"role": "assistant", "content": [{"type": "text", "text": NOTE}]}


# --- sound ---


def audio_answer(end: datetime | None) -> dict[str, Any]:
    audio: dict[str, Any] = {"id": "audio_1", "data": PNG, "transcript": "Hello."}
    if end is not None:
        audio["expires_at"] = int(end.timestamp())
    return chat({"role": "assistant", "content": None, "audio": audio}, "stop")


def audio_sent(server: ModelServer) -> Any:
    message = server.requests[-1].messages[-2]
    return message.get("audio"), message["content"]


def test_the_id_of_a_sound_is_not_sent_after_its_end() -> None:
    with ModelServer([audio_answer(NOW), text("ok"), text("ok")]) as server:
        history, llm = Transcript.from_messages("hi"), model(server)
        history.clock = lambda: clock[0]
        clock = [NOW.timestamp() - 60]
        history.append(llm.completion(history))
        history.say("more")
        llm.completion(history)
        assert audio_sent(server) == ({"id": "audio_1"}, "")
        clock[0] = NOW.timestamp()
        llm.completion(history)
        assert audio_sent(server) == (None, "Hello.")


def test_a_streamed_sound_ends_too() -> None:
    answer = stream_of(
        {"audio": {"id": "audio_1", "data": PNG}},
        {"audio": {"transcript": "Hel"}},
        {"audio": {"transcript": "lo.", "expires_at": 1}},
    )
    assert second(answer)[1][1] == {"role": "assistant", "content": "Hello."}


def test_a_conversation_decides_by_the_time_of_its_events_and_so_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from holdfast.conversation import journal

    class Clock(datetime):
        time = NOW

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.time

    monkeypatch.setattr(journal, "datetime", Clock)
    store = MemoryStore()
    with ModelServer([audio_answer(NOW + timedelta(hours=1)), *[text("ok")] * 3]) as server:
        for minutes, expected in ((0, None), (30, ({"id": "audio_1"}, "")), (61, (None, "Hello."))):
            Clock.time = NOW + timedelta(minutes=minutes)
            with Conversation(Agent(model(server)), store, "c") as conversation:
                conversation.send_message("hi")
                conversation.run().raise_for_status()
                events = conversation.get_history()
            if expected is not None:
                at = next(one for one in server.requests[-1].messages if one["role"] == "assistant")
                assert (at.get("audio"), at["content"]) == expected
        assert events[-1].timestamp == Clock.time
        assert replay(events).same
        answers = [event for event in events if isinstance(event, ev.AssistantReplied)]
        assert len({answer.request_hash for answer in answers}) == 3


def test_a_sound_that_is_gone_earlier_is_replaced_by_its_transcript_once_refused() -> None:
    refusal = (
        400,
        {},
        {"error": {"message": "Assistant audio audio_1 not found.", "code": "audio_not_found"}},
    )
    end = datetime.now(UTC) + timedelta(hours=1)
    with (
        ModelServer([audio_answer(end), refusal, text("ok"), text("ok")]) as server,
        Conversation(Agent(model(server))) as conversation,
    ):
        for word in ("hi", "more"):
            conversation.send_message(word)
            conversation.run().raise_for_status()
        assert audio_sent(server) == (None, "Hello.")
        events = conversation.get_history()
        last = [event for event in events if isinstance(event, ev.AssistantReplied)][-1]
        assert last.notes == (
            "The sound of an earlier answer was refused; its transcript was sent.",
        )
        assert replay(events).same
    other = (400, {}, {"error": {"message": "Unknown parameter 'audio'."}})
    with ModelServer([audio_answer(None), other]) as server:
        history, llm = Transcript.from_messages("hi"), model(server)
        history.append(llm.completion(history))
        with pytest.raises(BadRequest):
            llm.completion(history)
        assert len(server.requests) == 2, "nothing else could be sent"


# --- Claude behind a LiteLLM proxy ---

THOUGHT = {"type": "thinking", "thinking": "I look it up.", "signature": "sig-1"}
HIDDEN = {"type": "redacted_thinking", "data": "xyz"}
MARK = {"type": "ephemeral"}


def thinking_call() -> dict[str, Any]:
    answer = calls(("look", {}))
    message = answer["choices"][0]["message"]
    message |= {"reasoning_content": "I look it up.", "thinking_blocks": [THOUGHT, HIDDEN]}
    message["provider_specific_fields"] = {"thinking_blocks": [THOUGHT, HIDDEN]}
    return {**answer, "model": "claude-sonnet-4-5"}


def thinking_stream() -> str:
    entry = {"index": 0, "id": "call_0", "type": "function"}
    function = {"name": "look", "arguments": "{}"}
    pieces = [
        {"type": "thinking", "thinking": "I look ", "signature": ""},
        {"type": "thinking", "thinking": "it up.", "signature": None},
        {"type": "thinking", "thinking": "", "signature": "sig-1"},
        HIDDEN,
    ]
    deltas: list[dict[str, Any]] = [
        {"reasoning_content": piece.get("thinking") or "", "thinking_blocks": [piece]}
        for piece in pieces
    ]
    return stream_of(*deltas, {"tool_calls": [{**entry, "function": function}]})


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_blocks_go_back_as_they_came(stream: bool) -> None:
    """https://docs.litellm.ai/docs/reasoning_content: they must be sent with the results of
    tools, or Anthropic refuses the request."""
    answer = thinking_stream() if stream else thinking_call()
    with ModelServer([answer, text("Done.")]) as server:
        llm = model(server, "litellm_proxy/claude-sonnet-4-5", stream=stream)
        agent = Agent(llm, [Tool("look", "Looks.", lambda: "a cat")])
        with Conversation(agent) as conversation:
            conversation.send_message("hi")
            conversation.run().raise_for_status()
            assert replay(conversation.get_history()).same
            (reply,) = [
                event
                for event in conversation.get_history()
                if isinstance(event, ev.AssistantReplied) and event.calls
            ]
            assert reply.reasoning == "I look it up."
        messages = server.requests[1].messages[-2]
    assert server.requests[0].json["model"] == "claude-sonnet-4-5"
    assert messages["thinking_blocks"] == [THOUGHT, HIDDEN]
    assert messages["tool_calls"][0]["function"]["name"] == "look"
    assert "provider_specific_fields" not in messages


def marked(message: dict[str, Any]) -> Any:
    content = message["content"]
    return message.get("cache_control") or (
        content[-1].get("cache_control") if isinstance(content, list) else None
    )


@pytest.mark.parametrize(
    ("name", "caching", "mark"),
    [
        ("litellm_proxy/claude-sonnet-4-5", True, MARK),
        ("litellm_proxy/claude-sonnet-4-5", "1h", {**MARK, "ttl": "1h"}),
        ("litellm_proxy/bedrock/us.anthropic.claude-opus-4-1", True, MARK),
        ("litellm_proxy/claude-sonnet-4-5", False, None),
        ("litellm_proxy/gpt-4o", True, None),
        ("claude-sonnet-4-5", True, None),
    ],
)
def test_the_prompt_and_the_last_two_messages_are_marked(
    name: str, caching: Any, mark: dict[str, Any] | None
) -> None:
    """https://docs.litellm.ai/docs/completion/prompt_caching"""
    with ModelServer([text("ok"), thinking_call(), text("Done."), text("ok")]) as server:
        llm = model(server, name, prompt_caching=caching)
        agent = Agent(llm, [Tool("look", "Looks.", lambda: "a cat")], system_prompt="Be brief.")
        with Conversation(agent) as conversation:
            conversation.send_message("hi")
            conversation.run()
            conversation.send_message(
                [TextContent("Look."), ImageContent(b"\x89PNG fake", "image/png")]
            )
            conversation.run().raise_for_status()
            assert replay(conversation.get_history()).same
        messages = server.requests[2].messages
    assert [message["role"] for message in messages] == [
        *("system", "user", "assistant", "user", "assistant", "tool"),
    ]
    assert [marked(message) for message in messages] == [mark, None, None, mark, None, mark]
    prompt, result = messages[0]["content"], messages[-1]["content"]
    assert (prompt == "Be brief.") == (mark is None)
    assert result == "a cat"
    if mark:
        assert prompt == [{"type": "text", "text": "Be brief.", "cache_control": mark}]
        first = server.requests[0].messages[1]["content"]
        assert first == [{"type": "text", "text": "hi", "cache_control": mark}]


def test_a_proxy_needs_its_address_and_empty_text_no_mark() -> None:
    with pytest.raises(ConfigurationError, match="the address of the LiteLLM proxy"):
        LLM("litellm_proxy/claude-sonnet-4-5", "key")
    with ModelServer([text("ok")]) as server:
        llm = model(server, "litellm_proxy/claude-sonnet-4-5")
        llm.completion([Message(""), Message("a"), Message("")])
        contents = [message["content"] for message in server.requests[0].messages]
        assert contents[0] == contents[2] == ""


# --- empty answers ---


@pytest.mark.parametrize(
    ("host", "empty"),
    [
        ("api.mistral.ai", "(empty answer)"),
        ("api.moonshot.ai", "(empty answer)"),
        ("api.openai.com", ""),
        ("127.0.0.1", ""),
    ],
)
def test_hosts_that_refuse_an_empty_answer_get_a_text(host: str, empty: str) -> None:
    history = Transcript.from_messages("hi")
    history.append(Completion(stop_reason="length", wire="openai_chat"))
    history.say("Go on.")
    history.append(Completion(calls=(ToolCall("", "look", {}, "call_0"),), wire="openai_chat"))
    spoken = Raw(b'{"content":null,"audio":{"id":"a"}}')
    history.append(Completion("Hi.", native=spoken, wire="openai_chat"))
    history.say("More.")
    target = RequestTarget(openai_chat, "m", {"host": host})
    messages = json.loads(make_request(target, Prompt(history)).body)["messages"]
    answers = [one for one in messages if one["role"] == "assistant" and one["content"] != "OK."]
    assert [one["content"] for one in answers] == [empty, None, ""]


def test_a_picture_of_an_older_litellm_is_read() -> None:
    message = {"role": "assistant", "content": "Here:", "image": PICTURE["image_url"]}
    deltas = stream_of({"content": "Here:"}, {"image": PICTURE["image_url"]})
    for answer in (chat(message, "stop"), deltas):
        completion, messages = second(answer)
        assert completion.media == (ImageContent(b"\x89PNG fake", "image/png"),)
        assert completion.provider_details == {}
        assert messages[1] == {"role": "assistant", "content": "Here:"}


def test_signed_thinking_that_is_refused_is_left_out() -> None:
    refused = (
        400,
        {},
        {"error": {"message": "messages.1.content.0: Invalid `signature` in `thinking` block"}},
    )
    with ModelServer([thinking_call(), refused, text("Done."), text("ok")]) as server:
        llm = model(server, "litellm_proxy/claude-sonnet-4-5")
        agent = Agent(llm, [Tool("look", "Looks.", lambda: "a cat")])
        with Conversation(agent) as conversation:
            conversation.send_message("hi")
            assert conversation.run().answer == "Done."
            conversation.send_message("more")
            conversation.run().raise_for_status()
            assert replay(conversation.get_history()).same
        answers = [
            next(one for one in request.messages if one["role"] == "assistant")
            for request in server.requests[1:]
        ]
        assert ["thinking_blocks" in one for one in answers] == [True, False, False]
        assert all(one["tool_calls"] for one in answers)


# --- custom tools ---


def custom_call(stream: bool) -> Any:
    entry = {"id": "call_0", "type": "custom", "custom": {"name": "sql", "input": "SELECT 'ä{'"}}
    if not stream:
        message = {"role": "assistant", "content": None, "tool_calls": [entry]}
        return chat(message, "tool_calls")
    start = {**entry, "index": 0, "custom": {"name": "sql", "input": ""}}
    pieces = [{"index": 0, "custom": {"input": piece}} for piece in ("SELECT ", "'ä{", "'")]
    return stream_of(*({"tool_calls": [piece]} for piece in (start, *pieces)))


@pytest.mark.parametrize("stream", [False, True])
def test_a_custom_tool_is_called_with_text_and_its_call_goes_back_as_it_came(stream: bool) -> None:
    """https://platform.openai.com/docs/guides/function-calling: custom tools"""
    inputs: list[str] = []

    def sql(input: str) -> str:
        inputs.append(input)
        return "1 row"

    own = {"type": "custom", "custom": {"name": "sql", "description": "Ask the database."}}
    with ModelServer([custom_call(stream), text("Done.")]) as server:
        llm = model(server, "gpt-5.1", stream=stream, extra_body={"tools": [own]})
        tools = [Tool("sql", "Asks.", sql), Tool("look", "Looks.", lambda: "a cat")]
        with Conversation(Agent(llm, tools)) as conversation:
            conversation.send_message("hi")
            conversation.run().raise_for_status()
            assert replay(conversation.get_history()).same
        definitions = server.requests[0].json["tools"]
        call, result = server.requests[1].messages[-2:]
    assert inputs == ["SELECT 'ä{'"]
    assert [one["type"] for one in definitions] == ["function", "custom"]
    assert definitions[1] == own
    assert call["tool_calls"] == [
        {"id": "call_0", "type": "custom", "custom": {"name": "sql", "input": "SELECT 'ä{'"}}
    ]
    assert result == {"role": "tool", "tool_call_id": "call_0", "content": "1 row"}
