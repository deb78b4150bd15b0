"""Output of the command: events as lines, safe text, the order of deltas and events, colours, and
the environment of commands."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import events as ev
from holdfast.cli.console import Console, wants_colour
from holdfast.cli.display import ConversationDisplay
from holdfast.cli.environment import api_key, base_url, model_name, shell_environment
from holdfast.cli.exit_codes import UsageError
from holdfast.cli.render import Renderer, call_title, whole
from holdfast.cli.text import TextLine, clip, duration, one_line, safe, summary, token_parts
from holdfast.content import ErrorInfo, ImageContent, TextContent, ToolCall, ToolResult, Usage
from holdfast.llm.completion import Delta
from tests.leftovers import Owned

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def event(kind: type[Any], seq: int = 1, **fields: Any) -> Any:
    """Return an event with a fixed time."""
    return kind(seq=seq, id=str(seq), timestamp=NOW, **fields)


def message_added(text: str, seq: int = 1, sender: str = "user") -> ev.MessageAdded:
    """Return the event of a message."""
    return event(ev.MessageAdded, seq, content=(TextContent(text),), sender=sender)


def answer(seq: int, text: str = "", *calls: ToolCall, **fields: Any) -> ev.AssistantReplied:
    """Return the event of an answer."""
    return event(ev.AssistantReplied, seq, text=text, calls=calls, **fields)


def terminal(seq: int, command: str, index: int = 0) -> ToolCall:
    """Return a call of the terminal tool."""
    return ToolCall(f"{seq}.{index}", "terminal", {"command": command})


def result(
    seq: int,
    call_id: str,
    text: str = "",
    *,
    seconds: float = 0.25,
    error: bool = False,
    **meta: Any,
) -> ev.ToolCallFinished:
    """Return the event of a tool result."""
    info = ErrorInfo("not_found", text) if error else None
    content = (TextContent(text),) if text else ()
    return event(
        ev.ToolCallFinished,
        seq,
        call_id=call_id,
        result=ToolResult(content, None, meta, error, info),
        duration=seconds,
    )


def render_events(events: Sequence[ev.AnyEvent], **options: Any) -> list[TextLine]:
    """Return the lines of all events."""
    renderer = Renderer(**options)
    return [line for event in events for line in renderer.lines(event)]


def texts(lines: Sequence[TextLine]) -> list[str]:
    """Return the texts of all lines that are not gaps."""
    return [line.text for line in lines if line.style != "gap"]


# --- text ---


@pytest.mark.parametrize(
    ("raw", "visible"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "^[[31mred^[[0m"),
        ("bell\x07 null\x00 delete\x7f", "bell^G null^@ delete^?"),
        ("\x9b31m \x9d0;title\x9c", "\\x9b31m \\x9d0;title\\x9c"),
        ("user\u202eresu \u2066x\u2069", "user\\u202eresu \\u2066x\\u2069"),
        ("dos\r\nbar 1\rbar 2", "dos\nbar 1bar 2"),
        ("naïve 日本 👍", "naïve 日本 👍"),
    ],
)
def test_control_characters_become_visible_and_text_stays(raw: str, visible: str) -> None:
    assert safe(raw) == visible


def test_a_text_becomes_one_line_and_is_cut_at_the_width() -> None:
    assert one_line(" a\n  b\tc\x1b ") == "a b c^["
    assert clip("12345", 5) == "12345"
    assert clip("123456", 5) == "1234…"
    assert clip("\tx", 20) == "    x"


@pytest.mark.parametrize(
    ("seconds", "phrase"),
    [
        (0.0, "0 ms"),
        (0.0034, "3 ms"),
        (0.25, "0.25 s"),
        (0.9999, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (3720, "1 h 02 min"),
    ],
)
def test_durations_are_short(seconds: float, phrase: str) -> None:
    assert duration(seconds) == phrase


def test_the_summary_has_the_cost_only_where_it_is_known() -> None:
    usage = Usage(4210, 312, 3000)
    assert (
        summary(3, 12.4, usage, 0.01234)
        == "3 steps, 12.4 s, 4,210 tokens in (3,000 cached), 312 out, $0.0123"
    )
    assert summary(2, 0.5, Usage(), None) == "2 steps, 0.50 s"
    assert summary(1, 0.5, Usage(7, 2), None) == "1 step, 0.50 s, 7 tokens in, 2 out"


def test_all_counts_of_tokens_that_are_not_zero_are_named() -> None:
    usage = Usage(100, 50, 10, 20, 30, 5, 6, 7, 8, 9)
    input_details = "20 written to the cache, 5 of them for an hour, 6 audio, 8 image)"
    output_part = "50 out (30 reasoning, 7 audio, 9 image)"
    assert token_parts(usage) == [f"100 tokens in (10 cached, {input_details}", output_part]
    assert token_parts(usage, cached_share=True)[0] == f"100 tokens in (10% cached, {input_details}"
    assert token_parts(Usage(0, 3)) == ["0 tokens in", "3 out"]
    assert token_parts(Usage()) == []


# --- events ---


@pytest.mark.parametrize(
    ("name", "arguments", "title"),
    [
        ("terminal", {"command": "ls -l", "wait": 5}, "$ ls -l"),
        ("terminal", {"command": "cd x\nmake\nmake test"}, "$ cd x (and 2 more lines)"),
        ("read_file", {"path": "src/a.py", "offset": 10}, "read_file src/a.py offset=10"),
        (
            "grep",
            {"pattern": "def x", "path": "src", "glob": "*.py"},
            "grep def x path=src glob=*.py",
        ),
        ("edit_file", {"path": "a.py", "old": "x", "new": "y"}, "edit_file a.py"),
        ("write_file", {"path": "a.py", "content": "short"}, "write_file a.py"),
        ("add", {"a": 1, "b": 2}, "add a=1 b=2"),
        ("say", {"words": "hello"}, "say hello"),
        ("nothing", {}, "nothing"),
        ("evil\x1b", {"path": "a\x1b[2J\nb"}, "evil^[ a^[[2J b"),
        ("nested", {"path": {"not": "a str"}, "deep": [1, 2]}, "nested"),
    ],
)
def test_a_call_is_one_line_with_its_most_telling_argument(
    name: str, arguments: dict[str, Any], title: str
) -> None:
    assert call_title(name, arguments) == title


def test_a_command_shows_its_output_exit_code_and_duration() -> None:
    lines = render_events(
        [
            answer(2, "I look.", terminal(2, "ls")),
            result(3, "2.0", "a\nb\n[exit code 0]", exitCode=0),
        ]
    )
    assert lines == [
        TextLine("gap"),
        TextLine("plain", "I look."),
        TextLine("call", "$ ls"),
        TextLine("dim", "  a"),
        TextLine("dim", "  b"),
        TextLine("dim", "  exit 0, 0.25 s"),
    ]


def test_a_command_that_failed_is_red_and_its_last_lines_are_kept() -> None:
    output = "\n".join(f"line {number}" for number in range(100))
    lines = render_events(
        [
            answer(2, "", terminal(2, "make")),
            result(3, "2.0", f"{output}\n[exit code 2]", exitCode=2),
        ]
    )
    body = texts(lines)[1:]
    assert body[:5] == ["  line 0", "  line 1", "  line 2", "  line 3", "  … 88 more lines"]
    assert body[5:] == [f"  line {number}" for number in range(92, 100)] + ["  exit 2, 0.25 s"]
    assert lines[-1].style == "error"


def test_full_shows_everything() -> None:
    output = "\n".join("x" * 300 for _ in range(100))
    events = [answer(2, "", terminal(2, "one\ntwo")), result(3, "2.0", output, exitCode=0)]
    body = texts(render_events(events, width=None, full=True))
    assert body[:2] == ["$ one", "  two"]
    assert body[2:-1] == ["  " + "x" * 300] * 100


def test_lines_are_cut_at_the_width() -> None:
    lines = render_events(
        [answer(2, "", terminal(2, "echo " + "x" * 200)), result(3, "2.0", "y" * 200, exitCode=0)],
        width=40,
    )
    assert [len(text) for text in texts(lines)[:2]] == [40, 40]


def test_a_diff_stands_for_the_result_of_an_edit() -> None:
    call = ToolCall("2.0", "edit_file", {"path": "a.py", "old": "x", "new": "y"})
    diff = "--- a.py\n+++ a.py\n@@ -1 +1 @@\n-x\n+y\n z\n"
    lines = render_events([answer(2, "", call), result(3, "2.0", "Edited a.py:\n 1 y", diff=diff)])
    assert lines[2:] == [
        TextLine("dim", "  @@ -1 +1 @@"),
        TextLine("remove", "  -x"),
        TextLine("add", "  +y"),
        TextLine("dim", "   z"),
        TextLine("dim", "  0.25 s"),
    ]


@pytest.mark.parametrize(
    ("before", "content", "diff"),
    [
        (None, "x\n", ["+x"]),
        (None, "x", ["+x"]),
        (None, "x\n\n", ["+x", "+"]),
        (None, "\n", ["+"]),
        (None, "", []),
        ("", "x\ny\n", ["+x", "+y"]),
        ("x\ny\n", "", ["-x", "-y"]),
    ],
)
def test_a_new_or_emptied_file_has_no_line_too_many(
    before: str | None, content: str, diff: list[str]
) -> None:
    lines = texts(
        whole(ToolCall("2.0", "write_file", {"path": "a", "content": content}), lambda _: before)
    )
    assert [line.strip() for line in lines if line.startswith(("  +", "  -"))] == diff


def test_a_long_diff_is_cut_and_says_so() -> None:
    call = ToolCall("2.0", "write_file", {"path": "a"})
    diff = "@@ -0,0 +1,100 @@\n" + "".join(f"+{number}\n" for number in range(100))
    body = texts(render_events([answer(2, "", call), result(3, "2.0", "", diff=diff)]))
    assert body[-2] == "  … 61 more lines"


def test_a_failed_call_is_red_and_names_its_kind() -> None:
    call = ToolCall("2.0", "read_file", {"path": "nope"})
    lines = render_events(
        [
            answer(2, "", call),
            result(3, "2.0", "There is no nope.", error=True, diff="@@ ignored @@"),
        ]
    )
    assert lines[2:] == [
        TextLine("error", "  There is no nope."),
        TextLine("error", "  failed (not_found), 0.25 s"),
    ]


def test_results_of_several_calls_say_whose_they_are() -> None:
    events = [
        answer(2, "", terminal(2, "one", 0), terminal(2, "two", 1)),
        result(3, "2.1", "second"),
        result(4, "2.0", "first"),
    ]
    body = texts(render_events(events))
    assert body == [
        "$ one",
        "$ two",
        "= $ two",
        "  second",
        "  0.25 s",
        "= $ one",
        "  first",
        "  0.25 s",
    ]


def test_a_result_without_its_call_is_still_shown() -> None:
    assert texts(render_events([result(3, "9.9", "orphan")])) == ["  orphan", "  0.25 s"]


def test_arguments_that_were_no_json_are_shown_as_they_came() -> None:
    call = ToolCall("2.0", "terminal", {}, raw='{"command": "ls', invalid="cut off")
    assert texts(render_events([answer(2, "", call)])) == ['terminal {"command": "ls']


def test_what_is_not_text_is_named() -> None:
    image = ToolResult((TextContent("a.png:"), ImageContent(b"x" * 2500, "image/png")))
    lines = render_events(
        [event(ev.ToolCallFinished, 3, call_id="2.0", result=image, duration=0.25)]
    )
    assert texts(lines) == ["  a.png:", "  (image, image/png, 2 KB)", "  0.25 s"]


def test_who_speaks_is_told_apart() -> None:
    events = [
        message_added("do this\nand that"),
        message_added("Call a tool.", 2, "holdfast"),
        answer(3, "Yes.", reasoning="Hm.\nWell."),
    ]
    assert render_events(events) == [
        TextLine("gap"),
        TextLine("user", "> do this"),
        TextLine("user", "> and that"),
        TextLine("dim", "(told the model: Call a tool.)"),
        TextLine("gap"),
        TextLine("dim", "Hm."),
        TextLine("dim", "Well."),
        TextLine("plain", "Yes."),
    ]


def test_what_only_the_machinery_cares_about_is_not_shown() -> None:
    quiet = [
        event(ev.StatusChanged, status="running"),
        event(ev.StatusChanged, status="finished"),
        event(ev.ToolCallStarted, call_id="2.0"),
        event(ev.DecisionMade, call_id="2.0", decision="allow"),
        answer(5),
    ]
    assert render_events(quiet) == []


def test_what_stops_or_changes_a_run_is_shown() -> None:
    raw = ev.decode(b'{"type":"fromTheFuture","seq":9,"id":"x","timestamp":"2026-01-01T00:00:00Z"}')
    events = [
        event(
            ev.AgentConfigured,
            system_prompt="p",
            model="m",
            tools=(ev.ToolDefinition("a", "", {}), ev.ToolDefinition("b", "", {})),
        ),
        event(ev.StatusChanged, status="paused", reason="interrupted"),
        event(ev.StatusChanged, status="stuck", reason="3 blanks"),
        event(ev.ErrorRecorded, error="RateLimited", message="slow\ndown"),
        event(ev.HistoryCondensed, hidden=(1, 2, 3)),
        event(ev.HistoryCondensed, hidden=(), model="gpt-5", compaction=ev.Compaction()),
        event(ev.ToolCallStarted, call_id="2.0", attempt=2),
        event(ev.DecisionMade, call_id="2.0", decision="deny", reason="no"),
        raw,
    ]
    assert texts(render_events(events)) == [
        "model m, 2 tools: a, b",
        "paused (interrupted)",
        "stuck (3 blanks)",
        "RateLimited: slow down",
        "3 events left out of the model's view from here on",
        "a compaction by gpt-5 is the model's view from here on",
        "  attempt 2: call 2.0",
        "  deny call 2.0: no",
        "(fromTheFuture: an event of a newer version)",
    ]


# --- the screen, and output from two threads ---


def live(env: dict[str, str] | None = None) -> tuple[ConversationDisplay, io.StringIO, list[int]]:
    """Return a display that writes to a file, the file, and a list. The last item of the list is
    the last seq of the journal."""
    out, seqs = io.StringIO(), [0]
    return (
        ConversationDisplay(Console(env or {}, out, io.StringIO()), Renderer(), lambda: seqs[-1]),
        out,
        seqs,
    )


def test_a_streamed_answer_is_not_shown_twice() -> None:
    view, out, _ = live()
    view.on_delta(Delta("reasoning", "Hm."))
    for piece in ("\n\nHel", "lo ", "you\x1b", ".\n"):
        view.on_delta(Delta("text", piece))
    view.on_event(answer(1, "\n\nHello you\x1b.\n", reasoning="Hm."))
    assert out.getvalue() == "Hm.\nHello you^[.\n"


def test_a_piece_that_comes_after_its_whole_answer_was_read_is_not_shown_again() -> None:
    """A remote conversation may read the answer on one thread while another thread delivers its
    deltas."""
    view, out, seqs = live()
    seqs.append(1)
    view.on_delta(Delta("text", "Hello."))
    view.on_event(answer(1, "Hello."))
    seqs.append(2)
    view.on_delta(Delta("text", "Next."))
    view.on_event(event(ev.StatusChanged, status="running", seq=2))
    assert out.getvalue() == "Hello.\n\nNext."


def test_an_answer_that_streams_on_after_a_pause_is_shown_whole_and_once() -> None:
    view, out, seqs = live()
    for piece in ("One.\nThe sec", "ond li"):
        view.on_delta(Delta("text", piece))
    seqs.append(1)
    view.on_event(event(ev.StatusChanged, status="paused"))
    for piece in ("ne.\n", "Three."):
        view.on_delta(Delta("text", piece))
    seqs.append(2)
    view.on_event(answer(2, "One.\nThe second line.\nThree."))
    assert out.getvalue() == "One.\nThe second li\npaused\n\nThe second line.\nThree.\n"


def test_pieces_that_come_before_the_status_of_their_run_are_shown_once() -> None:
    view, out, seqs = live()
    view.on_delta(Delta("text", "Good "))
    seqs.append(1)
    view.on_event(event(ev.StatusChanged, status="running"))
    view.on_delta(Delta("text", "day."))
    view.on_event(answer(2, "Good day."))
    assert out.getvalue() == "Good day.\n"


def test_an_answer_that_an_interrupt_broke_off_is_asked_for_again() -> None:
    view, out, seqs = live()
    view.on_delta(Delta("text", "Hel"))
    seqs.append(1)
    view.on_event(event(ev.StatusChanged, status="paused", reason="interrupted"))
    view.on_delta(Delta("restart"))
    view.on_delta(Delta("text", "Good day."))
    view.on_event(answer(2, "Good day."))
    assert out.getvalue() == "Hel\npaused (interrupted)\n\nGood day.\n"


def test_a_stream_that_had_less_than_the_answer_is_completed() -> None:
    view, out, _ = live()
    view.on_delta(Delta("text", "Hello "))
    view.on_event(answer(1, "Hello you."))
    assert out.getvalue() == "Hello \nyou.\n"


def test_the_next_answers_pieces_wait_for_the_last_calls_result() -> None:
    view, out, seqs = live()
    view.on_event(answer(1, "First.", terminal(1, "ls")))
    seqs.append(2)  # the result is in the journal, but its callback has not run yet
    view.on_delta(Delta("text", "Second"))
    assert "Second" not in out.getvalue()
    view.on_event(result(2, "1.0", "file", exitCode=0))
    view.on_delta(Delta("text", "."))
    view.on_event(answer(3, "Second."))
    assert out.getvalue() == "First.\n$ ls\n  file\n  exit 0, 0.25 s\n\nSecond.\n"


def test_an_answer_that_breaks_off_is_shown_anew() -> None:
    view, out, _ = live()
    view.on_delta(Delta("text", "Hel"))
    view.on_delta(Delta("restart"))
    view.on_delta(Delta("text", "Hello."))
    view.on_event(answer(1, "Hello."))
    assert out.getvalue() == "Hel\n(the answer broke off; it is requested again)\n\nHello.\n"


def test_what_was_cut_off_by_a_pause_is_not_taken_for_the_next_answer() -> None:
    view, out, seqs = live()
    view.on_delta(Delta("text", "Hello"))
    view.on_event(event(ev.StatusChanged, 1, status="paused", reason="interrupted"))
    seqs.append(2)
    view.on_event(event(ev.StatusChanged, 2, status="running"))
    view.on_event(answer(3, "Hello again."))
    assert out.getvalue() == "Hello\npaused (interrupted)\n\nHello again.\n"


def test_a_message_that_was_typed_here_is_not_repeated() -> None:
    view, out, _ = live()
    view.expect_echoed()
    view.on_event(message_added("typed", 1))
    view.on_event(message_added("from elsewhere", 2))
    assert out.getvalue() == "> from elsewhere\n"


def test_steps_and_tokens_are_counted() -> None:
    view, _, _ = live()
    view.on_event(answer(1, "a", usage=Usage(10, 2)))
    view.on_event(answer(2, "b", usage=Usage(20, 3, 5)))
    assert (view.totals.steps, view.totals.usage) == (2, Usage(30, 5, 5))


def test_colours_end_with_their_line() -> None:
    out = io.StringIO()
    screen = Console({"FORCE_COLOR": "1"}, out, io.StringIO())
    screen.show([TextLine("user", "> x"), TextLine("plain", "y"), TextLine("error", "")])
    screen.stream("dim", "a\nb")
    screen.end_stream()
    assert out.getvalue() == "\x1b[1;36m> x\x1b[0m\ny\n\n\x1b[2ma\x1b[0m\n\x1b[2mb\x1b[0m\n"


def test_notices_and_errors_go_to_the_other_stream() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = Console({}, out, err)
    screen.stream("plain", "half a line")
    screen.error("it\nfailed \x1b[2J")
    assert (out.getvalue(), err.getvalue()) == ("half a line\n", "holdfast: it failed ^[[2J\n")


def test_a_reader_that_went_away_is_noted_and_not_raised() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    out = os.fdopen(writer, "w")
    screen = Console({}, out, io.StringIO())
    for _ in range(2):
        screen.show([TextLine("plain", "x")])
        assert screen.broken
    with pytest.raises(BrokenPipeError):
        out.close()


@pytest.mark.slow
def test_a_screen_that_is_no_terminal_starts_no_thread() -> None:
    before = Owned()
    screen = Console({}, io.StringIO(), io.StringIO())
    screen.status("thinking")
    assert before.new_threads() == 0
    screen.close()


# --- the environment ---


@pytest.mark.parametrize(
    ("env", "is_tty", "colour"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_colour_is_for_terminals_and_for_those_who_ask(
    env: dict[str, str], is_tty: bool, colour: bool
) -> None:
    assert wants_colour(env, is_tty) is colour


def test_options_come_before_the_environment() -> None:
    env = {"HOLDFAST_MODEL": "e", "HOLDFAST_BASE_URL": "http://e"}
    assert (model_name("o", env), model_name(None, env)) == ("o", "e")
    assert (base_url("http://o", env), base_url(None, env), base_url(None, {})) == (
        "http://o",
        "http://e",
        None,
    )
    with pytest.raises(UsageError, match="HOLDFAST_MODEL"):
        model_name(None, {})


def test_the_key_is_the_named_one_then_ours_then_openais_for_openai() -> None:
    openai, other, local = (
        "https://api.openai.com/v1",
        "https://example.com/v1",
        "http://localhost:8000/v1",
    )
    env = {"OPENAI_API_KEY": "o", "HOLDFAST_API_KEY": "h", "MINE": "m\n"}
    assert api_key(openai, "MINE", env) == "m"
    assert api_key(openai, None, env) == "h"
    assert api_key(openai, None, {"OPENAI_API_KEY": "o"}) == "o"
    assert api_key(local, None, {"OPENAI_API_KEY": "o"}) == ""
    assert api_key(other, "OPENAI_API_KEY", env) == "o"
    for address in (other, "https://openai.com.example.com/v1", "https://notopenai.com/v1"):
        with pytest.raises(UsageError, match="is sent to OpenAI only"):
            api_key(address, None, {"OPENAI_API_KEY": "o"})


def test_commands_get_a_chosen_part_of_the_environment() -> None:
    env = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "HOME": "/h",
        "GOPATH": "/g",
        "OPENAI_API_KEY": "k",
        "GITHUB_TOKEN": "t",
        "LC_SECRET": "s",
        "http_proxy": "http://proxy:3128",
        "https_proxy": "http://me:pw@proxy:3128",
        "TERM": "xterm",
        "WHATEVER": "w",
        "AWS_PROFILE": "a",
    }
    variables = shell_environment(env, ())
    assert variables == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "HOME": "/h",
        "GOPATH": "/g",
        "http_proxy": "http://proxy:3128",
    }
    assert shell_environment(env, ["GITHUB_TOKEN"]) == {**variables, "GITHUB_TOKEN": "t"}
    with pytest.raises(UsageError, match="MISSING"):
        shell_environment(env, ["MISSING"])
