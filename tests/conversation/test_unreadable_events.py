"""Accepted events can be read back. A store with unreadable events opens and reports them."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    ConversationStatus,
    Limits,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    tool,
)
from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.agent.additions import Addition, Remark
from holdfast.agent.condenser import Condensed
from holdfast.agent.hooks import Hook
from holdfast.agent.view import View
from holdfast.content import (
    AudioContent,
    EmbeddedResource,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResult,
    Usage,
)
from holdfast.conversation.state import fold
from holdfast.errors import ConfigurationError, HookDenied, UnreadableEvent
from holdfast.llm.completion import Completion
from holdfast.store import Batch, Store, Summary
from holdfast.store.check import check
from holdfast.store.salvage import salvage
from holdfast.store.transfer import export_conversation, import_conversations
from holdfast.tools import ToolAnnotations
from tests import forks
from tests.samples import examples

S = ConversationStatus
NOW = datetime(2026, 11, 2, 9, 30, tzinfo=UTC)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with (
        MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db", "process")
    ) as backend:
        yield backend


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


class Text(str):
    """A subclass of str, which JSON encoders do not know."""


class Number(int):
    """A subclass of int, which JSON encoders do not know."""


HOSTILE: dict[str, Any] = {
    "nan": math.nan,
    "infinity": [1.0, -math.inf],
    "surrogate": "a\ud800",
    "surrogate key": {"\udcff": 1},
    "number key": {1: 2},
    "tuple": (1, 2),
    "set": {1},
    "bytes": b"x",
    "datetime": datetime(2026, 1, 1),
    "object": object(),
    "text subclass": Text("a"),
    "int subclass": Number(5),
    "201 levels": deep(201),
    "1,000 levels": deep(1000),
    "raw": msgspec.Raw(b'{"a":1}'),
    "broken raw": msgspec.Raw(b'{"a":'),
    "5,000 digits": 10**4999,
    "struct": TextContent("a"),
}
FINE: dict[str, Any] = {
    "big": 2**70,
    "negative": -(2**64),
    "controls": "\x00\x1b[31m\x9b\x7f",
    "90 levels": deep(90),
    "zero": -0.0,
    "smallest": 5e-324,
    "emoji": "👩‍👩‍👧",
    "nothing": None,
    "separators": "\u2028\u2029",
    "empty key": {"": {}},
}
ANY = {**HOSTILE, **FINE}


def reopen(store: Store, id: str = "c") -> Conversation:
    return Conversation(Agent(ScriptedLLM(["again"])), store, id)


def build_unchecked(kind: type[Any], **fields: Any) -> Any:
    """Return a block that its class would refuse, as an older version with fewer checks could
    have made it."""
    block = kind(
        **{
            name: {"data": b"", "mime_type": "a/b", "resource": {}, "text": ""}[name]
            for name in fields
        }
    )
    for name, value in fields.items():
        msgspec.structs.force_setattr(block, name, value)
    return block


BLOCKS: dict[str, Callable[[], Any]] = {
    "a url": lambda: build_unchecked(
        ImageContent, data="https://e.org/x.png", mime_type="image/png"
    ),
    "no type": lambda: build_unchecked(ImageContent, data=b"x", mime_type=None),
    "sound": lambda: build_unchecked(AudioContent, data="no base64!", mime_type="audio/wav"),
    "a resource": lambda: build_unchecked(EmbeddedResource, resource="x"),
    "a resource of NaN": lambda: EmbeddedResource({"uri": "x", "n": math.nan}),
    "a number": lambda: build_unchecked(TextContent, text=5),
    "deep": lambda: EmbeddedResource({"uri": "x", "n": deep(300)}),
}


# --- the public API ---


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (
            lambda: ImageContent("https://e.org/x.png", "image/png"),
            "data takes bytes, not text.*FileContent\\.from_path",
        ),  # type: ignore[arg-type]
        (lambda: AudioContent(5), "AudioContent: data takes bytes, not int"),  # type: ignore[arg-type]
        (
            lambda: ImageContent(b"x", None),
            "mime_type takes a MIME type such as 'image/png', not None",
        ),  # type: ignore[arg-type]
        (lambda: EmbeddedResource("x"), "resource takes a dict such as .*, not 'x'"),  # type: ignore[arg-type]
    ],
)
def test_a_block_of_the_wrong_parts_is_refused_where_it_is_made(
    make: Callable[[], object], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        make()


@pytest.mark.parametrize("block", BLOCKS)
def test_a_message_that_could_not_be_read_back_is_refused_and_nothing_is_written(
    store: Store, block: str
) -> None:
    with Conversation(Agent(ScriptedLLM(["fine"])), store, "c") as conversation:
        with pytest.raises(ConfigurationError):
            conversation.send_message([TextContent("look"), BLOCKS[block]()])
        assert conversation.get_history() == []
        conversation.send_message("hello")
        assert conversation.run().status is S.FINISHED
        state = conversation.state
    with reopen(store) as again:
        assert again.state == state


def test_a_subclass_of_str_is_sent_as_its_text(store: Store) -> None:
    with Conversation(Agent(ScriptedLLM(["fine"])), store, "c") as conversation:
        event = conversation.send_message(Text("hello"))
    assert (type(event.content[0].text), event.text) == (str, "hello")  # pyright: ignore
    assert store.read("c") == [event]


def test_a_clock_without_a_time_zone_is_refused(store: Store) -> None:
    with (
        Conversation(
            Agent(ScriptedLLM([])), store, "c", clock=lambda: datetime(2026, 1, 1)
        ) as conversation,
        pytest.raises(UnreadableEvent, match="time zone"),
    ):
        conversation.send_message("hello")
    assert store.read("c") == []


# --- every writer, hostile content: accepted means readable ---


def outcomes(
    tmp_path: Path, agent: Callable[[Any], Agent], work: Callable[[Conversation, Any], object]
) -> Iterator[tuple[str, ConversationState]]:
    """Yield the name of each value and the state of a conversation that met it. A reopened
    conversation has the same state."""
    with SQLiteStore(tmp_path / "s.db", "process") as store:
        for name, value in ANY.items():
            with Conversation(agent(value), store, name) as conversation:
                work(conversation, value)
                assert conversation.failure is None, name
                state = conversation.state
            with reopen(store, name) as again:
                assert again.state == state, name
            assert ConversationState.from_json(state.to_json()) == state, name
            yield name, state


def send_and_run(conversation: Conversation, _: Any = None) -> None:
    conversation.send_message("go")
    conversation.run()


def results(state: ConversationState) -> list[ToolResult]:
    return [event.result for event in state.events if isinstance(event, ev.ToolCallFinished)]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["value", "structured", "meta", "block"])
def test_a_tool_may_return_anything(tmp_path: Path, part: str) -> None:
    def agent(value: Any) -> Agent:
        @tool
        def anything() -> object:
            """Returns it."""
            match part:
                case "value":
                    return value
                case "structured":
                    return ToolResult("text", structured_content=value)
                case "meta":
                    return ToolResult("text", meta={"a": value})
                case _:
                    return ToolResult([EmbeddedResource({"uri": "x", "a": value})])

        return Agent(ScriptedLLM([("anything", {}), "done"]), [anything])

    for name, state in outcomes(tmp_path, agent, send_and_run):
        assert (state.status, len(results(state))) == (S.FINISHED, 1), name
        if part != "value" and name in FINE:
            assert not results(state)[0].is_error, name


def test_what_a_hook_makes_of_a_result_is_that_calls_error(tmp_path: Path) -> None:
    @tool
    def fine() -> str:
        """Fine."""
        return "fine"

    def agent(value: Any) -> Agent:
        hook = Hook(
            after=lambda result, context: ToolResult("text", meta={"a": value}),
            on="tool",
            name="spoil",
        )
        return Agent(ScriptedLLM([("fine", {}), "done"]), [fine], hooks=[hook])

    for name, state in outcomes(tmp_path, agent, send_and_run):
        assert (state.status, len(results(state))) == (S.FINISHED, 1), name


@pytest.mark.parametrize("block", BLOCKS)
def test_a_message_hook_that_returns_what_cannot_be_read_back_fails(
    store: Store, block: str
) -> None:
    agent = Agent(
        ScriptedLLM(["fine"]),
        hooks=[Hook(lambda *_: [BLOCKS[block]()], on="message", name="spoil")],
    )
    with Conversation(agent, store, "c") as conversation:
        with pytest.raises(HookDenied) as denied:
            conversation.send_message("hello")
        assert denied.value.failed
        state = conversation.state
    assert [event.type for event in state.events] == ["note"]
    with reopen(store) as again:
        assert again.state == state


class Model(ScriptedLLM):
    """A model that returns a completion unchanged."""

    def __init__(self, answer: Completion) -> None:
        super().__init__([])
        self.answer = answer

    def completion(self, *args: Any, **options: Any) -> Completion:
        return self.answer


@pytest.mark.slow
@pytest.mark.parametrize("field", ["text", "arguments", "cost", "native", "notes", "usage"])
def test_a_model_may_answer_anything(tmp_path: Path, field: str) -> None:
    def agent(value: Any) -> Agent:
        match field:
            case "arguments":
                answer = Completion("", calls=(ToolCall("", "nothing", {"a": value}),))
            case "usage":
                answer = Completion("hi", usage=Usage(value))
            case "native":
                native = value if isinstance(value, msgspec.Raw) else msgspec.Raw(b'{"a":"\xff"}')
                answer = Completion("hi", native=native, wire="x")
            case "notes":
                answer = Completion("hi", notes=(value,))
            case _:
                answer = Completion(**{"text": "hi", field: value})
        return Agent(Model(answer), limits=Limits(steps=1))

    for name, state in outcomes(tmp_path, agent, send_and_run):
        assert state.status in (S.FINISHED, S.ERROR, S.STUCK), name
        if name in HOSTILE and state.steps == 0:
            assert state.error is not None, name
            assert state.error.error in (
                "BadResponse",
                "UnreadableEvent",
                "TypeError",
                "ValueError",
                "AttributeError",
            ), state.error


def test_a_contributor_may_add_anything(tmp_path: Path) -> None:
    def agent(value: Any) -> Agent:
        instance = Agent(ScriptedLLM(["fine"]))
        added = [
            Remark("hook:x", "text", {"a": value}),
            Addition("hook:y", (EmbeddedResource({"uri": "x", "a": value}),)),
        ]
        object.__setattr__(instance, "contributors", (lambda _: added,))
        return instance

    for name, state in outcomes(tmp_path, agent, send_and_run):
        assert state.status is (S.FINISHED if name in FINE else S.ERROR), name


def test_a_condenser_may_write_anything(tmp_path: Path) -> None:
    def agent(value: Any) -> Agent:
        class Condenser:
            def condense(self, journal: Any, reason: Any, cancelled: Any) -> Condensed:
                return Condensed(
                    (next(event.seq for event in journal if isinstance(event, ev.MessageAdded)),),
                    value,
                )

        return Agent(ScriptedLLM(["one", "two"]), condenser=Condenser())

    def work(conversation: Conversation, _: Any) -> None:
        send_and_run(conversation)
        conversation.condense()
        send_and_run(conversation)

    for name, state in outcomes(tmp_path, agent, work):
        assert (state.status, state.answer) == (S.FINISHED, "two"), name


def test_a_model_may_have_any_parameters(tmp_path: Path) -> None:
    class Odd(ScriptedLLM):
        def __init__(self, value: Any) -> None:
            super().__init__(["fine"])
            self.value = value

        def parameters(self) -> dict[str, Any]:
            return {"odd": self.value}

    for name, state in outcomes(tmp_path, lambda value: Agent(Odd(value)), send_and_run):
        assert state.status in (S.FINISHED, S.ERROR), name


def test_an_approval_may_bring_any_arguments(tmp_path: Path) -> None:
    @tool
    def take(a: Any = None) -> str:
        """Takes anything."""
        return "taken"

    def work(conversation: Conversation, value: Any) -> None:
        send_and_run(conversation)
        call = conversation.state.pending_confirmations[0].call.id
        try:
            conversation.approve(call, arguments={"a": value})
        except ConfigurationError:
            conversation.approve(call)
        conversation.run()

    for name, state in outcomes(
        tmp_path,
        lambda _: Agent(ScriptedLLM([("take", {}), "done"]), [take], confirm="always"),
        work,
    ):
        assert state.status is S.FINISHED, name


def test_a_posted_command_is_refused_or_comes_back_as_it_was(store: Store) -> None:
    with reopen(store) as conversation:
        conversation.send_message("hello")
    lease = store.acquire("c")
    for name, value in ANY.items():
        for command in (
            lambda value=value: cmd.Approve("1.0", "x", {"a": value}),
            lambda value=value: cmd.Return("1.0", "me", ToolResult("a", meta={"a": value})),
            lambda value=value: cmd.Return("1.0", "me", ToolResult("a"), value),
            lambda value=value: cmd.Send((EmbeddedResource({"uri": "x", "a": value}),)),
            lambda value=value: cmd.Reject("1.0", value),
            lambda value=value: cmd.Answer("1.0?1", {"a": value}),
        ):
            original = command()
            try:
                store.post("c", original)
            except ConfigurationError:
                continue
            (stored,) = store.commands(lease)
            assert stored.command == original, name
            store.append(lease, Batch([], Summary("c"), done_commands=[stored.number]))
    store.release(lease)


# --- any event through the store's API ---


def events(value: Any) -> list[ev.AnyEvent]:
    """Return one event of every kind, with a value in each field, with and without a schema."""
    base: dict[str, Any] = {"seq": 1, "id": "e", "timestamp": NOW}
    result = ToolResult("a", structured_content=value)
    return [
        ev.AgentConfigured(**base, system_prompt=value),
        ev.AgentConfigured(**base, system_prompt="", parameters={"a": value}),
        ev.AgentConfigured(
            **base, system_prompt="", tools=(ev.ToolDefinition("t", "", {"a": value}),)
        ),
        ev.MessageAdded(**base, content=value),
        ev.MessageAdded(**base, content=(EmbeddedResource({"a": value}),)),
        ev.AssistantReplied(**base, text=value),
        ev.AssistantReplied(**base, duration=value),
        ev.AssistantReplied(**base, calls=(ToolCall("1.0", "t", {"a": value}),)),
        ev.AssistantReplied(**base, native=value),
        ev.DecisionMade(**base, call_id="1.0", decision="ask", arguments={"a": value}),
        ev.DecisionMade(**base, call_id="1.0", decision=value),
        ev.ToolCallStarted(**base, call_id=value),
        ev.ToolCallStarted(**base, call_id="1.0", attempt=value),
        ev.ToolCallFinished(**base, call_id="1.0", result=result),
        ev.ToolCallFinished(**base, call_id="1.0", result=value),
        ev.HistoryCondensed(**base, hidden=(), summary=value),
        ev.HistoryCondensed(**base, hidden=value),
        ev.HistoryCondensed(**base, hidden=(), so_far=ev.Checkpoint(1, NOW, title=value)),
        ev.StatusChanged(**base, status=value),
        ev.ErrorRecorded(**base, error="E", message="m", details={"a": value}),
        ev.NoteRecorded(**base, about="a", text="t", details={"a": value}),
        ev.StatusChanged(seq=1, id=value, timestamp=NOW, status="idle"),
        ev.StatusChanged(seq=1, id="e", timestamp=value, status="idle"),
        ev.DamagedEvent(**base, reason=value),
        ev.UnknownEvent(**base, original_type="new", raw=value),
    ]


def test_an_event_of_any_kind_is_refused_or_comes_back_as_it_was(store: Store) -> None:
    for name, value in ANY.items():
        for number, event in enumerate(events(value)):
            id = f"{name} {number}"
            lease = store.acquire(id)
            try:
                store.append(lease, Batch([event], Summary(id)))
            except UnreadableEvent:
                assert store.read(id) == []
            else:
                assert store.read(id) == [event], id
                assert ev.decode(ev.record(event), 1) == event
            store.release(lease)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=3)
    | st.datetimes()
    | st.builds(object),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.data(), VALUES)
@settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
def test_any_event_is_refused_or_decodes_to_itself(data: st.DataObject, value: Any) -> None:
    event = data.draw(st.sampled_from(events(value)))
    try:
        line = ev.record(event)
    except UnreadableEvent:
        return
    assert ev.decode(line, 1) == event
    assert ev.decode(ev.encode(event)) == event
    assert ev.decode(ev.line(event)) == event
    assert b"\n" not in ev.line(event)


# --- a store with unreadable events ---


def message(seq: int, text: str) -> ev.MessageAdded:
    return ev.MessageAdded(seq=seq, id=f"e{seq}", timestamp=NOW, content=(TextContent(text),))


URL = (
    b'{"type":"message","content":[{"type":"image","data":"https://e.org/x.png","mimeType":"image/png"}],"seq":1,"id":"e1",'
    b'"timestamp":"2026-11-02T09:30:00Z"}'
)


def write_journal(
    path: Path, id: str, journal: list[ev.AnyEvent | bytes], status: str = "idle"
) -> None:
    """Write a journal as an earlier version wrote it: every record has its checksum, whatever
    its content."""
    with SQLiteStore(path, "process") as store:
        lease = store.acquire(id)
        whole = [message(seq, "to be replaced") for seq in range(1, len(journal) + 1)]
        store.append(lease, Batch(whole, Summary(id, status, "title", len(whole), NOW, NOW)))
    db = sqlite3.connect(path)
    (number,) = db.execute("SELECT number FROM conversations WHERE id = ?", (id,)).fetchone()
    for seq, event in enumerate(journal, 1):
        data = event if isinstance(event, bytes) else ev.encode(event)
        db.execute(
            "UPDATE events SET crc = ?, data = ? WHERE key = ?",
            (zlib.crc32(data), data, (number << 32) + seq),
        )
    db.commit()
    db.close()


def stored_events(path: Path, id: str) -> list[bytes]:
    db = sqlite3.connect(path)
    query = (
        "SELECT data FROM events, conversations WHERE id = ? AND key >> 32 = number ORDER BY key"
    )
    rows = [data for (data,) in db.execute(query, (id,))]
    db.close()
    return rows


def damage_event(event: ev.Event, old: bytes, new: bytes) -> bytes:
    """Return an event's JSON with one part replaced."""
    data = ev.encode(event)
    assert old in data
    return data.replace(old, new)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "kind", "id"),
    [
        (URL, "message", "e1"),
        (
            URL.replace(b'"https://e.org/x.png","mimeType":"image/png"', b'"eA==","mimeType":null'),
            "message",
            "e1",
        ),
        (
            b'{"type":"toolResult","callId":"3.0","result":{"content":5},"seq":1,"id":"r","timestamp":"2026-11-02T09:30:00Z"}',
            "toolResult",
            "r",
        ),
        (
            b'{"type":"assistant","text":"hi","native":,"seq":1,"id":"a","timestamp":"2026-11-02T09:30:00Z"}',
            "assistant",
            "damaged-1",
        ),
        (
            b'{"type":"note","about":"a","text":"\\ud800","seq":1,"id":"n","timestamp":"2026-11-02T09:30:00Z"}',
            "note",
            "damaged-1",
        ),
        (
            b'{"type":"status","status":"idle","seq":1,"id":5,"timestamp":"yesterday"}',
            "status",
            "damaged-1",
        ),
        (
            b'{"type":"status","status":"idle","seq":7,"id":"e","timestamp":"2026-11-02T09:30:00Z"}',
            "",
            "damaged-1",
        ),
        (b"not JSON at all\nof two lines \xff", "", "damaged-1"),
        (
            b'{"type":"error","error":"E","message":"m","details":{"n":'
            + b"9" * 5000
            + b'},"seq":1,"id":"x"}',
            "error",
            "damaged-1",
        ),
        (b'{"type":"message","content":"' + b"[" * 3000 + b'"}', "message", "damaged-1"),
        (
            b'{"type":"error","error":"E","message":"m","details":'
            + b'{"a":' * 3000
            + b"1"
            + b"}" * 3000
            + b',"seq":1}',
            "error",
            "damaged-1",
        ),
    ],
)
def test_a_record_that_cannot_be_decoded_loads_as_damaged_with_its_bytes(
    tmp_path: Path, data: bytes, kind: str, id: str
) -> None:
    path = tmp_path / "s.db"
    write_journal(path, "c", [data, message(2, "hello")])
    with SQLiteStore(path, "process") as store:
        first, second = store.read("c")
        assert isinstance(first, ev.DamagedEvent)
        assert (first.seq, first.original_type, first.raw, first.id, first.type) == (
            1,
            kind,
            data,
            id,
            "damaged",
        )
        assert isinstance(second, ev.MessageAdded)
        # Readers of a server get the same message, as valid JSON.
        assert ev.decode(ev.encode(first)) == first
        assert json.loads(ev.encode(first))["type"] == "damaged"
        with reopen(store) as conversation:
            assert ConversationState.from_json(conversation.state.to_json()) == conversation.state
            assert conversation.run().status is S.FINISHED
        # Exported and imported: byte for byte.
        lines = list(export_conversation(store, "c"))
        import_conversations(store, lines, "imported")
        assert [line for line in lines if line.count(b"\n") != 1 or not json.loads(line)] == []
        assert list(export_conversation(store, "imported"))[1:] == lines[1:]
        with Conversation.from_state(reopen(store).state, Agent(ScriptedLLM([])), store, "copied"):
            pass
        with (
            Conversation(Agent(ScriptedLLM([])), store, "c") as conversation,
            conversation.fork(id="forked") as fork,
        ):
            assert fork.get_history()[0] == first
    assert (
        stored_events(path, "imported")[0]
        == stored_events(path, "copied")[0]
        == stored_events(path, "c")[0]
        == data
    )
    report = check(path)
    assert not report.sound
    assert {finding.id for finding in report.findings} == {"c", "imported", "copied", "forked"}
    assert all(finding.gaps[0].reason == first.reason for finding in report.findings)
    salvaged = salvage(path, "c").conversations[0]
    assert salvaged.events[0] == first
    assert [gap.first for gap in salvaged.gaps] == [1]


def test_an_event_of_a_newer_type_is_not_damaged(tmp_path: Path) -> None:
    newer = b'{"type":"hologram","seq":1,"id":"h","timestamp":"2026-11-02T09:30:00Z","content":5}'
    write_journal(tmp_path / "s.db", "c", [newer])
    with SQLiteStore(tmp_path / "s.db", "process") as store:
        (event,) = store.read("c")
    assert isinstance(event, ev.UnknownEvent)
    assert check(tmp_path / "s.db").sound


def test_bits_that_have_rotted_are_still_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    write_journal(path, "c", [URL, message(2, "hello")])
    db = sqlite3.connect(path)
    db.execute(
        "UPDATE events SET data = ? WHERE key & 0xFFFFFFFF = 1", (URL.replace(b"e.org", b"f.org"),)
    )
    db.commit()
    db.close()
    with (
        SQLiteStore(path, "process") as store,
        pytest.raises(OSError, match="event 1 of conversation 'c' is missing or damaged"),
    ):
        store.read("c")
    (conversation,) = salvage(path).conversations
    assert (conversation.events[0].type, conversation.gaps[0].reason) == (
        "damaged",
        "the checksum does not match",
    )


@pytest.mark.slow
def test_the_command_line_names_and_shows_a_damaged_event(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    write_journal(path, "c", [URL, message(2, "hello")])

    def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
        return forks.run(
            [sys.executable, "-m", "holdfast.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
        )

    checked = holdfast("check", str(path))
    assert checked.returncode == 1
    assert "event 1 is unreadable: its message cannot be decoded" in checked.stdout + checked.stderr
    show = holdfast("show", str(path), "c")
    assert "event 1 is damaged: its message cannot be decoded" in show.stdout
    assert "hello" in show.stdout
    as_json = holdfast("show", "--json", str(path), "c")
    assert "Traceback" not in checked.stderr + show.stderr + as_json.stderr


# --- meaning of a damaged event ---


@tool(annotations=ToolAnnotations(read_only=True))
def look() -> str:
    """Looks."""
    return "seen"


class World:
    """A journal with one batch of calls in a store, and an agent that counts its effects."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "s.db"
        self.effects: list[str] = []

        @tool
        def act(text: str) -> str:
            """Acts."""
            self.effects.append(text)
            return f"did {text}"

        self.tools: list[Tool] = [act, look]

    def journal(self, *after: tuple[type[ev.Event], dict[str, Any]]) -> list[ev.AnyEvent]:
        calls = (ToolCall("3.0", "act", {"text": "a"}, "p0"), ToolCall("3.1", "look", {}, "p1"))
        events: list[Any] = [
            message(1, "go"),
            ev.StatusChanged(seq=2, id="e2", timestamp=NOW, status="running"),
            ev.AssistantReplied(
                seq=3,
                id="e3",
                timestamp=NOW,
                calls=calls,
                based_on=2,
                usage=Usage(100, 10),
                cost=0.5,
                model="m",
            ),
        ]
        for kind, fields in after:
            seq = len(events) + 1
            events.append(kind(seq=seq, id=f"e{seq}", timestamp=NOW, **fields))
        return events

    def run(
        self, journal: list[Any], script: list[Any], **options: Any
    ) -> tuple[ConversationState, ScriptedLLM]:
        write_journal(self.path, "c", journal, "running")
        model = ScriptedLLM(script)
        with SQLiteStore(self.path, "process") as store:
            with Conversation(Agent(model, self.tools, **options), store, "c") as conversation:
                state = conversation.run()
            with reopen(store) as again:
                assert again.state == state
        assert fold(state.events).status is state.status
        return state, model


def checked_messages(model: ScriptedLLM) -> list[Any]:
    """Return the messages of the last request. Each result must follow its call, and every call
    must have one."""
    messages: list[Any] = list(model.requests[-1].messages)
    open_calls: list[str] = []
    for one in messages:
        if one["role"] == "tool":
            assert one["tool_call_id"] in open_calls
            open_calls.remove(one["tool_call_id"])
        else:
            assert not open_calls
            open_calls = [call["id"] for call in one.get("tool_calls") or ()]
    assert not open_calls
    return messages


def test_a_damaged_message_is_shown_as_one_that_cannot_be_read(tmp_path: Path) -> None:
    world = World(tmp_path)
    state, model = world.run([URL], ["Please send it again."])
    assert (state.status, state.answer) == (S.FINISHED, "Please send it again.")
    (user_message,) = [one for one in checked_messages(model) if one["role"] == "user"]
    assert "A message stood here. Its record is damaged" in str(user_message["content"])


START = (ev.ToolCallStarted, {"call_id": "3.0", "idempotency_key": "c:3.0"})
STARTS = (START, (ev.ToolCallStarted, {"call_id": "3.1", "idempotency_key": "c:3.1"}))
FINISHED = (ev.ToolCallFinished, {"call_id": "3.0", "result": ToolResult("did a")})
LOOKED = (ev.ToolCallFinished, {"call_id": "3.1", "result": ToolResult("seen")})


def test_a_damaged_answer_makes_its_calls_of_unknown_outcome_and_none_runs(tmp_path: Path) -> None:
    world = World(tmp_path)
    journal: list[Any] = world.journal(*STARTS, FINISHED)
    journal[2] = damage_event(journal[2], b'"arguments":{"text":"a"}', b'"arguments":"a"')
    state, model = world.run(journal, ["I look first."])
    assert (state.status, world.effects) == (S.FINISHED, [])
    assert "An answer of yours stood here" in str(checked_messages(model)[-1]["content"])
    assert (state.usage.input_tokens, state.cost, state.steps) == (
        100 + model_tokens(state),
        0.5,
        2,
    )


def model_tokens(state: ConversationState) -> int:
    return sum(
        event.usage.input_tokens for event in state.events if isinstance(event, ev.AssistantReplied)
    )


def test_a_damaged_result_is_told_as_lost_and_its_call_is_not_repeated(tmp_path: Path) -> None:
    world = World(tmp_path)
    journal: list[Any] = world.journal(*STARTS, FINISHED, LOOKED)
    journal[5] = damage_event(journal[5], b'"content":[', b'"content":[7,')
    state, model = world.run(journal, ["done"])
    assert (state.status, world.effects) == (S.FINISHED, [])
    texts = {
        one["tool_call_id"]: str(one["content"])
        for one in checked_messages(model)
        if one["role"] == "tool"
    }
    assert "The result of this call is lost" in texts["p0"]
    assert "seen" in texts["p1"]


@pytest.mark.parametrize("id_readable", [True, False])
def test_a_call_whose_start_is_damaged_may_have_begun(tmp_path: Path, id_readable: bool) -> None:
    world = World(tmp_path)
    journal: list[Any] = world.journal(START)
    journal[3] = damage_event(
        journal[3],
        b'"callId":"3.0"',
        b'"callId":"3.0","attempt":"x"' if id_readable else b'"callId":5',
    )
    state, model = world.run(journal, ["done"])
    assert (state.status, world.effects) == (S.FINISHED, [])
    texts = {
        one["tool_call_id"]: str(one["content"])
        for one in checked_messages(model)
        if one["role"] == "tool"
    }
    assert "its outcome is unknown" in texts["p0"]
    assert ("seen" in texts["p1"]) is id_readable  # the other call is known not to have begun


def test_a_result_whose_call_cannot_be_told_leaves_no_call_to_run(tmp_path: Path) -> None:
    """The event may have been a rejection; then the call must never run."""
    world = World(tmp_path)
    decision = (ev.DecisionMade, {"call_id": "3.0", "decision": "reject", "by": "user"})
    journal: list[Any] = world.journal(decision, FINISHED)
    journal[4] = damage_event(journal[4], b'"callId":"3.0"', b'"callId":null')
    state, model = world.run(journal, ["done"])
    assert (state.status, world.effects) == (S.FINISHED, [])
    checked_messages(model)


@pytest.mark.parametrize("decision", ["ask", "approve", "deny"])
def test_a_call_whose_decision_is_damaged_waits_for_one(tmp_path: Path, decision: str) -> None:
    world = World(tmp_path)
    journal: list[Any] = world.journal(
        (ev.DecisionMade, {"call_id": "3.0", "decision": decision, "arguments_hash": "x"})
    )
    journal[3] = damage_event(journal[3], f'"{decision}"'.encode(), b'"maybe"')
    state, _ = world.run(journal, ["done"])
    assert (state.status, world.effects) == (S.WAITING_FOR_CONFIRMATION, [])
    (waiting,) = state.pending_confirmations
    assert (waiting.call.id, waiting.reason) == (
        "3.0",
        "A decision on this call was damaged and cannot be read.",
    )
    agent = Agent(ScriptedLLM(["done"]), world.tools)
    with (
        SQLiteStore(world.path, "process") as store,
        Conversation(agent, store, "c") as conversation,
    ):
        conversation.approve(arguments_hash=waiting.arguments_hash, call_id="3.0")
        assert conversation.run().status is S.FINISHED
    assert world.effects == ["a"]


def test_a_call_that_ran_under_a_damaged_approval_is_never_repeated(tmp_path: Path) -> None:
    """The approval may have changed its arguments. This holds for a repeatable call, too."""
    world = World(tmp_path)
    approve = (ev.DecisionMade, {"call_id": "3.1", "decision": "approve", "arguments": {}})
    journal: list[Any] = world.journal(*STARTS[1:], approve)
    journal[3], journal[4] = journal[4], journal[3]
    journal = [msgspec.structs.replace(event, seq=seq) for seq, event in enumerate(journal, 1)]
    journal[3] = damage_event(journal[3], b'"approve"', b'"maybe"')
    state, model = world.run(journal, ["done"])
    assert state.status is S.FINISHED
    texts = {
        one["tool_call_id"]: str(one["content"])
        for one in checked_messages(model)
        if one["role"] == "tool"
    }
    assert "its outcome is unknown" in texts["p1"]


def test_a_status_that_cannot_be_read_is_a_pause(tmp_path: Path) -> None:
    world = World(tmp_path)
    write_journal(
        world.path,
        "c",
        [
            message(1, "go"),
            damage_event(
                ev.StatusChanged(seq=2, id="e2", timestamp=NOW, status="running"),
                b'"running"',
                b"7",
            ),
        ],
    )
    with SQLiteStore(world.path, "process") as store, reopen(store) as conversation:
        assert conversation.status is S.PAUSED
        assert conversation.run().status is S.FINISHED


def test_a_damaged_prompt_is_announced_anew(tmp_path: Path) -> None:
    world = World(tmp_path)
    head = ev.AgentConfigured(seq=1, id="e1", timestamp=NOW, system_prompt="Be brief.", model="m")
    state, model = world.run(
        [damage_event(head, b'"Be brief."', b"7"), message(2, "go")],
        ["done"],
        system_prompt="Be brief.",
    )
    assert state.status is S.FINISHED
    assert checked_messages(model)[0]["content"] == "Be brief."
    assert [event.type for event in state.events].count("agent") == 1


def test_a_damaged_condensation_hides_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    answered = ev.AssistantReplied(seq=2, id="e2", timestamp=NOW, text="hi", based_on=1)
    condensation = ev.HistoryCondensed(
        seq=3,
        id="e3",
        timestamp=NOW,
        hidden=(1, 2),
        summary="greetings",
        usage=Usage(7, 1),
        cost=0.25,
        model="m",
    )
    journal: list[Any] = [
        message(1, "hello"),
        answered,
        damage_event(condensation, b'"hidden":[1,2]', b'"hidden":"all"'),
        message(4, "go"),
    ]
    state, model = world.run(journal, ["done"])
    assert [str(one["content"]) for one in checked_messages(model) if one["role"] != "system"] == [
        "hello",
        "hi",
        "go",
    ]
    assert state.cost == 0.25


@pytest.mark.parametrize("kind", ["error", "note", "", "new"])
def test_what_is_damaged_and_says_nothing_to_the_model(tmp_path: Path, kind: str) -> None:
    world = World(tmp_path)
    data = b'{"type":"%b","seq":2,"id":"x","timestamp":"2026-11-02T09:30:00Z"}' % kind.encode()
    state, model = world.run([message(1, "go"), data], ["done"])
    assert state.status is S.FINISHED
    checked_messages(model)


def damages() -> list[tuple[str, list[Any]]]:
    """Return a whole journal with each of its events damaged in turn, once with its fields
    intact and once as garbage."""
    world = World(Path())
    answered = (
        ev.AssistantReplied,
        {"text": "done", "based_on": 7, "request_hash": "x", "wire": "openai_chat"},
    )
    whole = world.journal(
        *STARTS, FINISHED, LOOKED, answered, (ev.StatusChanged, {"status": "finished"})
    )
    whole.append(message(10, "more"))
    journals: list[tuple[str, list[Any]]] = []
    for place, event in enumerate(whole):
        for how in ("fields", "bytes"):
            data = (
                b"gone"
                if how == "bytes"
                else ev.encode(event).replace(b'"id":"e', b'"id":7,"was":"')
            )
            journals.append(
                (f"{event.type} {event.seq} {how}", [*whole[:place], data, *whole[place + 1 :]])
            )
    return journals


@pytest.mark.slow
@pytest.mark.parametrize(("name", "journal"), damages(), ids=[name for name, _ in damages()])
def test_a_journal_with_any_one_event_damaged_goes_on_with_legal_requests(
    tmp_path: Path, name: str, journal: list[Any]
) -> None:
    world = World(tmp_path)
    state, model = world.run(journal, ["went on", "and on"])
    assert state.status in (S.FINISHED, S.WAITING_FOR_CONFIRMATION), name
    assert world.effects == [], name
    assert state.answer in ("went on", "and on"), name
    checked_messages(model)
    events = state.events
    # Read as a whole, event by event, and as a view: all agree.
    one_by_one = fold(())
    for event in events:
        one_by_one.apply(event)
    at_once = fold(events)
    for field in (
        "status",
        "message_seq",
        "based_on",
        "last_seq",
        "steps",
        "cost",
        "usage",
        "title",
        "owed",
        "waits",
        "call_kinds",
        "recent",
    ):
        assert getattr(one_by_one, field) == getattr(at_once, field), (name, field)
    view = View()
    for event in events:
        view.feed(event)
    assert view.ready().items == View.of(events).ready().items


# --- other readers of a journal ---


def test_a_posted_command_that_cannot_be_decoded_is_dropped_and_one_of_a_newer_version_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.db"
    with SQLiteStore(path, "process") as store:
        with reopen(store) as conversation:
            conversation.send_message("hello")
        for number in range(4):
            store.post("c", cmd.Send(f"message {number}"), f"key {number}")  # type: ignore[arg-type]
        db = sqlite3.connect(path)
        for number, data in (
            (0, URL.replace(b'"type":"message"', b'"command":"send"')),
            (1, b"not JSON"),
            (2, b'{"command":"dream"}'),
        ):
            db.execute("UPDATE inbox SET data = ? WHERE key = ?", (data, f"key {number}"))
        db.commit()
        db.close()
        problems = " ".join(check(path).problems)
        assert "command 1 in the inbox of 'c' cannot be read" in problems
        assert "command 2 in the inbox of 'c' cannot be read" in problems
        assert "command 3" not in problems
        with reopen(store) as conversation, caplog.at_level("WARNING"):
            conversation.run()
            assert [
                event.text
                for event in conversation.get_history()
                if isinstance(event, ev.MessageAdded)
            ] == ["hello", "message 3"]
        assert caplog.text.count("a posted UnreadableCommand was dropped: it cannot be read") == 2
        lease = store.acquire("c")
        assert store.commands(lease) == []
        store.release(lease)
    assert check(path).sound
    db = sqlite3.connect(path)
    assert db.execute("SELECT key FROM inbox WHERE data IS NOT NULL").fetchall() == [("key 2",)]
    db.close()


def test_a_replay_stops_at_a_damaged_event_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    agent = Agent(ScriptedLLM(["one", "two"]))
    with SQLiteStore(path, "process") as store:
        with Conversation(agent, store, "whole") as conversation:
            for text in ("first", "second"):
                conversation.send_message(text)
                conversation.run()
            journal = conversation.get_history()
            assert conversation.replay(agent).same
        seq = [event.seq for event in journal if isinstance(event, ev.MessageAdded)][1]
        write_journal(
            path,
            "c",
            [
                *journal[: seq - 1],
                damage_event(journal[seq - 1], b'"second"', b"2"),
                *journal[seq:],
            ],
        )
        with reopen(store) as conversation:
            result = conversation.replay(agent)
    assert not result.same
    assert result.difference is not None
    assert (result.requests, result.difference.seq) == (1, seq)
    assert f"event {seq} is damaged and cannot be read" in str(result)


def test_statistics_exports_and_logs_take_damaged_events(tmp_path: Path) -> None:
    from holdfast.observe.log import JsonLog
    from holdfast.observe.stats import stats
    from holdfast.openhands import read_conversation, write_conversation

    world = World(tmp_path)
    journal: list[Any] = world.journal(*STARTS, FINISHED, LOOKED)
    journal[5] = damage_event(journal[5], b'"content":[', b'"content":[7,')
    write_journal(world.path, "c", [*journal, URL.replace(b'"seq":1', b'"seq":8')], "running")
    with SQLiteStore(world.path, "process") as store:
        (summary,) = store.list()
        assert stats(store, summary).events == 8
        events = store.read("c")
    state = ConversationState("c", events)
    notes = write_conversation(state, tmp_path / "openhands")
    assert [note for note in notes if "event 6 is damaged" in note]
    again = read_conversation(tmp_path / "openhands").state
    assert "The result of this call is lost" in str(
        [event.result.text for event in again.events if isinstance(event, ev.ToolCallFinished)]
    )
    with JsonLog(tmp_path / "log") as log:
        for event in events:
            log.event("c", event)
    assert [json.loads(line)["type"] for line in (tmp_path / "log").read_text().splitlines()].count(
        "damaged"
    ) == 2


@pytest.mark.slow
def test_readers_of_a_server_are_sent_a_damaged_event_as_such(tmp_path: Path) -> None:
    from holdfast import RemoteConversation, RemoteWorkspace
    from holdfast.server.local import LocalServer

    def mine(server: LocalServer, *script: str) -> RemoteConversation:
        return RemoteConversation(
            Agent(ScriptedLLM(list(script))),
            workspace=RemoteWorkspace(server.url, server.key),
            id="mine",
        )

    with LocalServer(tmp_path) as server, mine(server, "one") as conversation:
        conversation.send_message("go")
        conversation.run()
    (path,) = [file for file in tmp_path.rglob("*.db") if not file.name.endswith(".server.db")]
    db = sqlite3.connect(path)
    (key,) = db.execute("SELECT key FROM events WHERE key & 0xFFFFFFFF = 1").fetchone()
    db.execute("UPDATE events SET crc = ?, data = ? WHERE key = ?", (zlib.crc32(URL), URL, key))
    db.commit()
    db.close()
    with LocalServer(tmp_path) as server, mine(server, "two") as conversation:
        assert conversation.state.events[0] == ev.decode(URL, 1)
        conversation.send_message("more")
        conversation.run()
        assert conversation.status is S.FINISHED
        assert isinstance(conversation.state.events[0], ev.DamagedEvent)
