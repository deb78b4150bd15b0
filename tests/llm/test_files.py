"""Files that a model does not receive: the texts in their place, the notes on an answer, and
files of one provider."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Agent, Conversation, SQLiteStore
from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    FileContent,
    ImageContent,
    Message,
    ResourceLink,
    TextContent,
    ToolCall,
    ToolResult,
)
from holdfast.conversation.replay import replay
from holdfast.llm import LLM, Completion, FallbackLLM, ScriptedLLM, Transcript
from holdfast.llm.files import can_receive, left_out, providers_of
from holdfast.llm.transcript import Recipient
from holdfast.llm.vision import hide_pictures
from holdfast.llm.wires import content_parts, wire
from tests.model_server import ModelServer, Request, text

WIRES = ("openai_chat", "openai_responses", "anthropic_messages", "gemini")
NOT_TAKEN = "this model's API takes no such file"
PDF = FileContent(b"%PDF-1.4" * 1500, "application/pdf", name="report.pdf")


def resource(mime_type: str, data: bytes | str, uri: str = "file:///d/a.txt") -> EmbeddedResource:
    blob = data if isinstance(data, str) else base64.b64encode(data).decode()
    return EmbeddedResource({"uri": uri, "mimeType": mime_type, "blob": blob})


# --- texts ---


@pytest.mark.parametrize(
    "mime_type",
    [
        *("text/plain", "text/csv; charset=utf-8", "application/json", "application/ld+json"),
        *("application/xml", "application/x-yaml", "application/atom+xml", "TEXT/HTML"),
    ],
)
@pytest.mark.parametrize("name", WIRES)
def test_the_blob_of_a_text_is_sent_as_text(name: str, mime_type: str) -> None:
    block = resource(mime_type, '\ufeff{"größe": 1}'.encode())
    assert content_parts.media_of(block) is None
    assert content_parts.as_text(block) == '{"größe": 1}'
    batch = [(ToolCall("1.0", "t", provider_id="c1"), ToolResult((block,)))]
    for fragment in (wire(name).user((block,)), wire(name).results(batch, {})):
        assert '{\\"größe\\": 1}' in fragment.decode()


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (PDF, f"[application/pdf report.pdf, 12 KB: {NOT_TAKEN}]"),
        (
            FileContent(url="https://example.com/a.pdf?x=1"),
            f"[application/pdf https://example.com/a.pdf?x=1: {NOT_TAKEN}]",
        ),
        (FileContent(file_id="file-1"), f"[file file-1: {NOT_TAKEN}]"),
        (FileContent(b"\xff\xfe", "text/plain"), f"[text/plain, 2 bytes: {NOT_TAKEN}]"),
        (FileContent(b"a,b", "text/csv", name="t.csv"), "[file t.csv]\na,b"),
        (FileContent(b"a,b", "text/csv"), "a,b"),
        (AudioContent(b"abc"), f"[audio/wav, 3 bytes: {NOT_TAKEN}]"),
        (ImageContent(b"", "image/\ntiff"), f"[image/ tiff, 0 bytes: {NOT_TAKEN}]"),
        (resource("text/plain", b"\xff"), f"[text/plain file:///d/a.txt, 3 bytes: {NOT_TAKEN}]"),
        (
            resource("application/zip", "abcde"),
            "[application/zip file:///d/a.txt, 3 bytes: it has no readable data]",
        ),
        (EmbeddedResource({"uri": "x:y"}), "[file x:y: it has no readable data]"),
    ],
)
def test_a_text_says_what_is_left_out(block: Content, expected: str) -> None:
    assert content_parts.as_text(block, images=True) == expected


def test_the_name_in_a_text_is_one_short_line() -> None:
    text = left_out(FileContent(b"x", "a/b", name="a\n]b" * 1000))
    assert "\n" not in text
    assert len(text) < 300


# --- notes ---


def notes_of(transcript: Transcript, to: Recipient) -> tuple[str, ...]:
    transcript.encode(to, {}, False)
    return transcript.notes(to)


def test_an_answer_names_each_omission_once() -> None:
    to = Recipient(wire("openai_chat"), "m", "h")
    sound = AudioContent(b"abc")
    transcript = Transcript([Message((TextContent("see"), PDF))])
    transcript.append(
        Completion(calls=(ToolCall("", "t", {}, "c1"),), wire="openai_chat", host="h")
    )
    transcript.append((ToolCall("", "t", {}, "c1"), ToolResult((sound, sound))))
    note = f"Left out: audio/wav, 3 bytes: {NOT_TAKEN}."
    assert notes_of(transcript, to) == (note,)
    transcript.append(Completion("ok", wire="openai_chat", host="h"))
    transcript.append(Message("go on"))
    assert notes_of(transcript, to) == ()
    # Another server gets all files again, so its first answer names all of them.
    assert note in notes_of(transcript, Recipient(wire("openai_chat"), "m", "elsewhere"))


@pytest.mark.parametrize("name", WIRES)
def test_there_is_no_note_on_a_file_that_is_sent(name: str) -> None:
    to = Recipient(wire(name), "m")
    content = (ImageContent(b"\x89PNG", "image/png"), resource("application/json", b"{}"))
    assert notes_of(Transcript([Message(content)]), to) == ()


def test_a_note_names_a_picture_that_a_model_without_vision_did_not_see() -> None:
    to = Recipient(wire("openai_chat"), "m", sees=False)
    transcript = Transcript([Message(ImageContent(b"\x89PNG", "image/png"))])
    note = "Left out: picture: image/png, 4 bytes: the model accepts no pictures."
    assert notes_of(transcript, to) == (note,)


def test_notes_reach_the_completion_and_the_journal() -> None:
    with ModelServer(lambda _: text("ok")) as server:
        llm = LLM("m", base_url=server.url)
        block = resource("application/zip", b"PK", "file:///a.zip")
        note = f"Left out: application/zip file:///a.zip, 3 bytes: {NOT_TAKEN}."
        assert llm.completion([Message(block)]).notes == (note,)
        with Conversation(Agent(llm)) as conversation:
            conversation.send_message(block)
            conversation.run()
            conversation.send_message("And now?")
            conversation.run()
            answers = [one for one in conversation.get_history() if one.type == "assistant"]
        assert [one.notes for one in answers] == [(note,), ()]


# --- files of one provider ---


@pytest.mark.parametrize(
    ("model", "host", "wire_name", "expected"),
    [
        ("claude-x", "api.anthropic.com", "anthropic_messages", {"anthropic"}),
        ("gpt-5", "eu.api.openai.com", "openai_responses", {"openai"}),
        ("gpt-5", "mine.openai.azure.com", "openai_responses", {"azure"}),
        ("openai/gpt-5", "openrouter.ai", "openai_chat", {"openrouter"}),
        ("openai/gpt-oss-120b", "api.groq.com", "openai_chat", {"groq"}),
        ("anthropic/claude-x", "localhost", "openai_chat", {"anthropic"}),
        ("vertex/gemini-3-pro", "localhost", "gemini", {"google-vertex"}),
        ("bedrock/x", "litellm", "openai_chat", {"amazon-bedrock"}),
        ("claude-x", "127.0.0.1", "anthropic_messages", {"anthropic"}),
        ("gemini-3-pro", "europe-aiplatform.googleapis.com", "gemini", {"google", "google-vertex"}),
        ("qwen", "", "openai_chat+text", {"openai"}),
    ],
)
def test_a_provider_is_known_by_host_prefix_or_wire(
    model: str, host: str, wire_name: str, expected: set[str]
) -> None:
    assert providers_of(model, host, wire_name) == expected


def own(provider: str) -> FileContent:
    return FileContent(file_id="f-1", mime_type="application/pdf", name="a.pdf", provider=provider)


def test_a_file_of_another_provider_is_replaced_by_a_note() -> None:
    with ModelServer(lambda _: text("ok")) as server:
        llm = LLM("groq/m", base_url=server.url)
        answer = llm.completion([Message(own("anthropic"))])
        foreign = "application/pdf a.pdf: only anthropic has this file"
        assert f"[{foreign}]" in server.requests[0].body.decode()
        assert answer.notes == (f"Left out: {foreign}.",)
        llm.completion([Message(own("Groq"))])
        assert "only" not in server.requests[1].body.decode()
        assert not can_receive(llm, own("anthropic"))
        assert can_receive(llm, own("groq"))


def test_a_result_with_a_file_of_another_provider() -> None:
    transcript = Transcript([Message("hi"), Completion(calls=(ToolCall("", "t", {}, "c1"),))])
    transcript.append((ToolCall("", "t", {}, "c1"), ToolResult((own("google"),))))
    for name in WIRES:
        fragment = transcript.fragments(wire(name), {}, "m")[-1].decode()
        assert ("only google has this file" in fragment) is (name != "gemini")


def test_each_member_of_a_composite_decides_for_itself() -> None:
    """The members have one wire and one maker, but receive different content."""
    answers: list[Any] = [(500, {}, "down"), text("ok"), text("ok")]
    with ModelServer(answers) as server:
        members = {
            "a": LLM("groq/m", base_url=server.url, max_retries=0),
            "b": LLM("mistral/m", base_url=server.url, max_retries=0),
        }
        transcript = Transcript([Message("hi")])
        llm = FallbackLLM(members)
        transcript.say(own("mistral"))
        answer = llm.completion(transcript)
        values = [request.body.decode() for request in server.requests]
        assert ["only mistral has this file" in body for body in values] == [True, False]
        assert not any("only" in note for note in answer.notes)


def test_a_file_of_one_provider_replays_to_the_same_bytes(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        assert ("only anthropic" in request.body.decode()) is (request.number > 0)
        return text("ok")

    with ModelServer(answer) as server, SQLiteStore(tmp_path / "a.db") as store:
        agent = Agent(LLM("groq/m", base_url=server.url))
        with Conversation(agent, store, id="c") as conversation:
            conversation.send_message("hi")
            conversation.run()
            conversation.send_message([TextContent("read"), own("anthropic")])
            conversation.run()
        with Conversation(agent, store, id="c") as conversation:
            conversation.send_message("again")
            conversation.run()
            first, last = server.requests[1].json, server.requests[2].json
            assert last["messages"][: len(first["messages"])] == first["messages"]
            assert replay(conversation.get_history()).hashed == 3
            assert replay(conversation.get_history()).same


# --- pictures by URL or id ---


def test_pictures_by_url_or_id_are_hidden_from_a_model_without_vision() -> None:
    content = (
        FileContent(url="https://example.com/a.png"),
        FileContent(file_id="f-1", mime_type="image/webp", name="b.webp"),
        FileContent(b"GIF89a\x02\x00\x03\x00", "image/gif", name="c.gif"),
        FileContent(url="https://example.com/a.pdf"),
    )
    blocks = hide_pictures(Message(content)).content
    assert [one.text for one in blocks if isinstance(one, TextContent)] == [
        "[picture: image/png, https://example.com/a.png]",
        "[picture: image/webp, b.webp]",
        "[picture: image/gif, 2 x 3, 10 bytes]",
    ]
    assert blocks[3] is content[3]


def test_a_scripted_model_without_vision_gets_a_text_for_a_picture_by_url() -> None:
    llm = ScriptedLLM(["ok"], images=False)
    llm.completion([Message(FileContent(url="https://example.com/a.png"))])
    assert "[picture: image/png" in json.dumps(llm.requests[0].messages)


# --- other formats ---


def test_mcp_clients_get_files_as_blocks_of_mcp() -> None:
    from mcp_types import CallToolResult

    from holdfast.serve.shapes import result

    content = (
        FileContent(b"%PDF", "application/pdf", name="a b.pdf"),
        FileContent(b"png", "image/png"),
        FileContent(b"wav", "audio/wav"),
        FileContent(url="https://example.com/d/a.pdf?x=1"),
        own("anthropic"),
    )
    blocks = result(ToolResult(content), None, True)["content"]
    CallToolResult.model_validate({"content": blocks, "isError": False})
    assert [block["type"] for block in blocks] == [
        "resource",
        "image",
        "audio",
        "resource_link",
        "text",
    ]
    assert blocks[0]["resource"]["uri"] == "file:///a%20b.pdf"
    assert (blocks[3]["uri"], blocks[3]["name"]) == ("https://example.com/d/a.pdf?x=1", "a.pdf")
    assert "f-1" not in blocks[4]["text"]
    assert "a.pdf: a file of anthropic" in blocks[4]["text"]


def test_openhands_gets_pictures_and_notes() -> None:
    from holdfast.openhands.shims import block_fields

    url = "https://example.com/a.png"
    assert block_fields(FileContent(url=url)) == {"type": "image", "image_urls": [url]}
    assert block_fields(FileContent(b"x", "image/png"))["image_urls"] == [
        "data:image/png;base64,eA=="
    ]
    assert block_fields(PDF)["text"] == "[application/pdf report.pdf, 12 KB: not exported]"


def test_a_terminal_names_files() -> None:
    from holdfast.cli.render import _block_lines
    from holdfast.cli.tools import _block_text

    assert _block_lines("", [own("x")]) == ["(file, application/pdf, a.pdf)"]
    assert _block_text(own("x")) == "[application/pdf a.pdf]"
    assert _block_text(PDF).startswith("[application/pdf report.pdf, ")


# --- any content, on every wire ---

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
MIME_TYPES = st.sampled_from(
    [
        "image/png",
        "image/svg+xml",
        "audio/wav",
        "audio/mpeg",
        "video/mp4",
        "application/pdf",
        "text/csv",
        "application/json",
        "application/zip",
        "IMAGE/JPG; q=1",
        "x",
    ]
)
BYTES = st.binary(min_size=1, max_size=30)
FILES = st.one_of(
    st.builds(FileContent, data=BYTES, mime_type=MIME_TYPES, name=TEXTS, provider=TEXTS),
    st.builds(FileContent, url=TEXTS.map("https://{}".format), mime_type=MIME_TYPES | st.just("")),
    st.builds(FileContent, file_id=TEXTS.filter(bool), mime_type=MIME_TYPES, provider=TEXTS),
)
JSON = st.none() | st.integers() | TEXTS
RESOURCES = st.builds(
    EmbeddedResource,
    st.fixed_dictionaries(
        {}, optional={"uri": TEXTS, "mimeType": MIME_TYPES | JSON, "text": JSON, "blob": JSON}
    ),
)
CONTENT = st.lists(
    st.one_of(
        st.builds(TextContent, TEXTS),
        st.builds(ImageContent, st.binary(max_size=30), MIME_TYPES),
        st.builds(AudioContent, st.binary(max_size=30), MIME_TYPES),
        FILES,
        RESOURCES,
        st.builds(ResourceLink, TEXTS, TEXTS),
    ),
    max_size=4,
)


@pytest.mark.parametrize("text_calls", ["", "+text"])
@pytest.mark.parametrize("name", WIRES)
@given(content=CONTENT, returned=CONTENT, error=st.booleans(), sees=st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_content_is_sent_as_json_and_replays_to_the_same_bytes(
    name: str,
    text_calls: str,
    content: list[Content],
    returned: list[Content],
    error: bool,
    sees: bool,
) -> None:
    call = ToolCall("2.0", "t", {}, "c1")
    result = ToolResult(tuple(returned), is_error=error)

    def bodies(message: Message, answer: ToolResult) -> list[bytes]:
        request_bodies: list[bytes] = []
        used = wire(name + text_calls)
        to = Recipient(used, "m", "", sees)
        transcript = Transcript([message])
        for item in (Completion(calls=(call,)), (call, answer), Message("go on")):
            fragments, _ = transcript.encode(to, {}, True)
            head = used.head("m", "", (), {"wire": name, "host": ""}, {})
            request_bodies.append(used.body(head, fragments, False))
            transcript.notes(to)
            transcript.append(item)
        return request_bodies

    first = bodies(Message(tuple(content)), result)
    for body in first:
        json.loads(body)
    stored = Message.from_json(Message(tuple(content)).to_json())
    assert bodies(stored, ToolResult.from_json(result.to_json())) == first


@pytest.mark.parametrize("wire_name", ["openai_chat", "openai_responses"])
def test_a_picture_keeps_the_type_that_was_written(wire_name: str) -> None:
    """Requests of stored conversations contain it."""
    blob = {"uri": "a", "mimeType": "image/jpg", "blob": "UE5H"}
    for block in (ImageContent(b"PNG", "image/jpg"), EmbeddedResource(blob)):
        assert b'"data:image/jpg;base64,UE5H"' in wire(wire_name).user([block])
