"""History that the provider has compacted is not sent again."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Agent, Conversation, MemoryStore, Tool
from holdfast.errors import ConfigurationError, ContextTooLong
from holdfast.llm import LLM, Transcript
from tests.llm.test_openai_responses import call_item, message_item, reasoning_item, response, sse
from tests.model_server import ModelServer

COMPACTED = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}


def model(server: ModelServer, **more: Any) -> LLM:
    return LLM("gpt-5", "key", server.url, wire="openai_responses", max_retries=0, **more)


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_compaction_item_replaced_is_not_sent_again(stream: bool) -> None:
    """https://developers.openai.com/api/docs/guides/compaction: items before the most recent
    compaction item can be dropped."""
    compacting = [COMPACTED, reasoning_item(), call_item("look")]
    answers = [
        response(message_item("Hello.")),
        response(*compacting),
        response(message_item("Done.")),
    ]
    tool = Tool("look", "Looks.", lambda: "a cat")
    store = MemoryStore()
    with ModelServer([sse(answer) if stream else answer for answer in answers]) as server:
        extra = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
        agent = Agent(model(server, stream=stream, extra_body=extra), tools=[tool])
        with Conversation(agent, store, id="c") as conversation:
            conversation.send_message("one")
            conversation.run()
            conversation.send_message("two")
            assert conversation.run().answer == "Done."
        inputs = [request.json["input"] for request in server.requests]
    assert len(inputs[1]) == 3
    output = {"type": "function_call_output", "call_id": "call_1", "output": "a cat"}
    assert inputs[2] == [*compacting, output]
    with (
        ModelServer([response(message_item("Bye."))]) as server,
        Conversation(Agent(model(server)), store, id="c") as conversation,
    ):
        conversation.send_message("three")
        conversation.run().raise_for_status()
        assert server.requests[0].json["input"] == [
            *compacting,
            output,
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": "three"},
        ]


def test_another_provider_gets_the_whole_history() -> None:
    store = MemoryStore()
    with (
        ModelServer(
            [response(message_item("Hello.")), response(COMPACTED, message_item("Hm."))]
        ) as server,
        Conversation(Agent(model(server)), store, id="c") as conversation,
    ):
        for text in ("one", "two"):
            conversation.send_message(text)
            conversation.run()
    with ModelServer([]) as server:
        other = LLM("m", "key", server.url, wire="openai_chat", max_retries=0)
        with Conversation(Agent(other), store, id="c") as conversation:
            conversation.send_message("three")
            conversation.run()
        part = server.requests[0].json["messages"]
    texts = [message["content"] for message in part if message["role"] != "system"]
    assert texts == ["one", "Hello.", "two", "Hm.", "three"]


USER_ITEM = {
    "type": "message",
    "id": "msg_7",
    "role": "user",
    "content": [{"type": "input_text", "text": "one"}],
}
RESULT = {
    "id": "resp_9",
    "object": "response.compaction",
    "created_at": 1,
    "output": [USER_ITEM, COMPACTED],
    "usage": {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13},
}


def test_a_transcript_can_be_compacted_and_goes_on_from_there() -> None:
    """The output of the API is the next window, unchanged."""
    transcript = Transcript.from_messages("one")
    with ModelServer(
        [response(reasoning_item(), message_item("Hello.")), RESULT, response(message_item("Bye."))]
    ) as at:
        llm = model(at, reasoning_effort="low", temperature=0)
        transcript.append(llm.completion(transcript, system="Be brief."))
        compacted = llm.compact(transcript, system="Be brief.")
        assert (compacted.text, compacted.usage.output_tokens) == ("", 4)
        transcript.append(compacted)
        transcript.say("two")
        assert llm.completion(transcript, system="Be brief.").text == "Bye."
        llm.close()
        assert at.requests[1].path == "/v1/responses/compact"
        assert at.requests[1].json == {
            "model": "gpt-5",
            "instructions": "Be brief.",
            "input": [{"role": "user", "content": "one"}, reasoning_item(), message_item("Hello.")],
        }
        assert at.requests[2].json["input"] == [
            USER_ITEM,
            COMPACTED,
            {"role": "user", "content": "two"},
        ]


def test_a_compaction_fails_like_any_request() -> None:
    busy = (503, {"retry-after-ms": "1"}, {"error": {"message": "busy"}})
    long = (400, {}, {"error": {"message": "too long", "code": "context_length_exceeded"}})
    with ModelServer([busy, RESULT, long]) as server:
        llm = model(server).replace(max_retries=1)
        assert llm.compact("one").response_id == "resp_9"
        with pytest.raises(ContextTooLong):
            llm.compact("one")
        llm.close()
    with pytest.raises(ConfigurationError, match="wire='openai_responses'"):
        LLM("m", "key", "http://localhost/v1", wire="openai_chat").compact("one")
