"""Tests of the lines that show citations, provider tool calls, files and refusals of an answer."""

from __future__ import annotations

from holdfast.answer import AnswerDetails, Citation, ServerToolCall
from holdfast.cli.render import Renderer
from holdfast.content import FileContent, ResourceLink
from holdfast.events import AssistantReplied
from tests.cli.test_render import event as stamped


def test_sources_calls_files_and_a_refusal_have_lines() -> None:
    details = AnswerDetails(
        citations=(
            Citation("https://example.com/a", "Weather\x1b[2J\nin Kiel"),
            Citation("javascript:alert(1)", "Bad"),
            Citation("https://example.com/a", "Weather\x1b[2J\nin Kiel"),
        ),
        server_calls=(ServerToolCall("web_search", arguments={"query": "Kiel"}),),
        media=(
            FileContent(b"abc", "application/pdf", name="a.pdf"),
            ResourceLink("/v1/files/pic.png", mime_type="image/png"),
        ),
        refusal="I will not.",
    )
    event = stamped(AssistantReplied, text="It rains.", details=details)
    lines = [line.text for line in Renderer(None).lines(event)]
    output = "\n".join(lines)
    assert "(refused: I will not.)" in lines
    assert "(the provider ran web_search {'query': 'Kiel'})" in lines
    assert "(generated document, application/pdf, 3 B, a.pdf)" in output.replace("bytes", "B")
    assert "(generated file, image/png, /v1/files/pic.png)" in lines
    assert "[2] Bad" in lines
    assert "[1] Weather" in output
    assert "https://example.com/a" in output
    assert "[3]" not in output
    assert "javascript" not in output
    assert "\x1b" not in output
