"""Tests of content: blocks, messages, results, and their JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    ErrorInfo,
    FileContent,
    ImageContent,
    Message,
    ResourceLink,
    TextContent,
    ToolCall,
    ToolResult,
    Usage,
    blocks,
    content_at,
    text_of,
)
from holdfast.errors import ConfigurationError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
BLOCKS = st.one_of(
    st.builds(TextContent, TEXT),
    st.builds(ImageContent, st.binary(), TEXT),
    st.builds(AudioContent, st.binary(), TEXT),
    st.builds(ResourceLink, TEXT, TEXT, st.none() | TEXT),
    st.builds(EmbeddedResource, st.dictionaries(TEXT, JSON, max_size=3)),
)
OFFICE = "application/vnd.openxmlformats-officedocument."
OBJECTS = st.dictionaries(TEXT, JSON, max_size=4)
CALLS = st.builds(ToolCall, TEXT, TEXT, OBJECTS, TEXT, TEXT, TEXT)


# --- tool results ---


def test_a_tool_result_is_the_mcp_output_format_to_the_byte() -> None:
    result = ToolResult(content=[TextContent("Hello world")], meta={"exitCode": 0}, is_error=False)
    assert (
        result.to_json() == b'{"content":[{"type":"text","text":"Hello'
        b' world"}],"meta":{"exitCode":0},"isError":false}'
    )


def test_content_and_is_error_are_always_in_the_json() -> None:
    assert ToolResult().to_json() == b'{"content":[],"isError":false}'
    assert ToolResult(is_error=True).to_json() == b'{"content":[],"isError":true}'


def test_every_kind_of_block_is_written_as_mcp_writes_it() -> None:
    result = ToolResult(
        [
            ImageContent(b"\x00\xff", "image/png"),
            AudioContent(b"ab"),
            ResourceLink("file:///a", "a", "text/plain"),
            EmbeddedResource({"uri": "file:///b", "text": "b"}),
        ]
    )
    assert msgspec.json.decode(result.to_json())["content"] == [
        {"type": "image", "data": "AP8=", "mimeType": "image/png"},
        {"type": "audio", "data": "YWI=", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///a", "name": "a", "mimeType": "text/plain"},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "b"}},
    ]


def test_an_empty_result_is_a_success_that_says_nothing() -> None:
    result = ToolResult()
    assert (
        result.content,
        result.success,
        result.is_error,
        result.data,
        result.text,
        result.error,
    ) == ((), True, False, "", "", None)


@pytest.mark.parametrize(
    "content",
    [
        "hi",
        TextContent("hi"),
        [TextContent("hi")],
        (TextContent("hi"),),
        iter([TextContent("hi")]),
        ["hi"],
        ({"type": "text", "text": "hi"},),
        ("hi",),
        [{"type": "text", "text": "hi"}],
    ],
)
def test_content_may_be_text_a_block_or_any_list_of_blocks(content: Any) -> None:
    assert ToolResult(content).content == (TextContent("hi"),)


def test_a_str_among_blocks_is_text() -> None:
    picture = ImageContent(b"png")
    assert blocks(["Look:", picture, "Thanks."]) == (
        TextContent("Look:"),
        picture,
        TextContent("Thanks."),
    )


@pytest.mark.parametrize("kind", [ToolResult, Message])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (5, "5"),
        ([5], "5"),
        ((TextContent("hi"), b"hi"), "b'hi'"),
        ([b"plain"], "b'plain'"),
        (("plain", 5), "5"),
        ([{"type": "text"}], "{'type': 'text'}"),
        (None, "None"),
        (b"hi", "104"),
    ],
)
def test_wrong_content_is_refused_and_named(kind: Any, content: Any, expected: str) -> None:
    with pytest.raises(
        ConfigurationError, match="content takes a str, a content block or a list of blocks"
    ) as caught:
        kind(content)
    assert expected in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_data_is_the_structured_content_or_else_the_text() -> None:
    assert ToolResult("text").data == "text"
    assert ToolResult("text", structured_content={"a": 1}).data == {"a": 1}
    assert ToolResult("text", structured_content=0).data == 0
    assert ToolResult("text", structured_content=False).data is False


def test_a_failure_says_why_to_models_and_to_programs() -> None:
    result = ToolResult.failure("it broke", "network")
    assert (result.success, result.text) == (False, "it broke")
    assert result.error == ErrorInfo("network", "it broke")


def test_the_text_of_blocks_is_joined_and_leaves_the_others_out() -> None:
    assert text_of([TextContent("a"), ImageContent(b""), TextContent("b")]) == "a\nb"


@pytest.mark.parametrize(
    "thing", [ToolResult(), TextContent("a"), Message("a"), ToolCall("1.0", "t"), Usage()]
)
def test_data_is_frozen(thing: Any) -> None:
    field = msgspec.structs.fields(thing)[0].name
    with pytest.raises(AttributeError):
        setattr(thing, field, "other")


def test_two_results_share_no_default() -> None:
    one = ToolResult()
    one.meta["mine"] = 1
    assert ToolResult().meta == {}


@pytest.mark.slow
@given(
    st.lists(BLOCKS, max_size=4),
    JSON,
    OBJECTS,
    st.booleans(),
    st.none() | st.builds(ErrorInfo, TEXT, TEXT, st.booleans()),
)
def test_any_tool_result_survives_json(
    content: Any, structured: Any, meta: Any, is_error: bool, error: Any
) -> None:
    result = ToolResult(content, structured, meta, is_error, error)
    data = result.to_json()
    assert ToolResult.from_json(data) == result
    assert ToolResult.from_json(data).to_json() == data


# --- messages and calls ---


def test_a_bare_message_is_the_users() -> None:
    message = Message("hi")
    assert (message.role, message.content, message.text) == ("user", (TextContent("hi"),), "hi")
    assert Message("").content == ()


def test_lists_given_to_a_message_become_tuples() -> None:
    call = ToolCall("1.0", "look")
    message = Message([TextContent("a")], "assistant", [call])  # pyright: ignore[reportArgumentType]
    assert (message.content, message.tool_calls) == ((TextContent("a"),), (call,))


@pytest.mark.slow
@given(
    st.lists(BLOCKS, max_size=3),
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.lists(CALLS, max_size=3),
    TEXT,
)
def test_any_message_survives_json(content: Any, role: Any, calls: Any, call_id: str) -> None:
    message = Message(content, role, calls, call_id)
    assert Message.from_json(message.to_json()) == message


def test_a_calls_raw_arguments_are_the_providers_own_text() -> None:
    assert ToolCall("1.0", "t", {"a": 1}, raw='{"a": 1 }').raw_arguments == '{"a": 1 }'
    assert ToolCall("1.0", "t", {"a": 1}).raw_arguments == '{"a":1}'


def test_integers_of_any_size_survive() -> None:
    call = ToolCall("1.0", "t", {"n": 10**30})
    assert ToolCall.from_json(call.to_json()) == call


def test_usage_adds_up_field_by_field() -> None:
    assert Usage(1, 2, 3, 4, 5) + Usage(10, 20, 30, 40, 50) == Usage(11, 22, 33, 44, 55)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"content":"hi"}', b'{"content":[{"type":"new"}]}', b"\xff"]
)
def test_what_is_no_result_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        ToolResult.from_json(data)


def test_blocks_keeps_a_tuple_as_it_is() -> None:
    given_blocks = (TextContent("a"),)
    assert blocks(given_blocks) is given_blocks


# --- MCP's spelling ---


def test_a_result_is_made_and_read_by_mcps_own_names() -> None:
    result_class: Any = ToolResult
    result = result_class(
        [{"type": "text", "text": "no"}, {"type": "image", "data": "aGk="}],
        isError=True,
        structuredContent={"a": 1},
    )
    assert result == ToolResult((TextContent("no"), ImageContent(b"hi")), {"a": 1}, is_error=True)
    assert (result.isError, result.structuredContent) == (True, {"a": 1})
    assert result_class({"type": "text", "text": "one"}).text == "one"
    with pytest.raises(TypeError, match="give is_error or isError, not both"):
        result_class("no", isError=True, is_error=False)
    with pytest.raises(ConfigurationError, match=r"not a list with \{'type': 'image_url'\}"):
        result_class([{"type": "image_url"}])


def test_a_result_of_mcp_keeps_its_meta() -> None:
    result = ToolResult.from_json(
        '{"content":[],"isError":true,"_meta":{"a":1,"b":1},"meta":{"b":2}}'
    )
    assert (result.meta, result.is_error) == ({"a": 1, "b": 2}, True)
    assert ToolResult.from_json(result.to_json()) == result


# --- files ---


@pytest.mark.parametrize(
    "url",
    ["example.org/a.pdf", "/home/me/a.pdf", "file:///home/me/a.pdf", "data:text/plain,hi", "a.pdf"],
)
def test_an_address_that_no_provider_can_fetch_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FileContent(url=url)
    assert str(caught.value) == (
        "FileContent: url takes an address that the provider can fetch, such as"
        f" 'https://example.org/a.pdf', not {url!r}. For a file use FileContent.from_path(path),"
        " for its bytes data=..."
    )


def test_an_address_has_the_type_of_its_suffix() -> None:
    types = [FileContent(url=f"https://example.org/{end}").mime_type for end in ("a.pdf?v=1", "a")]
    assert types == ["application/pdf", ""]
    assert FileContent(url="gs://bucket/a", mime_type="video/mp4").kind == "video"


def test_a_path_gives_the_bytes_the_name_and_the_type(tmp_path: Path) -> None:
    for name, data, kind in (
        ("a.PDF", b"%PDF", "application/pdf"),
        ("a.wav", b"RIFF", "audio/wav"),
        ("a.docx", b"PK", f"{OFFICE}wordprocessingml.document"),
        ("a.flac", b"fLaC", "audio/flac"),
        ("a.md", b"# Hi", "text/markdown"),
        ("Makefile", "é".encode(), "text/plain"),
        ("blob", b"\xff", "application/octet-stream"),
    ):
        (tmp_path / name).write_bytes(data)
        assert FileContent.from_path(tmp_path / name) == FileContent(data, kind, name=name)
    assert FileContent.from_path(tmp_path / "blob", "image/png").mime_type == "image/png"


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").touch()
    with pytest.raises(ConfigurationError) as caught:
        FileContent.from_path(tmp_path / "a.pdf")
    assert str(caught.value) == f"FileContent: the file '{tmp_path}/a.pdf' is empty."


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "takes exactly one of data"),
        ({"data": b"a", "mime_type": "text/plain", "url": "https://a/b"}, "takes exactly one of"),
        ({"data": b"a"}, "data needs a mime_type such as 'application/pdf'"),
        ({"data": "a.pdf"}, "data takes bytes, not str. For a file use FileContent.from_path"),
        ({"url": b"https://a/b"}, "url takes str, not bytes"),
    ],
)
def test_a_file_without_a_place_or_a_type_is_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FileContent(**given)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("url", "mime_type"),
    [
        ("https://e.org/a/report.pdf?x=.png#.gif", "application/pdf"),
        ("https://e.com", ""),
        ("https://e.com/", ""),
        ("https://[", ""),
        ("https://[x/a.png", "image/png"),
        ("https://e.org/a:b.md", "text/markdown"),
        ("gs://bucket/film.mp4", "video/mp4"),
    ],
)
def test_the_type_of_a_url_is_that_of_its_last_name(url: str, mime_type: str) -> None:
    assert FileContent(url=url).mime_type == mime_type


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://e.org/a.png", FileContent(b"", "image/gif", "https://e.org/a.png")),
        ("/files/a.png", ResourceLink("/files/a.png", mime_type="image/gif")),
        ("file:///a.png", ResourceLink("file:///a.png", mime_type="image/gif")),
        ("data:,a%20b", ImageContent(b"a b", "image/gif")),
        ("DATA:audio/wav;base64,aGk=", AudioContent(b"hi", "audio/wav")),
        ("data:text/csv;charset=utf-8,a", FileContent(b"a", "text/csv")),
        ("data:image/png;base64,a", None),
        ("data:image/png;base64,", None),
        ("data:image/png,\ud800", None),
        ("data:", None),
    ],
)
def test_any_address_in_a_foreign_answer_is_content(address: str, expected: Content | None) -> None:
    assert content_at(address, "image/gif") == expected
