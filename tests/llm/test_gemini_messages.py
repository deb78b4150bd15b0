"""Contents of Gemini's requests: their order, files of users and tools, and results of calls."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any

import pytest

from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    FileContent,
    ImageContent,
    Message,
    TextContent,
    ToolCall,
    ToolResult,
)
from holdfast.llm import LLM, Completion, Transcript
from holdfast.llm.wires import gemini
from tests.model_server import ModelServer

PNG, PDF = b"\x89PNG fake", b"%PDF fake"
VERTEX = "europe-west1-aiplatform.googleapis.com"
HOST = "generativelanguage.googleapis.com"


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def inline(kind: str, data: bytes) -> dict[str, Any]:
    return {"inlineData": {"mimeType": kind, "data": encode(data)}}


def contents(transcript: Transcript, model: str = "gemini-3-pro", host: str = HOST) -> Any:
    """Return the contents of a request, as a loopback server receives them."""
    fragments = transcript.fragments(gemini, {}, model, host)
    return json.loads(gemini.body(gemini.head(model, "", (), {}, {}), fragments, False))["contents"]


def shape(transcript: Transcript) -> list[tuple[str, list[str]]]:
    """Return each content's role and its parts: names of calls and results, texts, or kinds."""

    def short(part: dict[str, Any]) -> str:
        [(kind, value)] = [item for item in part.items() if item[0] != "thoughtSignature"]
        return (
            value["name"] + ("()" if kind == "functionCall" else "=")
            if "name" in value
            else (value if kind == "text" else kind)
        )

    return [(one["role"], list(map(short, one["parts"]))) for one in contents(transcript)]


def calls(*names: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall("", name, {}, f"id_{name}") for name in names)


def native(*parts: dict[str, Any]) -> Completion:
    answer = {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]
    }
    return gemini.parse(json.dumps(answer).encode())


# --- order ---


def test_results_of_two_answers_in_a_row_are_one_content() -> None:
    first = native(
        {"functionCall": {"name": "a", "args": {}, "id": "1"}, "thoughtSignature": "czE="}
    )
    second = native({"functionCall": {"name": "b", "args": {"x": 1.0}}, "thoughtSignature": "czI="})
    transcript = Transcript([Message("go"), first, second])
    transcript.append(
        (first.calls[0], ToolResult([TextContent("A"), ImageContent(PNG, "image/gif")]))
    )
    transcript.append((second.calls[0], ToolResult([ImageContent(PNG, "image/bmp")])))
    assert shape(transcript) == [
        ("user", ["go"]),
        ("model", ["a()", "b()"]),
        ("user", ["a=", "b="]),
        (
            "user",
            ["Returned by a (call 1):", "inlineData", "Returned by b:", "inlineData"],
        ),
    ]
    parts = contents(transcript)[1]["parts"]
    assert [part["thoughtSignature"] for part in parts] == ["czE=", "czI="]
    body = gemini.body(
        gemini.head("m", "", (), {}, {}), transcript.fragments(gemini, {}, "gemini-3"), False
    )
    assert b'"x":1.0' in body or b'"x": 1.0' in body  # parts keep their bytes


def test_results_follow_their_calls_directly() -> None:
    answer = Completion("", calls=calls("a", "b"))
    transcript = Transcript([Message("go"), answer])
    transcript.append((answer.calls[0], ToolResult("A")))
    transcript.say("wait")
    transcript.append((answer.calls[1], ToolResult("B")))
    transcript.say("go on")
    assert shape(transcript) == [
        ("user", ["go"]),
        ("model", ["a()", "b()"]),
        ("user", ["a=", "b="]),
        ("user", ["wait"]),
        ("user", ["go on"]),
    ]


def test_a_message_before_the_first_result_follows_it() -> None:
    answer = Completion("", calls=calls("a"))
    transcript = Transcript([Message("go"), answer, Message("wait")])
    transcript.append((answer.calls[0], ToolResult("A")))
    assert shape(transcript)[2:] == [("user", ["a="]), ("user", ["wait"])]


def test_answers_in_a_row_are_one_content_and_a_users_messages_are_not() -> None:
    """Gemini 3 takes a text beside results as the model's own."""
    called = Completion("calling", calls=calls("a"))
    transcript = Transcript([Message("1"), Message("2"), Completion("so"), called])
    transcript.append((called.calls[0], ToolResult("A")))
    transcript.say("and?")
    assert shape(transcript) == [
        ("user", ["1"]),
        ("user", ["2"]),
        ("model", ["so", "calling", "a()"]),
        ("user", ["a="]),
        ("user", ["and?"]),
    ]


def test_a_regular_conversation_keeps_the_bytes_of_its_fragments() -> None:
    answer = Completion("", calls=calls("a"))
    transcript = Transcript([Message("go"), answer, (answer.calls[0], ToolResult("A"))])
    transcript.append(Completion("so"))
    transcript.say("on")
    fragments = list(transcript.fragments(gemini, {}, "gemini-3-pro", HOST))
    body = gemini.body(gemini.head("m", "", (), {}, {}), fragments, False)
    assert body == b'{"contents":[' + b",".join(fragments) + b"]}"


def test_results_whose_calls_were_condensed_away_stay_in_their_place() -> None:
    answer = Completion("", calls=calls("a"))
    results = gemini.results([(answer.calls[0], ToolResult("A"))], {})
    summary = gemini.user([TextContent("summary")])
    body = gemini.body(gemini.head("m", "", (), {}, {}), [summary, results], False)
    assert [list(one["parts"][0]) for one in json.loads(body)["contents"]] == [
        ["text"],
        ["functionResponse"],
    ]


def test_an_older_model_is_not_sent_the_parts_that_it_refuses() -> None:
    """A conversation may continue with an older model at the same host."""
    answer = native(
        {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "id": "g"}, "thoughtSignature": "czE="},
        {"toolResponse": {"toolType": "GOOGLE_SEARCH_WEB", "id": "g"}},
        {"text": "so", "thoughtSignature": "czI="},
    )
    transcript = Transcript([Message("go"), answer, Message("on")])
    assert contents(transcript, "gemini-2.5-pro")[1]["parts"] == [
        {"text": "so", "thoughtSignature": "czI="}
    ]
    for model in ("gemini-3-pro", "gemini-flash-latest", "mine"):
        assert len(contents(transcript, model)[1]["parts"]) == 3


# --- a user's files ---


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (FileContent(PDF, "application/pdf"), inline("application/pdf", PDF)),
        (FileContent(PNG, "image/webp"), inline("image/webp", PNG)),
        (FileContent(b"a,b", "text/csv"), inline("text/csv", b"a,b")),
        # refused under these types
        (FileContent(b"[1]", "application/json"), inline("text/plain", b"[1]")),
        (FileContent(b"1 + 1", "text/x-python"), inline("text/plain", b"1 + 1")),
        (FileContent(b"v", "video/mp4"), inline("video/mp4", b"v")),
        (AudioContent(b"a", "audio/mp3"), inline("audio/mp3", b"a")),
        (
            FileContent(url="https://www.youtube.com/watch?v=9hE5-98ZeCg"),
            {"fileData": {"fileUri": "https://www.youtube.com/watch?v=9hE5-98ZeCg"}},
        ),
        (
            FileContent(url="https://example.org/a.pdf"),
            {"fileData": {"fileUri": "https://example.org/a.pdf", "mimeType": "application/pdf"}},
        ),
        (
            FileContent(url="gs://bucket/a", mime_type="image/png"),
            {"fileData": {"fileUri": "gs://bucket/a", "mimeType": "image/png"}},
        ),
        *[
            (
                FileContent(file_id=id, mime_type="video/mp4"),
                {
                    "fileData": {
                        "fileUri": f"https://{HOST}/v1beta/files/abc",
                        "mimeType": "video/mp4",
                    }
                },
            )
            for id in ("files/abc", "abc", f"https://{HOST}/v1beta/files/abc")
        ],
        (
            FileContent(file_id="gs://bucket/a", mime_type="image/png"),
            {"fileData": {"fileUri": "gs://bucket/a", "mimeType": "image/png"}},
        ),
    ],
)
def test_a_users_file_is_a_part(block: Content, part: dict[str, Any]) -> None:
    with ModelServer([{"candidates": [{"content": {"parts": [{"text": "seen"}]}}]}]) as server:
        llm = LLM("gemini-3-pro", "k", server.url, wire="gemini", max_retries=0)
        llm.completion([Message((TextContent("look"), block))])
        assert server.requests[0].json["contents"] == [
            {"role": "user", "parts": [{"text": "look"}, part]}
        ]


# --- results with files ---


def result_contents(model: str, host: str, *blocks: Content, structured: Any = None) -> Any:
    answer = Completion("", calls=calls("shot"))
    transcript = Transcript([Message("go"), answer])
    transcript.append((answer.calls[0], ToolResult(blocks, structured)))
    return contents(transcript, model, host)[2:]


@pytest.mark.parametrize(
    "model", ["gemini-3-pro", "models/gemini-3.1-flash", "gemini-flash-latest"]
)
@pytest.mark.parametrize("host", [HOST, VERTEX])
def test_gemini_3_has_files_within_the_result(model: str, host: str) -> None:
    blocks = [TextContent("two"), ImageContent(PNG), FileContent(PDF, "application/pdf")]
    assert result_contents(model, host, *blocks) == [
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "name": "shot",
                        "response": {"output": "two\n(application/pdf, shown below)"},
                        "parts": [inline("image/png", PNG), inline("application/pdf", PDF)],
                        "id": "id_shot",
                    }
                }
            ],
        }
    ]


def test_files_that_no_result_may_hold_follow_it() -> None:
    blob = EmbeddedResource({"uri": "f:///a.mp4", "mimeType": "video/mp4", "blob": encode(b"v")})
    items = result_contents("gemini-3-pro", HOST, ImageContent(PNG), blob)
    [response] = items[0]["parts"]
    assert response["functionResponse"]["parts"] == [inline("image/png", PNG)]
    assert items[1]["parts"] == [
        {"text": "Returned by shot (call id_shot):"},
        inline("video/mp4", b"v"),
    ]


@pytest.mark.parametrize("model", ["gemini-2.5-pro", "gemini-2.0-flash", "gemma-3-27b-it", "mine"])
def test_older_models_get_files_after_the_result(model: str) -> None:
    items = result_contents(model, HOST, ImageContent(PNG))
    assert "parts" not in items[0]["parts"][0]["functionResponse"]
    assert items[1]["parts"][1] == inline("image/png", PNG)


def test_a_results_address_is_within_it_on_vertex_ai_alone() -> None:
    block = FileContent(url="gs://b/a.png")
    part = {"fileData": {"fileUri": "gs://b/a.png", "mimeType": "image/png"}}
    [on_vertex] = result_contents("gemini-3-pro", VERTEX, block)
    assert on_vertex["parts"][0]["functionResponse"]["parts"] == [part]
    response, following = result_contents("gemini-3-pro", HOST, block)
    assert "parts" not in response["parts"][0]["functionResponse"]
    assert following["parts"][1] == part


def test_a_file_that_no_model_reads_is_named_in_the_result() -> None:
    """Gemini would refuse a request with the file, now and for the rest of the conversation."""
    [item] = result_contents(
        "gemini-3-pro", HOST, FileContent(b"PK", "application/zip", name="a.zip")
    )
    output = item["parts"][0]["functionResponse"]["response"]["output"]
    assert output.startswith("[application/zip a.zip")
    assert "parts" not in item["parts"][0]["functionResponse"]


def test_a_conversation_that_changes_models_has_the_form_of_each() -> None:
    answer = Completion("", calls=calls("shot"))
    transcript = Transcript([Message("go"), answer])
    transcript.append((answer.calls[0], ToolResult([ImageContent(PNG)])))
    for model, count in (("gemini-2.5-pro", 2), ("gemini-3-pro", 1), ("gemini-2.5-pro", 2)):
        assert len(contents(transcript, model)[2:]) == count


def test_a_growing_transcript_is_put_in_order_as_a_whole_one_is() -> None:
    def call(number: int) -> ToolCall:
        return ToolCall(f"call_{number}", "look", {"n": number}, f"id_{number}")

    answered = call(1), ToolResult((TextContent("one"),))
    items: list[Any] = [
        Message((TextContent("Hello"),)),
        Completion("I look.", calls=(call(1), call(2))),
        answered,
        Message((TextContent("And quickly."),)),  # it is between two results
        (call(2), ToolResult((TextContent("two"),))),
        Completion("So."),
        Completion("And so."),  # a second answer in a row
        Message((TextContent("Thanks"),)),
        Completion("Done.", calls=(call(3),)),
        (call(3), ToolResult((TextContent("three"),))),
    ]
    head = gemini.head("gemini-3-pro", "", (), {}, {})

    def body(transcript: Transcript) -> Any:
        fragments = transcript.fragments(gemini, {}, "gemini-3-pro", HOST)
        return json.loads(gemini.body(head, fragments, False))

    growing = Transcript()
    for end, item in enumerate(items, 1):
        growing.append(item)
        assert body(growing) == body(Transcript(items[:end])), end
        roles = [one["role"] for one in body(growing)["contents"]]
        assert ("model", "model") not in set(pairwise(roles))
