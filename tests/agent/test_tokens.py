"""How many tokens a request has: estimated once for each fragment, corrected by what the provider
counted."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from holdfast import Agent, Conversation, Limits, ScriptedLLM, ToolResult
from holdfast import events as ev
from holdfast.agent import tokens
from holdfast.agent.tokens import Sizes
from holdfast.content import EmbeddedResource, FileContent, ImageContent, TextContent, Usage
from tests.agent.test_view import Script


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\0" * 50


def jpeg(width: int, height: int) -> bytes:
    return (
        b"\xff\xd8\xff\xe0\x00\x10"
        + b"\0" * 14
        + b"\xff\xc0\x00\x11\x08"
        + struct.pack(">HH", height, width)
        + b"\0" * 20
    )


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (png(750, 750), 750),
        (jpeg(750, 375), 375),
        (b"GIF89a" + struct.pack("<HH", 300, 300) + b"\0" * 10, 120),
        (png(10, 10), 85),
        (png(9000, 9000), 1600),
        (b"RIFF....WEBP", 1600),
        (b"", 1600),
        (b"\xff\xd8\xff", 1600),
    ],
)
def test_a_picture_counts_by_its_size_not_by_its_bytes(data: bytes, found: int) -> None:
    assert tokens.picture(data) == found


def test_letters_beyond_ascii_are_about_a_token_each() -> None:
    assert tokens.text("word " * 100) == 126
    assert 90 <= tokens.text("字" * 100) <= 130
    assert 60 <= tokens.text("ж" * 100) <= 90
    assert tokens.text("\ud800") > 0


def sized(script: Script) -> Sizes:
    return Sizes.of(script.events)


def answered(script: Script, text: str, counted: int, based_on: int | None = None) -> None:
    answer = script.answer(text, 1, based_on)
    script.events[-1] = ev.AssistantReplied(
        **{**{n: getattr(answer, n) for n in answer.__struct_fields__}, "usage": Usage(counted, 5)}
    )


def test_what_the_provider_counted_is_known_and_only_what_came_since_is_estimated() -> None:
    script = Script()
    script.say("x" * 4000)
    before = sized(script).tokens
    assert before == pytest.approx(1000 * tokens.UNCOUNTED, rel=0.02)
    answered(script, "", 2000)
    known = sized(script).tokens
    assert 2000 <= known < 2030
    script.result(script.events[-1].calls[0], "y" * 4000)
    assert sized(script).tokens == pytest.approx(known + 2000, rel=0.02), (
        "a byte is worth what it was in the known part"
    )
    answered(script, "", 3000)
    assert 3000 <= sized(script).tokens < 3030


def test_a_message_that_the_request_did_not_contain_is_no_part_of_what_was_counted() -> None:
    script = Script()
    script.say("x" * 4000)
    script.say("y" * 40_000)
    answered(script, "", 1000, based_on=1)
    assert sized(script).tokens == pytest.approx(11_000, rel=0.02)


def test_a_provider_that_counts_nothing_or_nonsense_is_not_believed() -> None:
    script = Script()
    script.say("x" * 40_000)
    for counted, at_least in ((0, 10_000), (1, 2_500), (10**9, 10_000)):
        answered(script, "", counted)
        assert at_least <= sized(script).tokens <= 61_000
        script.events.pop()


def test_a_condensation_takes_off_what_it_hides_and_trims_and_adds_its_summary() -> None:
    script = Script()
    script.say("x" * 4000)
    answer = script.answer("a", calls=2)
    for call in answer.calls:
        script.result(call, "r" * 8000)
    again = script.answer("b", calls=1)
    script.result(again.calls[0], "r" * 8000)
    whole = sized(script).total
    script.add(ev.HistoryCondensed, hidden=(), trimmed={again.calls[0].id: 400})
    trimmed = sized(script).total
    assert whole - trimmed == pytest.approx(1900, abs=60)
    script.add(ev.HistoryCondensed, hidden=(answer.seq,), summary="s" * 400)
    hidden = sized(script).total
    assert trimmed - hidden == pytest.approx(3900, abs=60)
    script.add(ev.HistoryCondensed, hidden=(answer.seq, again.seq), summary="s" * 800)
    assert hidden - sized(script).total == pytest.approx(0, abs=80)
    assert sized(script).results == {}


def test_it_is_what_a_real_request_has() -> None:
    """The scripted model counts a token for four bytes of the whole body, prompt, tools and JSON
    included."""
    seen: list[tuple[int, int]] = []

    def look(n: int) -> ToolResult:
        """Looks."""
        return ToolResult(
            [TextContent(f'line {n} "quoted"\n' * (50 + 40 * (n % 5))), ImageContent(png(10, 10))][
                : 1 + (n % 7 == 0)
            ]
        )

    def answer(request: Any) -> Any:
        assert conversation.hosting.journal.fold.sizes is not None
        seen.append((conversation.hosting.journal.fold.sizes.tokens, len(request.body) // 4))
        return ("look", {"n": request.number}) if request.number < 60 else "Done."

    class Never:
        at = 10**9

        def condense(self, *_: Any) -> None:
            raise AssertionError

    with Conversation(
        Agent(ScriptedLLM(answer), [look], condenser=Never(), limits=Limits(steps=None))
    ) as conversation:
        conversation.send_message("go")
        conversation.run()
    assert len(seen) == 61
    for guessed, counted in seen[1:]:
        assert abs(guessed - counted) <= 0.02 * counted + 60


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (FileContent(png(750, 750), "image/png"), 750),
        (FileContent(url="https://example.com/a.png"), 1600),
        (FileContent(b"/Type /Page " * 3 + b"/Type /Pages", "application/pdf"), 6000),
        (FileContent(b"x" * 500_000, "application/pdf"), 20_000),
        (FileContent(url="https://example.com/a.pdf"), 20_000),
        (FileContent(b"a,b\n" * 1000, "text/csv"), 1001),
        (FileContent(b"PK" * 5_000_000, "application/zip"), 20_000),
        (FileContent(b"s" * 50_000, "audio/mpeg"), 101),
        (FileContent(file_id="f", mime_type="audio/mpeg"), 1920),
        (FileContent(b"s" * 50_000, "video/mp4"), 51),
        (EmbeddedResource({"uri": "x:y", "mimeType": "text/csv", "blob": "YSxiCg==" * 1}), 6),
        (EmbeddedResource({"uri": "x:y", "mimeType": "application/zip", "blob": "abcde"}), 45),
    ],
)
def test_a_file_counts_by_its_kind(block: Any, found: int) -> None:
    assert tokens.blocks([block]) == found
