"""The number of tokens of a request: estimated once for each fragment, and corrected by the
provider's count."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from holdfast import Agent, Conversation, Limits, ScriptedLLM, ToolResult
from holdfast import events as ev
from holdfast.agent import tokens
from holdfast.agent.tokens import Sizes
from holdfast.content import EmbeddedResource, FileContent, ImageContent, TextContent, Usage
from holdfast.llm.wires import anthropic_messages, openai_responses
from holdfast.llm.wires.protocol import Wire
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
    ("data", "expected"),
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
def test_a_picture_counts_by_its_size_not_by_its_bytes(data: bytes, expected: int) -> None:
    assert tokens.picture(data) == expected


def test_letters_beyond_ascii_are_about_a_token_each() -> None:
    assert tokens.text("word " * 100) == 126
    assert 90 <= tokens.text("字" * 100) <= 130
    assert 60 <= tokens.text("ж" * 100) <= 90
    assert tokens.text("\ud800") > 0


def sizes_of(script: Script) -> Sizes:
    return Sizes.of(script.events)


def append_answer(script: Script, text: str, counted: int, based_on: int | None = None) -> None:
    answer = script.answer(text, 1, based_on)
    script.events[-1] = ev.AssistantReplied(
        **{**{n: getattr(answer, n) for n in answer.__struct_fields__}, "usage": Usage(counted, 5)}
    )


def test_what_the_provider_counted_is_known_and_only_what_came_since_is_estimated() -> None:
    script = Script()
    script.say("x" * 4000)
    before = sizes_of(script).tokens
    assert before == pytest.approx(1000 * tokens.UNCOUNTED, rel=0.02)
    append_answer(script, "", 2000)
    base = sizes_of(script).tokens
    assert 2000 <= base < 2030
    script.result(script.events[-1].calls[0], "y" * 4000)
    assert sizes_of(script).tokens == pytest.approx(base + 2000, rel=0.02), (
        "a byte is worth what it was in the known part"
    )
    append_answer(script, "", 3000)
    assert 3000 <= sizes_of(script).tokens < 3030


def test_a_message_that_the_request_did_not_contain_is_no_part_of_what_was_counted() -> None:
    script = Script()
    script.say("x" * 4000)
    script.say("y" * 40_000)
    append_answer(script, "", 1000, based_on=1)
    assert sizes_of(script).tokens == pytest.approx(11_000, rel=0.02)


def test_a_provider_that_counts_nothing_or_nonsense_is_not_believed() -> None:
    script = Script()
    script.say("x" * 40_000)
    for counted, at_least in ((0, 10_000), (1, 2_500), (10**9, 10_000)):
        append_answer(script, "", counted)
        assert at_least <= sizes_of(script).tokens <= 61_000
        script.events.pop()


# --- compactions by the provider ---


def agent_event(wire: str, model: str) -> ev.AgentConfigured:
    return ev.AgentConfigured(
        seq=1,
        id="a",
        timestamp=ev.EPOCH,
        system_prompt="",
        tools=(),
        model=model,
        parameters={"wire": wire, "host": ""} if wire else {"routes": {}},
    )


def append_reply(script: Script, wire: Wire, answer: dict[str, Any]) -> None:
    """Append an answer of a provider, as the wire parses it."""
    completion = wire.parse(json.dumps(answer).encode())
    same = ("text", "calls", "usage", "stop_reason", "model", "wire", "native", "details")
    fields = {name: getattr(completion, name) for name in same}
    script.add(ev.AssistantReplied, based_on=len(script.events), **fields)


def responses_answer(*output: Any, input_tokens: int = 0) -> dict[str, Any]:
    usage = {"input_tokens": input_tokens, "output_tokens": 5}
    return {"id": "r", "model": "gpt-5", "output": list(output), "usage": usage}


COMPACTION = {"type": "compaction", "id": "c", "encrypted_content": "e" * 400}


def words(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content}


def test_a_compaction_within_an_answer_counts_instead_of_the_history() -> None:
    script = Script()
    script.say("x" * 40_000)
    append_reply(script, openai_responses, responses_answer(words("a"), input_tokens=10_000))
    sizes = Sizes.of(script.events, agent_event("openai_responses", "gpt-5"))
    assert sizes.tokens == pytest.approx(10_000, rel=0.02)
    before = sizes.ratio
    append_reply(
        script, openai_responses, responses_answer(COMPACTION, words("b"), input_tokens=10_400)
    )
    sizes.feed(script.events[-1])
    assert 100 < sizes.tokens < 250
    assert sizes.ratio == before, "nobody knows which request was counted"
    script.say("y" * 4000)
    sizes.feed(script.events[-1])
    assert sizes.tokens == pytest.approx(1150, abs=100)
    append_reply(script, openai_responses, responses_answer(words("c"), input_tokens=2300))
    sizes.feed(script.events[-1])
    assert sizes.tokens == pytest.approx(2300, rel=0.02)
    sizes.feed(agent_event("openai_chat", "other"))
    assert sizes.tokens > 20_000, "another model is sent the whole history"
    sizes.feed(agent_event("openai_responses", "gpt-5"))
    assert sizes.tokens == pytest.approx(2300, rel=0.02)
    sizes.feed(agent_event("", "fallback(gpt-5)"))
    assert sizes.tokens == pytest.approx(2300, rel=0.02), "the last one may answer again"


def claude_answer(*blocks: Any, **usage: Any) -> dict[str, Any]:
    return {"id": "m", "model": "claude-opus-5", "content": list(blocks), "usage": usage}


def test_a_compaction_of_anthropic_counts_with_the_run_that_followed_it() -> None:
    script = Script()
    script.say("x" * 40_000)
    first = claude_answer({"type": "text", "text": "a"}, input_tokens=10_000, output_tokens=5)
    append_reply(script, anthropic_messages, first)
    runs = [
        {"type": "compaction", "input_tokens": 10_100, "output_tokens": 100},
        {"type": "message", "input_tokens": 20, "cache_read_input_tokens": 100},
    ]
    compacted = {"type": "compaction", "content": "s" * 400}
    blocks = (compacted, {"type": "text", "text": "b"})
    append_reply(
        script, anthropic_messages, claude_answer(*blocks, input_tokens=20, iterations=runs)
    )
    event = script.events[-1]
    assert isinstance(event, ev.AssistantReplied)
    assert (event.usage.input_tokens, event.context_tokens) == (10_220, 120)
    sizes = Sizes.of(script.events, agent_event("anthropic_messages", "claude-opus-5"))
    assert 100 < sizes.tokens < 150
    failed = {"type": "compaction", "content": None}
    append_reply(script, anthropic_messages, claude_answer(failed, input_tokens=120))
    sizes = Sizes.of(script.events, agent_event("anthropic_messages", "claude-opus-5"))
    assert 100 < sizes.tokens < 200, "one that failed replaces nothing"


def test_results_that_anthropic_clears_do_not_count() -> None:
    script = Script()
    script.say("x" * 4000)
    answer = script.answer("a", calls=1)
    script.result(answer.calls[0], "r" * 40_000)
    edits = [{"type": "clear_tool_uses_20250919", "cleared_input_tokens": 10_000}]
    cleared = claude_answer({"type": "text", "text": "b"}, input_tokens=1100, output_tokens=5)
    cleared["context_management"] = {"applied_edits": edits}
    append_reply(script, anthropic_messages, cleared)
    sizes = sizes_of(script)
    assert sizes.tokens == pytest.approx(1100, rel=0.03)
    script.say("y" * 4000)
    sizes.feed(script.events[-1])
    assert sizes.tokens == pytest.approx(2100, rel=0.05), "a byte is worth what it was before"
    script.add(ev.HistoryCondensed, hidden=(answer.seq,))
    sizes.feed(script.events[-1])
    assert sizes.tokens == pytest.approx(2000, rel=0.1)


def test_a_condensation_takes_off_what_it_hides_and_trims_and_adds_its_summary() -> None:
    script = Script()
    script.say("x" * 4000)
    answer = script.answer("a", calls=2)
    for call in answer.calls:
        script.result(call, "r" * 8000)
    again = script.answer("b", calls=1)
    script.result(again.calls[0], "r" * 8000)
    whole = sizes_of(script).total
    script.add(ev.HistoryCondensed, hidden=(), trimmed={again.calls[0].id: 400})
    trimmed = sizes_of(script).total
    assert whole - trimmed == pytest.approx(1900, abs=60)
    script.add(ev.HistoryCondensed, hidden=(answer.seq,), summary="s" * 400)
    hidden = sizes_of(script).total
    assert trimmed - hidden == pytest.approx(3900, abs=60)
    script.add(ev.HistoryCondensed, hidden=(answer.seq, again.seq), summary="s" * 800)
    assert hidden - sizes_of(script).total == pytest.approx(0, abs=80)
    assert sizes_of(script).results == {}


def test_it_is_what_a_real_request_has() -> None:
    """The scripted model counts a token for four bytes of the whole body, including the prompt,
    the tools and the JSON."""
    sizes: list[tuple[int, int]] = []

    def look(n: int) -> ToolResult:
        """Looks."""
        return ToolResult(
            [TextContent(f'line {n} "quoted"\n' * (50 + 40 * (n % 5))), ImageContent(png(10, 10))][
                : 1 + (n % 7 == 0)
            ]
        )

    def answer(request: Any) -> Any:
        assert conversation.hosting.journal.fold.sizes is not None
        sizes.append((conversation.hosting.journal.fold.sizes.tokens, len(request.body) // 4))
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
    assert len(sizes) == 61
    for guessed, counted in sizes[1:]:
        assert abs(guessed - counted) <= 0.02 * counted + 60


@pytest.mark.parametrize(
    ("block", "expected"),
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
def test_a_file_counts_by_its_kind(block: Any, expected: int) -> None:
    assert tokens.blocks([block]) == expected
