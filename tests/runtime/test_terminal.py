"""The terminal: one shell per conversation, bounded output, and an end for each process that it
starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.content import ToolResult
from holdfast.errors import ToolCancelled
from holdfast.runtime import LocalRuntime, processes
from holdfast.runtime.output import CommandOutput, clean
from holdfast.tools import Cancellation, Tool, ToolContext
from tests.leftovers import Owned
from tests.waiting import until


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(tmp_path) as runtime:
        yield runtime


def tool(runtime: LocalRuntime, name: str) -> Tool:
    return next(tool for tool in runtime.tools if tool.name == name)


def call(runtime: LocalRuntime, name: str, /, **arguments: object) -> ToolResult:
    return tool(runtime, name).run(arguments, ToolContext("c1", "1.0"))


def output(result: ToolResult) -> str:
    """Return the text without the lines that the runtime adds."""
    return "\n".join(line for line in result.text.splitlines() if not line.startswith("["))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def read_pid(path: Path) -> int:
    assert until(lambda: path.exists() and path.read_text().strip().isdigit())
    return int(path.read_text())


# --- state that stays between commands ---


def test_the_directory_and_variables_last_between_commands(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    result = runtime.run_command("cd sub; A=1; export B=2; readonly C='3 4'")
    assert "[exported variables changed for the next commands: B]" in result.text
    result = runtime.run_command(
        "pwd; echo $A $B $C; env | grep '^[ABC]='; cd - >/dev/null; unset B; A=5"
    )
    assert output(result).splitlines() == [str(tmp_path / "sub"), "1 2 3 4", "B=2"]
    assert result.meta["cwd"] == str(tmp_path)
    assert output(runtime.run_command("pwd; echo $A ${B-unset}")).splitlines() == [
        str(tmp_path),
        "5 unset",
    ]


@pytest.mark.parametrize(
    "value",
    ["a\nb\tc\r", "'\"$`\\!* \x01\x7f", "é\u2028😀", "", " ", 'declare -x X="1"\n', "\udcff"],
)
def test_a_variable_keeps_its_value_whatever_it_holds(runtime: LocalRuntime, value: str) -> None:
    quoted = "'" + value.replace("'", "'\\''") + "'"
    runtime.run_command(f"A={quoted}; export B={quoted}")
    runtime.run_command(
        f"if [[ $A == {quoted} && $B == {quoted} ]]; then echo same; else declare -p A B; fi > out"
    )
    assert runtime.read_file("out") == "same\n"


def test_the_path_of_a_link_to_the_directory_stays_as_it_was_typed(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    runtime.run_command("cd link")
    assert output(runtime.run_command("pwd")) == str(tmp_path / "link")


def test_a_directory_that_was_deleted_is_left_for_the_working_directory(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    runtime.run_command("mkdir sub; cd sub; rmdir ../sub")
    result = runtime.run_command("pwd")
    assert output(result) == str(tmp_path)
    assert f"now in {tmp_path}" in result.text


def test_functions_aliases_options_and_traps_end_with_their_command_which_is_told_of_functions(
    runtime: LocalRuntime,
) -> None:
    result = runtime.run_command(
        "f() { echo from f; }; f; shopt -s expand_aliases; alias ls='echo alias'; set -euo"
        " pipefail; set -f"
    )
    assert output(result) == "from f"
    assert (
        "[functions last for one command only: f. To keep them, write a file and source it]"
        in result.text
    )
    result = runtime.run_command("type f; ls; false | true; echo $? $NOTHING")
    assert output(result).splitlines() == ["bash: line 1: type: f: not found", "0"]


def test_variables_that_are_too_large_for_the_next_command_are_named(runtime: LocalRuntime) -> None:
    result = runtime.run_command(
        "export BIG=$(head -c 200000 /dev/zero | tr '\\0' x) SMALL=1; PLAIN=$BIG"
    )
    assert "[variables too large to keep for the next command: BIG]" in result.text
    assert output(runtime.run_command("echo ${#BIG} $SMALL ${#PLAIN}")) == "0 1 200000"
    result = runtime.run_command("KEPT=1; HUGE=$(head -c 5000000 /dev/zero | tr '\\0' x)", 10)
    assert "directory and variables are as they were before it" in result.text
    assert output(runtime.run_command("echo ${#HUGE} $SMALL")) == "0 1"


def test_the_exit_code_of_a_command_is_what_the_next_one_sees(runtime: LocalRuntime) -> None:
    failed = runtime.run_command("(exit 7)")
    assert failed.meta["exitCode"] == 7
    assert not failed.is_error
    assert "[exit code 7]" in failed.text
    assert output(runtime.run_command("echo $?")) == "7"


def test_two_conversations_have_two_shells(runtime: LocalRuntime) -> None:
    runtime.run_command("X=one; cd /", conversation_id="a")
    runtime.run_command("X=two", conversation_id="b")
    assert output(runtime.run_command("echo $X $PWD", conversation_id="a")) == "one /"
    assert output(runtime.run_command("echo $X", conversation_id="b")) == "two"


def test_two_conversations_run_at_the_same_time(runtime: LocalRuntime, tmp_path: Path) -> None:
    # Each waits for the other's file: in sequence, both would time out.
    def meet(mine: str, other: str, results: dict[str, ToolResult]) -> None:
        command = f"touch {mine}; while [ ! -e {other} ]; do sleep 0.01; done"
        results[mine] = runtime.run_command(command, 5, conversation_id=mine)

    results: dict[str, ToolResult] = {}
    threads = [
        threading.Thread(target=meet, args=(*names, results)) for names in (("a", "b"), ("b", "a"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[name].meta["exitCode"] for name in "ab"] == [0, 0]


def test_parallel_calls_of_one_conversation_take_turns(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    command = "echo start >> log; sleep 0.05; echo end >> log"
    threads = [threading.Thread(target=runtime.run_command, args=(command,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "log").read_text().split() == ["start", "end"] * 4


# --- robust against models' commands ---


def test_a_command_that_exits_leaves_its_directory_and_variables(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    result = runtime.run_command("cd sub; X=1; echo before; exit 3; echo after")
    assert result.text == f"before\n[exit code 3, now in {tmp_path / 'sub'}]"
    assert not result.is_error
    assert output(runtime.run_command("echo $? $X; pwd")).splitlines() == [
        "3 1",
        str(tmp_path / "sub"),
    ]


def test_set_e_ends_a_command_at_what_fails_and_holds_for_no_other(runtime: LocalRuntime) -> None:
    result = runtime.run_command("set -e; X=1; echo one; false; echo two")
    assert result.text == "one\n[exit code 1]"
    assert output(runtime.run_command("false; echo $X")) == "1"


def test_a_command_that_replaces_its_bash_leaves_things_as_they_were_and_says_so(
    runtime: LocalRuntime,
) -> None:
    runtime.run_command("X=1")
    for command in ("X=2; cd /; exec echo gone", "X=2; cd /; echo gone; kill -9 $$"):
        result = runtime.run_command(command)
        assert output(result) == "gone"
        assert (
            "[the command ended its own bash: directory and variables are as they were before it]"
            in result.text
        )
        assert output(runtime.run_command("echo $X $PWD")) == f"1 {runtime.workdir}"


@pytest.mark.parametrize(
    "command", ["echo 'open", "if true; then", "fi", "( echo", 'echo "a', "${", "case x in"]
)
def test_a_syntax_error_is_reported_and_the_shell_lives(
    runtime: LocalRuntime, command: str
) -> None:
    runtime.run_command("KEPT=yes")
    result = runtime.run_command(command, 5)
    assert result.meta["exitCode"] != 0
    assert not result.is_error
    assert "bash:" in result.text
    assert output(runtime.run_command("echo $KEPT")) == "yes"


def test_heredocs_and_scripts_of_many_lines_run_as_they_are(runtime: LocalRuntime) -> None:
    result = runtime.run_command(
        "cat <<'EOF'\n$HOME `x` \"quoted\"\nEOF\nfor i in 1 2; do\n  echo $i\ndone\n# the end"
    )
    assert output(result).splitlines() == ['$HOME `x` "quoted"', "1", "2"]


def test_an_unset_variable_under_set_u_does_not_end_the_shell(runtime: LocalRuntime) -> None:
    assert "unbound" in runtime.run_command("KEPT=1; set -u; echo $NOTHING").text
    assert output(runtime.run_command("set +u; echo $KEPT")) == "1"


def test_a_command_that_reads_stdin_gets_an_empty_one_and_ends(runtime: LocalRuntime) -> None:
    result = runtime.run_command(
        "cat; read x; echo done; python3 -c 'import sys; print(repr(sys.stdin.read()))'", 5
    )
    assert output(result).splitlines() == ["done", "''"]


def test_bytes_that_are_no_text_are_shown_as_replacements(runtime: LocalRuntime) -> None:
    assert output(runtime.run_command(r"printf 'a\xff\x00b'")) == "a\ufffdb"


def test_output_without_a_line_end_is_complete(runtime: LocalRuntime) -> None:
    assert runtime.run_command("printf abc").text == "abc\n[exit code 0]"
    assert runtime.run_command("true").text == "(no output)\n[exit code 0]"


def test_a_background_job_does_not_hold_the_answer_and_its_output_goes_to_a_file(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    start = time.monotonic()
    result = runtime.run_command(
        "{ while [ ! -e go ]; do sleep 0.01; done; echo late; } & echo first", 10
    )
    assert time.monotonic() - start < 20
    assert "first" in result.text
    assert "late" not in result.text
    (tmp_path / "go").touch()
    file = Path(result.meta["outputFile"])
    assert until(lambda: "late" in file.read_text())


def test_a_command_sees_no_variable_of_this_process_and_all_that_env_gives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    with LocalRuntime(tmp_path, env={"GIVEN": "yes"}) as runtime:
        text = runtime.run_command("env; echo; cat /proc/$$/environ | tr '\\0' '\\n'").text
    assert "sk-planted" not in text
    assert "GIVEN=yes" in text


def test_user_commands_cannot_reach_or_hold_the_channel_that_reports_exit_codes(
    runtime: LocalRuntime,
) -> None:
    result = runtime.run_command("ls /proc/self/fd; echo forged >&250; sleep 5 & true", 3)
    assert output(result).splitlines()[:4] == ["0", "1", "2", "3"]
    assert "250: Bad file descriptor" in result.text
    assert result.meta["exitCode"] == 0


def test_a_shell_whose_temporary_folder_was_deleted_still_works(runtime: LocalRuntime) -> None:
    runtime.run_command("true")
    folder = runtime.terminal.outputs.parent
    assert runtime.run_command(f"rm -rf {folder}", 5).meta["exitCode"] == 0
    assert output(runtime.run_command("echo still", 5)) == "still"


# --- output ---


def test_escape_codes_and_progress_bars_are_shown_as_they_look_last() -> None:
    assert (
        clean("\x1b[1;31mred\x1b[0m \x1b]0;title\x07x \x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\")
        == "red x link"
    )
    assert clean("10%\r50%\r100%\ndone\r\n") == "100%\ndone\n"
    assert clean("a_\x08b\x00\x07c") == "abc"
    start = time.process_time()
    clean("x" * 1_000_000 + "\r" + "\x1b]" * 200_000)
    assert time.process_time() - start < 2


def test_a_long_output_is_cut_in_the_middle_and_whole_in_a_file_that_the_read_tool_may_read(
    runtime: LocalRuntime,
) -> None:
    result = call(runtime, "terminal", command="seq 1 50000; echo -e '\\x00'")
    assert len(result.text) < 31_000
    lines = result.text.splitlines()
    assert lines[0] == "1"
    assert "50000" in lines
    middle = next(line for line in lines if "left out" in line)
    assert result.meta["outputFile"] in middle
    assert result.meta["truncated"] is True
    visible_size = sum(len(line) + 1 for line in lines if line.isdigit())
    whole = sum(len(str(n)) + 1 for n in range(1, 50001))
    assert f"{whole - visible_size:,}" in middle or f"{whole - visible_size + 1:,}" in middle
    page = call(runtime, "read_file", path=result.meta["outputFile"], offset=25_000, limit=2)
    assert page.text.splitlines()[:2] == [" 25000\t25000", " 25001\t25001"]
    with pytest.raises(Exception, match="outside"):
        call(runtime, "write_file", path=result.meta["outputFile"], content="x")


@pytest.mark.slow
def test_a_hundred_megabytes_are_bounded_in_memory_and_on_disk(runtime: LocalRuntime) -> None:
    before = Path("/proc/self/statm").read_text().split()[1]
    result = runtime.run_command(
        "head -c 120000000 /dev/zero | tr '\\0' x | fold -w 99; echo; echo the end", 30
    )
    after = Path("/proc/self/statm").read_text().split()[1]
    assert result.meta["exitCode"] == 0
    assert "the end" in result.text
    assert os.path.getsize(result.meta["outputFile"]) == 100 * 1024 * 1024
    assert (int(after) - int(before)) * os.sysconf("SC_PAGE_SIZE") < 40_000_000


@pytest.mark.parametrize(
    "sizes", [[10, 20], [200_000], [100_000, 50_000, 3_000_000, 7], [5_000_000] * 3]
)
def test_an_output_keeps_its_head_and_its_tail_whatever_the_pieces(
    tmp_path: Path, sizes: list[int]
) -> None:
    command_output = CommandOutput(tmp_path / "out", cap=1_000_000)
    data = b"".join(bytes([97 + n]) * size for n, size in enumerate(sizes))
    at = 0
    for size in sizes:
        command_output.append(data[at : at + size])
        at += size
    for closed in (False, True):
        text, cut, end = command_output.text(0, 10_000, lambda count: f"{count} out")
        assert end == len(data)
        assert text[:100] == data[:100].decode()
        assert text[-5:] == data[-5:].decode()
        assert cut is (len(data) > 10_000)
        if not closed:
            command_output.close()


# --- ends ---


@pytest.mark.slow
def test_a_timeout_kills_the_whole_process_group_and_keeps_the_shell(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    runtime.run_command("KEPT=1")
    start = time.monotonic()
    result = runtime.run_command(
        "sleep 300 & echo $! > a; (sleep 301; true) & (setsid sleep 302 & echo $! > b); sh -c 'echo"
        " $$ > c; sleep 303; true'; echo no",
        0.4,
    )
    assert time.monotonic() - start < 20
    assert result.is_error
    assert result.error is not None
    assert result.error.type == "timeout"
    assert result.meta["timedOut"] is True
    assert "timed out after 0.4 s" in result.text
    assert "no" not in output(result).split()
    assert not any(alive(read_pid(tmp_path / name)) for name in "abc")
    assert runtime.process_groups() == []
    assert output(runtime.run_command("echo $KEPT")) == "1"


def test_a_timeout_spares_what_an_earlier_command_left_in_the_background(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    runtime.run_command("sleep 300 & echo $! > server")
    runtime.run_command("sleep 301", 0.1)
    assert alive(read_pid(tmp_path / "server"))


@pytest.mark.slow
def test_a_command_that_ignores_interrupts_is_killed(runtime: LocalRuntime) -> None:
    script = (
        "import signal, time; signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN);"
        " print('up'); time.sleep(300)"
    )
    start = time.monotonic()
    runtime.run_command("KEPT=1")
    result = runtime.run_command(f'KEPT=2; python3 -c "{script}"\necho after', 0.5)
    assert time.monotonic() - start < 20
    assert "up" in result.text
    assert "after" not in output(result)
    assert "[directory and variables are as they were before it]" in result.text
    assert output(runtime.run_command("echo $KEPT")) == "1"


def test_a_bash_that_ignores_interrupts_is_killed(runtime: LocalRuntime) -> None:
    start = time.monotonic()
    result = runtime.run_command("trap '' INT; while :; do sleep 0.01; done", 0.1)
    assert time.monotonic() - start < 20
    assert "timed out" in result.text
    assert output(runtime.run_command("echo ok")) == "ok"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "while :; do :; done",
        "sleep 300 | cat",
        "x=$(sleep 300)",
        "kill -STOP $$",
        "sleep 300 & wait",
        "cat <(sleep 300)",
        "yes",
    ],
)
def test_cancelling_ends_whatever_runs_soon(
    runtime: LocalRuntime, tmp_path: Path, command: str
) -> None:
    cancelled = Cancellation()

    def cancel() -> None:
        until((tmp_path / "begun").exists)
        cancelled.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    start = time.monotonic()
    result = tool(runtime, "terminal").run(
        {"command": f"touch begun; {command}"}, ToolContext("c1", cancelled=cancelled)
    )
    canceller.join()
    assert time.monotonic() - start < 20
    assert "interrupted" in result.text
    assert result.error is not None
    assert result.error.type == "cancelled"
    assert until(lambda: runtime.process_groups() == [])  # reaping takes a moment
    assert "ok" in call(runtime, "terminal", command="echo ok").text


@pytest.mark.slow
def test_a_call_that_waits_for_its_turn_can_be_cancelled(runtime: LocalRuntime) -> None:
    ends = Cancellation()
    first = threading.Thread(
        target=runtime.run_command, args=("sleep 30",), kwargs={"cancelled": ends}
    )
    first.start()
    assert until(lambda: runtime.process_groups())
    cancelled = Cancellation()
    threading.Timer(0.05, cancelled.cancel).start()
    start = time.monotonic()
    with pytest.raises(Exception, match="cancelled"):
        runtime.run_command("echo never", cancelled=cancelled)
    assert time.monotonic() - start < 20
    ends.cancel()
    first.join()


def test_closing_the_conversation_ends_its_shell_and_daemons_and_no_other(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    cleanups: dict[object, object] = {}
    context = ToolContext("c1", on_close=lambda key, cleanup: cleanups.setdefault(key, cleanup))
    commands = (
        "setsid nohup sleep 300 >/dev/null 2>&1 & echo $! > pid; env -i sleep 301 & echo $! >"
        " plain; sleep 302 & echo $! > job"
    )
    result = tool(runtime, "terminal").run({"command": commands}, context)
    assert (
        f"still running in the background: process {read_pid(tmp_path / 'pid')},"
        f" {read_pid(tmp_path / 'plain')}, {read_pid(tmp_path / 'job')}]" in result.text
    )
    tool(runtime, "terminal").run({"command": "kill $(cat job)"}, context)
    runtime.run_command("sleep 303 & echo $! > other", conversation_id="c2")
    assert alive(read_pid(tmp_path / "pid"))
    assert alive(read_pid(tmp_path / "plain"))
    assert len(cleanups) == 1
    next(iter(cleanups.values()))()  # type: ignore[operator]
    assert not alive(read_pid(tmp_path / "pid"))
    assert not alive(read_pid(tmp_path / "plain"))
    assert alive(read_pid(tmp_path / "other"))
    assert len(list(runtime.terminal.outputs.parent.glob("shell-*"))) == 1


def test_closing_ends_a_running_command_and_tells_who_waits_for_it(tmp_path: Path) -> None:
    runtime = LocalRuntime(tmp_path)
    results: list[ToolResult] = []
    thread = threading.Thread(
        target=lambda: results.append(runtime.run_command("echo up; echo $$ > pid; sleep 300"))
    )
    thread.start()
    shell = read_pid(tmp_path / "pid")
    runtime.close()
    thread.join(30)
    assert "the shell was closed" in results[0].text
    assert not alive(shell)


ELSEWHERE = """
import os, subprocess, sys, time
from holdfast.runtime import processes
processes._HAS_PROC = sys.argv[1] == "True"
marks, count = sys.argv[3:], int(sys.argv[2])
# Ours are spared, whatever they carry, and so are we.
own = subprocess.Popen(["sleep", "300"], start_new_session=True)
deadline = time.monotonic() + 10
while len(processes.of_owners(marks)) != count and time.monotonic() < deadline:
    time.sleep(0.02)
found = len(processes.of_owners(marks))
print(found, processes.end_owned(marks), processes.end_owned(marks), own.poll())
own.kill()
"""


@pytest.mark.slow
@pytest.mark.parametrize("proc", [True, False])
def test_what_carries_an_owners_mark_can_be_ended_from_elsewhere(
    tmp_path: Path, proc: bool
) -> None:
    mark, other_mark = os.urandom(8).hex(), os.urandom(8).hex()
    with LocalRuntime(tmp_path) as ours, LocalRuntime(tmp_path) as other:
        command = (
            "sleep 300 & setsid sleep 301 & "
            + ("env -i sleep 302 & " if proc else "")
            + "echo $$ > pid; wait"
        )
        ours.terminal.run(command, wait=0, mark=lambda: {processes.OWNER: mark})
        other.terminal.run("sleep 303", wait=0, mark=lambda: {processes.OWNER: other_mark})
        groups, spared = ours.process_groups(), other.process_groups()
        arguments = [str(proc), "4" if proc else "3", mark, "none"]
        environment = {
            **os.environ,
            **({processes.OWNER: mark} if proc else {}),
        }  # as a program that the dead owner's agent had run
        process = subprocess.run(
            [sys.executable, "-c", ELSEWHERE, *arguments],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        assert process.stdout.split() == [arguments[1], "True", "True", "None"]
        assert until(lambda: not any(alive(group) for group in groups))
        assert all(alive(group) for group in spared)


def test_an_exit_trap_runs_at_the_end_of_its_command(runtime: LocalRuntime) -> None:
    result = runtime.run_command("X=1; trap 'echo cleaned' EXIT; echo work; (exit 4)")
    assert result.text == "work\ncleaned\n[exit code 4]"
    assert output(runtime.run_command("echo $X")) == "1"


# --- commands that continue ---


def test_a_command_that_goes_on_is_followed_until_its_end(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    first = call(
        runtime,
        "terminal",
        command="echo one; while [ ! -e go ]; do sleep 0.01; done; echo two; (exit 4)",
        wait=0.3,
    )
    assert first.meta["running"] is True
    assert not first.is_error
    assert "one" in first.text
    assert "still running" in first.text
    nothing = call(runtime, "terminal_input", wait=0)
    assert "no new output" in nothing.text
    (tmp_path / "go").touch()
    last = call(runtime, "terminal_input", wait=5)
    assert output(last) == "two"
    assert last.meta["exitCode"] == 4


def test_a_second_command_is_refused_while_one_still_runs(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    call(
        runtime, "terminal", command="while [ ! -e go ]; do sleep 0.01; done; echo finished", wait=0
    )
    busy = call(runtime, "terminal", command="echo x")
    assert busy.is_error
    assert "still running" in busy.text
    (tmp_path / "go").touch()
    assert "finished" in call(runtime, "terminal_input", wait=5).text
    assert "No command is running" in call(runtime, "terminal_input").text


def test_the_end_of_a_command_that_went_on_is_told_with_the_next(runtime: LocalRuntime) -> None:
    call(runtime, "terminal", command="sleep 0.1; echo finished; (exit 6)", wait=0)
    results: list[ToolResult] = []

    def next_one() -> bool:  # refused while the first still runs
        results.append(call(runtime, "terminal", command="echo second"))
        return not results[-1].is_error

    until(next_one)
    result = results[-1]
    assert output(result).splitlines() == ["finished", "", "second"]
    assert "[exit code 6]" in result.text


def test_a_command_that_starts_while_its_conversation_is_closed_is_ended(
    runtime: LocalRuntime,
) -> None:
    runtime.run_command("true", conversation_id="c")

    def close_meanwhile() -> dict[str, str]:
        runtime.close_conversation("c")
        return {}

    result = runtime.terminal.run("sleep 60", "c", wait=20, mark=close_meanwhile)
    assert result.meta["endedBy"] == "close"
    assert not runtime.process_groups()


@pytest.mark.slow
def test_input_reaches_an_interactive_command_and_eof_ends_it(runtime: LocalRuntime) -> None:
    call(runtime, "terminal", command="python3 -i -q", wait=0.3, interactive=True)
    start = time.monotonic()
    answer = call(runtime, "terminal_input", text="print(6 * 7)", wait=10)
    assert time.monotonic() - start < 20
    assert "42" in answer.text
    end = call(runtime, "terminal_input", control="eof", wait=5)
    assert end.meta["exitCode"] == 0


def test_a_command_without_input_says_how_to_get_some(runtime: LocalRuntime) -> None:
    call(runtime, "terminal", command="sleep 300", wait=0)
    assert "interactive" in call(runtime, "terminal_input", text="x").text
    assert call(runtime, "terminal_input", control="kill").meta["endedBy"] == "kill"


def test_input_that_nobody_reads_is_cut_and_never_blocks(runtime: LocalRuntime) -> None:
    call(runtime, "terminal", command="sleep 300", wait=0, interactive=True)
    assert (
        "bytes were taken" in call(runtime, "terminal_input", text="x" * 1_000_000, wait=0.1).text
    )


@pytest.mark.slow
def test_an_interrupt_is_ctrl_c(runtime: LocalRuntime) -> None:
    call(runtime, "terminal", command="KEPT=1; sleep 300; echo after", wait=0.1)
    result = call(runtime, "terminal_input", control="interrupt", wait=3)
    assert result.meta["exitCode"] == 130
    assert "after" not in result.text
    script = (
        "import time\ntry:\n    print('up')\n    time.sleep(300)\nexcept KeyboardInterrupt:\n   "
        " print('caught')"
    )
    call(runtime, "terminal", command=f'python3 -c "{script}"', wait=0.5)
    assert "caught" in call(runtime, "terminal_input", control="interrupt", wait=3).text
    assert "1" in call(runtime, "terminal", command="echo $KEPT").text


@pytest.mark.slow
def test_an_interrupt_at_any_moment_leaves_a_shell_that_answers(runtime: LocalRuntime) -> None:
    runtime.run_command("KEPT=1")
    for n in range(60):
        cancelled = Cancellation()
        timer = threading.Timer(n * 0.00005, cancelled.cancel)
        timer.start()
        try:
            runtime.run_command("x=$(echo a); true | cat; sleep 0.001", 10, cancelled=cancelled)
        except ToolCancelled:  # before it was started
            pass
        timer.join()
        assert runtime.run_command("echo $KEPT", 10).text == "1\n[exit code 0]"


def test_the_timeout_holds_for_a_command_that_nobody_waits_for(runtime: LocalRuntime) -> None:
    call(runtime, "terminal", command="sleep 300", wait=0, timeout=0.2)
    assert call(runtime, "terminal_input", wait=3).meta["timedOut"] is True


# --- no leftovers ---


@pytest.mark.slow
def test_nothing_is_left_after_close() -> None:
    before = Owned()
    runtime = LocalRuntime()
    folder = runtime.terminal.outputs.parent
    for n in range(3):
        runtime.run_command("sleep 300 & seq 1 100000; exec 5>&1", conversation_id=str(n))
    runtime.run_command("exit 1")
    runtime.run_command("sleep 300", 0.1)
    runtime.terminal.run("cat", wait=0, interactive=True)
    assert until(lambda: len(runtime.process_groups()) == 4)  # of three sleeps and a cat
    groups = runtime.process_groups()
    runtime.close()
    runtime.close()
    before.wait_until_released()
    assert not folder.exists()
    assert not any(alive(group) for group in groups)
    with pytest.raises(OSError, match="closed"):
        runtime.run_command("true")


@pytest.mark.slow
def test_a_runtime_that_never_ran_a_command_has_no_thread_and_no_process(tmp_path: Path) -> None:
    before = Owned()
    with LocalRuntime(workdir=tmp_path) as runtime:
        assert runtime.process_groups() == []
        assert [
            one for one in before.new() if not one.endswith("/.holdfast-owner")
        ] == []  # the lock of its temporary folder
    assert before.new() == []


@pytest.mark.slow
def test_many_commands_leave_no_descriptor_open(runtime: LocalRuntime) -> None:
    runtime.run_command("true")
    before = Owned()
    for _ in range(100):
        runtime.run_command("echo x")
    assert before.new() == []


def test_a_shell_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with LocalRuntime(tmp_path, shell="no-such-shell") as runtime:
        result = runtime.run_command("true")
        assert result.is_error
        assert "no-such-shell" in result.text


def test_a_command_can_be_interrupted_also_where_this_process_ignores_interrupts(
    tmp_path: Path,
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with LocalRuntime(tmp_path) as runtime:
            runtime.terminal.run("sleep 300", wait=0.2)
            assert "exit code 130" in runtime.terminal.send(control="interrupt", wait=10).text
    finally:
        signal.signal(signal.SIGINT, before)


# --- reports while a command runs ---


def progress_of(runtime: LocalRuntime, command: str, **arguments: object) -> list[str]:
    texts: list[str] = []
    context = ToolContext("c1", "1.0", progress=texts.append)
    tool(runtime, "terminal").run({"command": command, **arguments}, context)
    return texts


@pytest.mark.slow
def test_the_end_of_the_output_is_reported_while_a_command_runs(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    texts: list[str] = []

    def go_on(text: str) -> None:
        texts.append(text)
        (tmp_path / f"{len(texts)}").touch()

    wait = "until test -e $n; do sleep 0.02; done"
    script = f"printf '\\033[31mred\\033[0m\\n'; n=1; {wait}; seq 1 5000; n=2; {wait}; echo end"
    context = ToolContext("c1", "1.0", progress=go_on)
    result = tool(runtime, "terminal").run({"command": script}, context)
    assert texts[0] == "\x1b[31mred\x1b[0m\n"  # as the program wrote it
    assert texts[1].endswith("\n4999\n5000\n")
    assert 0 < len(texts[1]) <= 4000
    assert int(texts[1].partition("\n")[0]) > 4000  # it begins with a whole line
    assert "end" in output(result)


def test_a_short_command_reports_nothing(runtime: LocalRuntime) -> None:
    assert progress_of(runtime, "echo hello") == []


@pytest.mark.slow
def test_a_silent_command_reports_nothing_and_its_wait_ends_in_time(runtime: LocalRuntime) -> None:
    began = time.monotonic()
    assert progress_of(runtime, "sleep 30", wait=1) == []
    assert time.monotonic() - began < 20
