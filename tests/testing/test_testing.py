"""Tests of `holdfast.testing`: the crash kit holds programs to the guarantees and names the broken
one; recorded conversations are regression tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolAnnotations,
    ToolContext,
    testing,
)
from holdfast import events as ev
from holdfast.errors import ConfigurationError, StoreError
from holdfast.store.transfer import export_conversation
from holdfast.testing import Crash, Point, assert_replays, crash_at_every_append, kill_point
from holdfast.tools.tool import RetryPolicy
from tests.leftovers import child_processes
from tests.paths import REPO

ROOT = REPO
IDEMPOTENT = ToolAnnotations(idempotent=True)


def mail(folder: Path, annotations: ToolAnnotations) -> Agent:
    def send(to: str) -> str:
        kill_point("to be sent")
        with (folder / "mail.txt").open("a") as file:
            file.write(f"{to}\n")
        kill_point("sent")
        return f"sent to {to}"

    model = ScriptedLLM(
        lambda request: ("send", {"to": "Ann"}) if len(request.messages) == 2 else "Sent."
    )
    return Agent(model, [Tool("send", "", send, annotations=annotations)])


def carry_on(agent: Agent, store: SQLiteStore) -> None:
    with Conversation(agent, store, "c") as conversation:
        if not conversation.get_history():
            conversation.send_message("Tell Ann.")
        conversation.run()


def program(store: SQLiteStore, folder: Path) -> None:
    carry_on(mail(folder, ToolAnnotations()), store)


def idempotent(store: SQLiteStore, folder: Path) -> None:
    carry_on(mail(folder, IDEMPOTENT), store)


def result_of(events: list[ev.AnyEvent]) -> ev.ToolCallFinished:
    return next(event for event in events if isinstance(event, ev.ToolCallFinished))


# --- every kill is survived ---


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> list[Crash]:
    return list(crash_at_every_append(program, folder=tmp_path_factory.mktemp("crashes")))


def at(place: str) -> Callable[..., bool]:
    return lambda point: point.place == place


@pytest.mark.slow
def test_a_program_is_killed_before_and_after_every_append_and_at_every_kill_point(
    crashes: list[Crash],
) -> None:
    appends = max(crash.point.number for crash in crashes if crash.point.place == "append")
    expected = [
        Point(number, "append", when)
        for number in range(1, appends + 1)
        for when in ("before", "after")
    ]
    assert [crash.point for crash in crashes] == [
        *expected,
        Point(1, "to be sent"),
        Point(1, "sent"),
    ]
    assert [crash.number for crash in crashes] == list(range(1, len(crashes) + 1))
    assert len({crash.folder for crash in crashes}) == len(crashes)


@pytest.mark.slow
def test_a_crash_shows_the_journal_at_the_kill_at_the_end_and_without_a_kill(
    crashes: list[Crash],
) -> None:
    for crash in crashes:
        assert crash.after[: len(crash.before)] == crash.before
        assert [type(event) for event in crash.reference][-1] is ev.StatusChanged
        result = result_of(crash.after).result
        mails = (
            (crash.folder / "mail.txt").read_text() if (crash.folder / "mail.txt").exists() else ""
        )
        assert mails == ("Ann\n" if result.success else mails)
        assert mails.count("Ann") <= 1
        if crash.point.place == "sent":
            assert (mails, result.meta) == ("Ann\n", {"outcome": "unknown"})
        if crash.point.place == "to be sent":
            assert (mails, result.meta) == ("", {"outcome": "unknown"})


def test_what_may_be_repeated_is_repeated_under_its_key(tmp_path: Path) -> None:
    (crash,) = crash_at_every_append(idempotent, folder=tmp_path, points=at("sent"))
    assert (crash.folder / "mail.txt").read_text() == "Ann\nAnn\n"
    starts = [event for event in crash.after if isinstance(event, ev.ToolCallStarted)]
    assert [(start.attempt, start.idempotency_key) for start in starts] == [
        (1, "c:4.0"),
        (2, "c:4.0"),
    ]


@pytest.mark.slow
def test_a_second_kill_falls_into_the_recovery(tmp_path: Path) -> None:
    crashes = list(
        crash_at_every_append(program, folder=tmp_path, points=[5], when=["before"], twice=True)
    )
    doubles = [crash for crash in crashes if len(crash.points) == 2]
    assert len(crashes) == 1 + len(doubles)
    assert len(doubles) >= 3
    assert {crash.points[0] for crash in crashes} == {Point(5, "append", "before")}
    assert crashes[-1].number == 1 + 2 * len(doubles)
    for crash in doubles:
        assert crash.after[: len(crash.before)] == crash.before


@pytest.mark.slow
def test_some_appends_can_be_picked_and_one_side_of_them(tmp_path: Path) -> None:
    crashes = list(crash_at_every_append(program, folder=tmp_path, points=[2, 4], when=["after"]))
    assert [str(crash) for crash in crashes] == [
        "crash 1: killed after append 2",
        "crash 2: killed after append 4",
    ]


@pytest.mark.slow
def test_another_function_may_go_on(tmp_path: Path) -> None:
    def resume(store: SQLiteStore, folder: Path) -> None:
        (folder / "resumed").touch()
        program(store, folder)

    crashes = list(crash_at_every_append(program, folder=tmp_path, resume=resume, points=[3]))
    assert crashes
    assert all((crash.folder / "resumed").exists() for crash in crashes)
    assert not (tmp_path / "uninterrupted" / "resumed").exists()


@pytest.mark.slow
def test_without_a_folder_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for crash in crash_at_every_append(program, points=[3]):
        assert (crash.folder / "store.db").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_loop_that_is_left_early_leaves_no_process(tmp_path: Path) -> None:
    before = child_processes()
    for _ in crash_at_every_append(program, folder=tmp_path):
        break
    assert child_processes() <= before


def test_kill_point_does_nothing_elsewhere() -> None:
    kill_point("here")


# --- broken guarantees are named ---


def broken(program: object, tmp_path: Path, **options: object) -> str:
    with pytest.raises(AssertionError) as caught:
        list(crash_at_every_append(program, folder=tmp_path, **options))  # pyright: ignore
    return str(caught.value)


def test_a_broken_guarantee_is_told_with_the_kill_and_the_journal(tmp_path: Path) -> None:
    def forgetful(store: SQLiteStore, folder: Path) -> None:
        from holdfast.conversation.calls import Calls

        Calls._recovered = lambda self, *_: None  # pyright: ignore
        program(store, folder)

    text = broken(forgetful, tmp_path, points=[5])
    assert text.startswith("Killed before append 5:")
    assert (
        "call 4.0 of 'send' had been started, it may not be repeated, and it was started again"
        " (attempt 2)" in text
    )
    assert "--- killed here ---\n    6 toolCallStarted 4.0, attempt 2" in text
    assert f"Folder: {tmp_path}" in text


def test_a_program_that_raises_is_told_with_its_traceback(tmp_path: Path) -> None:
    def fails(store: SQLiteStore, folder: Path) -> None:
        print("about to")
        raise LookupError("no such thing")

    text = broken(fails, tmp_path)
    assert text.startswith("The uninterrupted run failed:")
    assert "about to" in text
    assert "LookupError: no such thing" in text


@pytest.mark.slow
def test_a_program_that_cannot_go_on_is_told_with_the_journal_it_found(tmp_path: Path) -> None:
    def only_once(store: SQLiteStore, folder: Path) -> None:
        assert not store.list(), "there is something"
        program(store, folder)

    text = broken(only_once, tmp_path)
    assert text.startswith("The run that went on after a kill failed:")
    assert "there is something" in text
    assert "It began with this journal:\n    1 message" in text


@pytest.mark.slow
def test_a_run_that_hangs_is_told_with_where_it_hangs(tmp_path: Path) -> None:
    def hangs(store: SQLiteStore, folder: Path) -> None:
        time.sleep(600)

    text = broken(hangs, tmp_path, deadline=0.3)
    assert text.startswith("The uninterrupted run did not end within 0.3 s:")
    assert "in hangs" in text


def test_a_run_that_ends_otherwise_than_the_uninterrupted_one_is_told(tmp_path: Path) -> None:
    def gives_up(store: SQLiteStore, folder: Path) -> None:
        with Conversation(mail(folder, ToolAnnotations()), store, "c") as conversation:
            conversation.pause()

    text = broken(program, tmp_path, resume=gives_up, points=[3])
    assert "it came to rest as paused, the uninterrupted run as finished ('c')" in text


def test_a_program_that_does_not_use_the_store_is_told(tmp_path: Path) -> None:
    assert "made no append" in broken(lambda store, folder: None, tmp_path)


@pytest.mark.slow
def test_what_children_write_is_not_written_twice(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def talks(store: SQLiteStore, folder: Path) -> None:
        print("from the child")
        os.write(2, b"from the child")
        program(store, folder)

    print("before", end=" ")
    list(crash_at_every_append(talks, folder=tmp_path, points=[2]))
    print("after")
    assert capfd.readouterr() == ("before after\n", "")


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="when takes"):
        list(crash_at_every_append(program, folder=tmp_path, when="before"))
    with pytest.raises(ConfigurationError, match="functions of"):
        list(crash_at_every_append("program", folder=tmp_path))  # pyright: ignore


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("points", ["abc", 7, [1.5], [True], ["1"], b"a"]),
        ("when", ["before", 7, None, ["during"], [[]]]),
        ("deadline", [None, "1", 0, -1, float("nan"), True]),
        ("folder", [7, b"x", Path(__file__), Path(__file__) / "below"]),
        ("twice", ["no", None]),
    ],
)
def test_a_wrong_argument_is_told_by_its_name(
    name: str, values: list[object], tmp_path: Path
) -> None:
    for value in values:
        with pytest.raises(ConfigurationError, match=f"crash_at_every_append: {name} takes"):
            list(crash_at_every_append(program, **{"folder": tmp_path, name: value}))  # pyright: ignore


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"points": [99]}, {"points": []}, {"points": lambda *_: False}, {"points": [1], "when": ()}],
)  # pyright: ignore
def test_where_nothing_is_killed_nothing_is_proved(
    options: dict[str, object], tmp_path: Path
) -> None:
    text = broken(program, tmp_path, **options)
    assert "There was no kill, so nothing was proved" in text
    assert "points choose no point. The uninterrupted run reached 'append' " in text


@pytest.mark.slow
def test_points_that_are_never_come_to_again_prove_nothing(tmp_path: Path) -> None:
    def differs(store: SQLiteStore, folder: Path) -> None:
        if folder.name == "uninterrupted":
            kill_point("only once")
        program(store, folder)

    assert "none of the 1 chosen points was reached again" in broken(
        differs, tmp_path, points=at("only once")
    )


@pytest.mark.slow
def test_only_kill_points_may_be_chosen(tmp_path: Path) -> None:
    assert [
        crash.point.place for crash in crash_at_every_append(program, folder=tmp_path, when=())
    ] == ["to be sent", "sent"]


def starts(store: SQLiteStore, folder: Path) -> None:
    for options in ({}, {"start_new_session": True}, {"env": {}}):
        process = subprocess.Popen(["/bin/sleep", "777"], **options)  # pyright: ignore
        with (folder.parent / "pids").open("a") as file:
            file.write(f"{process.pid}\n")
    program(store, folder)


def living(folder: Path) -> list[int]:
    return [pid for pid in map(int, (folder / "pids").read_text().split()) if is_alive(pid)]


def is_alive(pid: int) -> bool:
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return state.strip()[:1] not in ("", "Z")


@pytest.mark.slow
def test_what_a_program_starts_and_leaves_is_ended_after_each_crash_and_not_before_it_is_looked_at(
    tmp_path: Path,
) -> None:
    for _ in crash_at_every_append(starts, folder=tmp_path, points=[2, 3], when=["after"]):
        assert len(living(tmp_path)) == 6  # of two processes; the one of the earlier run has ended
    assert len((tmp_path / "pids").read_text().split()) == 15
    assert living(tmp_path) == []


@pytest.mark.slow
def test_what_a_failed_or_abandoned_program_leaves_is_ended(tmp_path: Path) -> None:
    def hangs(store: SQLiteStore, folder: Path) -> None:
        starts(store, folder)
        time.sleep(600)

    broken(hangs, tmp_path, deadline=1)
    assert living(tmp_path) == []
    crashes = crash_at_every_append(starts, folder=tmp_path)
    next(crashes)
    assert living(tmp_path)
    crashes.close()  # pyright: ignore
    assert living(tmp_path) == []


def test_of_a_long_output_the_end_is_shown(tmp_path: Path) -> None:
    def talks(store: SQLiteStore, folder: Path) -> None:
        print("first" + "é" * 30_000)
        raise LookupError("last")

    text = broken(talks, tmp_path)
    assert "only the last 10,000 characters" in text
    assert "LookupError: last" in text
    assert "first" not in text
    assert len(text) < 11_000


def test_a_program_that_ends_its_process_is_told(tmp_path: Path) -> None:
    def leaves(store: SQLiteStore, folder: Path) -> None:
        os._exit(0)

    assert "the program ended its process without returning (exit code 0)" in broken(
        leaves, tmp_path
    )


# --- with threads in this process ---


@pytest.fixture
def another_thread() -> object:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="another")
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.mark.slow
@pytest.mark.usefixtures("another_thread")
def test_beside_other_threads_children_come_from_a_fresh_process(tmp_path: Path) -> None:
    before = child_processes()
    crashes = list(crash_at_every_append(program, folder=tmp_path, points=[2, 5]))
    assert [str(crash.point) for crash in crashes] == [
        "before append 2",
        "after append 2",
        "before append 5",
        "after append 5",
    ]
    assert all(crash.after[: len(crash.before)] == crash.before for crash in crashes)
    assert child_processes() <= before


@pytest.mark.usefixtures("another_thread")
def test_beside_other_threads_a_closure_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"other threads \('another'\).*module-level"):
        list(crash_at_every_append(lambda store, folder: None, folder=tmp_path))


@pytest.mark.usefixtures("another_thread")
def test_beside_other_threads_a_refusal_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ConfigurationError):
        list(crash_at_every_append(lambda store, folder: None))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("another_thread")
def test_beside_other_threads_a_function_of_main_is_refused_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_main(store: SQLiteStore, folder: Path) -> None: ...

    monkeypatch.setattr(of_main, "__module__", "__main__")
    monkeypatch.setattr(of_main, "__qualname__", "of_main")
    with pytest.raises(
        ConfigurationError,
        match="'of_main' belongs to __main__, which is another module in each process",
    ):
        list(crash_at_every_append(of_main))


@pytest.mark.slow
@pytest.mark.usefixtures("another_thread")
def test_beside_other_threads_what_is_left_is_ended_too(tmp_path: Path) -> None:
    for _ in crash_at_every_append(starts, folder=tmp_path, points=[2], when=["after"]):
        assert len(living(tmp_path)) == 6
    assert living(tmp_path) == []


@pytest.mark.slow
def test_it_needs_no_test_runner() -> None:
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            (
                "import sys, holdfast.testing; print([m for m in ('pytest', 'hypothesis') if m in"
                " sys.modules])"
            ),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.strip() == "[]"


def test_its_public_names_are_these() -> None:
    assert testing.__all__ == [
        "Crash",
        "Point",
        "assert_replays",
        "crash_at_every_append",
        "kill_point",
    ]
    for name in testing.__all__:
        assert getattr(testing, name).__doc__


@pytest.mark.slow
def test_retries_of_the_tools_own_policy_are_no_repetition(tmp_path: Path) -> None:
    def retried(store: SQLiteStore, folder: Path) -> None:
        def flaky(context: ToolContext) -> str:
            if context.attempt < 3:
                raise RuntimeError("not yet")
            return "done"

        tool = Tool("flaky", "", flaky, retry=RetryPolicy(2, "none"))
        carry_on(
            Agent(
                ScriptedLLM(lambda request: ("flaky", {}) if len(request.messages) == 2 else "ok"),
                [tool],
            ),
            store,
        )

    # The appends are: message, status, agent, answer with the first start, two further starts,
    # result, ...
    crashes = list(
        crash_at_every_append(retried, folder=tmp_path, points=[5, 6, 7], when=["after"])
    )
    assert [result_of(crash.after).result.success for crash in crashes] == [False, False, True]


# --- recorded conversations ---


def recorded(path: Path, agent: Agent, *ids: str) -> None:
    with SQLiteStore(path, "process") as store:
        for id in ids:
            with Conversation(agent, store, id) as conversation:
                conversation.send_message("1 + 2?")
                conversation.run()


def calculator(prompt: str = "Calculate.", description: str = "Adds.") -> Agent:
    model = ScriptedLLM(
        lambda request: ("add", {"a": 1, "b": 2}) if len(request.messages) == 2 else "3."
    )
    return Agent(model, [Tool("add", description, lambda a, b: a + b)], system_prompt=prompt)


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    recorded(tmp_path / "s.db", calculator(), "one", "two")
    return tmp_path / "s.db"


@pytest.fixture
def export(tmp_path: Path, store_path: Path) -> Path:
    path = tmp_path / "two.jsonl"
    with SQLiteStore(store_path) as store:
        path.write_bytes(
            b"".join(line for id in ("one", "two") for line in export_conversation(store, id))
        )
    return path


def test_a_recording_of_any_form_replays(store_path: Path, export: Path) -> None:
    with SQLiteStore(store_path) as store:
        events = store.read("one")
        with Conversation(calculator(), store, "one") as conversation:
            forms = [
                store_path,
                str(store_path),
                export,
                conversation,
                conversation.state,
                events,
                ConversationState("x", events),
            ]
            for form in forms:
                assert_replays(form)
                assert_replays(form, calculator())


def test_a_difference_names_the_file_the_conversation_and_what_differs(
    export: Path, store_path: Path
) -> None:
    for path in (export, store_path):
        with pytest.raises(AssertionError) as caught:
            assert_replays(path, calculator("Calculate well.", "Adds two."))
        text = str(caught.value)
        for id in ("one", "two"):
            assert (
                f"{path}, conversation '{id}' does not replay the same: request 1, event 4:" in text
            )
        assert "-Calculate." in text
        assert "+Calculate well." in text
        assert '+  "description": "Adds two."' in text


def test_a_changed_journal_is_seen_without_an_agent(store_path: Path) -> None:
    with SQLiteStore(store_path) as store:
        events = store.read("one")
    altered = [
        (
            msgspec.structs.replace(event, result=ev.Result("4"))
            if isinstance(event, ev.ToolCallFinished)
            else event
        )
        for event in events
    ]
    with pytest.raises(AssertionError, match="encoded differently"):
        assert_replays(altered)


def test_a_stored_recording_is_not_touched(store_path: Path) -> None:
    before = store_path.read_bytes(), sorted(store_path.parent.iterdir())
    store_path.chmod(0o400)
    assert_replays(store_path)
    assert (store_path.read_bytes(), sorted(store_path.parent.iterdir())) == before


def test_a_recording_that_proves_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(AssertionError, match=r"no conversation in .*empty.jsonl"):
        assert_replays(tmp_path / "empty.jsonl")
    with pytest.raises(AssertionError, match="no model request"):
        assert_replays([])
    (tmp_path / "no.jsonl").write_text("no\n")
    with pytest.raises(ConfigurationError):
        assert_replays(tmp_path / "no.jsonl")


def test_what_is_no_recording_is_told_with_its_name(
    tmp_path: Path, store_path: Path, export: Path
) -> None:
    for path in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(StoreError, match=re.escape(f"assert_replays: {path}: ")):
            assert_replays(path)
    for wrong in (None, 7, [1, 2], b"x"):
        with pytest.raises(ConfigurationError, match="recorded takes a file"):
            assert_replays(wrong)  # pyright: ignore
    with pytest.raises(ConfigurationError, match="agent takes"):
        assert_replays(export, "agent")  # pyright: ignore
    export.write_bytes(export.read_bytes()[:-30])
    with pytest.raises(ConfigurationError, match=re.escape(f"{export}: line ")):
        assert_replays(export)
    store_path.write_bytes(store_path.read_bytes()[:100] + b"x" * 10_000)
    with pytest.raises(StoreError, match=re.escape(str(store_path))) as caught:
        assert_replays(store_path)
    assert "holdfast-replay-" not in str(caught.value)
