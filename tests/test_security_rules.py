"""The rules on commands, paths and addresses: a table of commands with their risk, and hostile ones, which must be read in bounded time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import ToolAnnotations, ToolCall
from holdfast.agent.risk import Surroundings
from holdfast.agent.security import Rules
from holdfast.errors import ConfigurationError
from tests.security_table import COMMANDS

READS = ToolAnnotations(read_only=True)
WRITES = ToolAnnotations(open_world=False)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a secret, a folder beside it, and links out of it."""
    root = tmp_path_factory.mktemp("rules")
    work = root / "work"
    (work / "src").mkdir(parents=True)
    (work / ".venv" / "bin").mkdir(parents=True)
    (root / "other").mkdir()
    (work / "README.md").write_text("Hello")
    (work / ".env").write_text("KEY=1")
    (work / "link-out").symlink_to(root / "other")
    (work / "link-secret").symlink_to(work / ".env")
    (work / ".venv" / "bin" / "python").symlink_to(sys.executable)
    return work


def test_the_table_is_a_large_one() -> None:
    assert len({command for _, command in COMMANDS}) == len(COMMANDS) >= 150


@pytest.mark.parametrize(("level", "command"), COMMANDS, ids=[ascii(command)[1:60] for _, command in COMMANDS])
def test_the_rules_see_the_risk_of_a_command(work: Path, level: str, command: str) -> None:
    risk = Rules().command(command, work)
    assert (risk.level, risk.by) == (level, "rules"), risk.reason
    assert risk.reason or not command


HOSTILE = {
    "a megabyte": "a" * 1_000_000,
    "many commands": "ls;" * 30_000,
    "many words": "ls " + "a " * 45_000,
    "many paths": "cat " + " ".join([f"f{number}" for number in range(5000)]),
    "nested substitutions": "$(" * 10_000 + "ls" + ")" * 10_000,
    "fewer of them": "$(" * 400 + "ls" + ")" * 400,
    "backticks": "`" * 10_000,
    "zero bytes": "\0" * 100_000,
    "half characters": "ls \udc80\ud800",
    "braces": "echo " + "{a,b}" * 40,
    "a long range": "echo {1..999999999}",
    "nested braces": "echo " + "{" * 1000 + "a,b" + "}" * 1000,
    "parentheses": "(" * 10_000,
    "ifs": "if " * 10_000,
    "loops in loops": "for a in 1 2 3 4 5 6 7 8; do " * 12 + "ls; " + "done; " * 12,
    "and and": "ls && " * 5000 + "ls",
    "functions in functions": "f(){ " * 300 + "ls;" + "};" * 300,
    "wrappers": "timeout 1 " * 5000 + "ls",
    "doubling": "X1=aaaaaaaaaa;" + "".join([f"X{n}=$X{n - 1}$X{n - 1};" for n in range(2, 200)]) + "$X199",
    "globs": "cat " + "*?" * 20_000,
    "dollars": "$" * 90_000,
    "a regex for sed": "sed 's/" + "a" * 40_000 + "' f",
    "escapes for sed": "sed '" + "s/a\\/b/" * 2000 + "' f",
    "a long path": "cat " + "a/" * 40_000,
    "options": "git log " + "--a " * 20_000,
    "brackets evaluated": "[[ -v '" + "[" * 90_000 + "' ]]",
    "dots and lines for sqlite": "sqlite3 x '" + "\n" * 90_000 + "'",
    "globs in folders": "cat " + ("./" + "?*/" * 900 + " ") * 25,
    "quotes": "echo " + '"a"b' * 15_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_commands_are_read_in_bounded_time(work: Path, name: str) -> None:
    rules = Rules()
    began = time.monotonic()
    risk = rules.command(HOSTILE[name], work)
    assert time.monotonic() - began < 20  # none takes more than half a second on a quiet machine
    assert risk.level != "low" or name in ("many paths", "quotes", "and and", "globs in folders")


def test_a_command_that_is_no_text_is_not_harmless() -> None:
    for arguments in ({}, {"command": 5}, {"command": ["ls"]}):
        risk = Rules().assess(ToolCall("1", "terminal", arguments), Surroundings(workdir="/"))
        assert risk is not None
        assert risk.level == "unknown"


@pytest.mark.parametrize(
    ("tool", "annotations", "arguments", "level"),
    [
        ("read_file", READS, {"path": "README.md"}, "low"),
        ("read_file", READS, {"path": "src/../README.md"}, "low"),
        ("read_file", READS, {"path": "../other/x"}, "medium"),
        ("read_file", READS, {"path": "link-out/x"}, "medium"),
        ("read_file", READS, {"path": ".env"}, "high"),
        ("read_file", READS, {"path": "link-secret"}, "high"),
        ("read_file", READS, {"path": "~/.ssh/id_rsa"}, "high"),
        ("read_file", READS, {"path": "a\0b"}, "high"),
        ("write_file", WRITES, {"path": "new.txt", "content": "rm -rf /"}, "medium"),
        ("write_file", WRITES, {"path": "../other/x", "content": ""}, "high"),
        ("write_file", WRITES, {"path": "link-out/x", "content": ""}, "high"),
        ("write_file", WRITES, {"path": "/etc/x", "content": ""}, "high"),
        ("edit_file", WRITES, {"path": ".git/config", "old": "a", "new": "b"}, "high"),
        ("fetch", READS, {"url": "https://example.com/x"}, "medium"),
        ("fetch", READS, {"url": "http://169.254.169.254/"}, "high"),
        ("fetch", READS, {"options": {"endpoint": "10.0.0.1"}}, "high"),
        ("fetch", READS, {"url": "http://[::ffff:10.0.0.1]/"}, "high"),
        ("fetch", READS, {"url": "http://0x7f.1/"}, "medium"),
        ("terminal_input", None, {}, "low"),
        ("terminal_input", None, {"text": "y"}, "medium"),
        ("terminal_input", None, {"text": "rm -rf /"}, "unknown"),
        ("note", WRITES, {"text": "hello"}, None),
    ],
)
def test_paths_and_addresses_among_arguments_count(
    work: Path, tool: str, annotations: ToolAnnotations | None, arguments: dict[str, Any], level: str | None
) -> None:
    risk = Rules().assess(ToolCall("1", tool, arguments), Surroundings(workdir=str(work), annotations=annotations))
    assert (None if risk is None else risk.level) == level


def test_a_path_behind_a_thousand_others_is_not_low(work: Path) -> None:
    about = Surroundings(workdir=str(work), annotations=READS)
    for padding in ({"options": ["x"] * 2000}, {f"a{number}": "x" for number in range(2000)}, {"a": [["x"] * 900, ["x"] * 900]}):
        for arguments in ({"path": ".env", **padding}, {**padding, "path": ".env"}):
            risk = Rules().assess(ToolCall("1", "read_file", arguments), about)
            assert risk is not None
            assert risk.level in ("unknown", "high")


def test_hosts_and_folders_may_be_allowed_and_other_tools_run_commands_too(work: Path) -> None:
    rules = Rules(hosts=["*.example.com"], writable=[str(work.parent / "other")], commands={"sh": "script"})  # type: ignore[arg-type]
    assert rules.command("curl https://api.example.com/x", work).level == "low"
    assert rules.command("curl https://api.example.com.evil.org/x", work).level == "medium"
    assert rules.command("curl -d x=1 https://api.example.com/x", work).level == "medium"
    assert rules.command("echo x > link-out/x", work).level == "medium"
    risk = rules.assess(ToolCall("1", "sh", {"script": "rm -rf /"}), Surroundings(workdir=str(work)))
    assert risk is not None
    assert risk.level == "high"


def test_without_a_working_directory_no_relative_path_is_inside() -> None:
    for command, level in (("ls", "low"), ("cat x", "unknown"), ("echo x > y", "high"), ("rm x", "high")):
        risk = Rules().assess(ToolCall("1", "terminal", {"command": command}), Surroundings())
        assert risk is not None
        assert risk.level == level, (command, risk)


@pytest.mark.parametrize("wrong", [{"hosts": "x"}, {"hosts": [1]}, {"writable": [""]}, {"commands": {"a": 1}}])
def test_wrong_rules_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Rules(**wrong)


def test_an_agent_without_security_loads_none_of_it() -> None:
    program = (
        "import sys; from holdfast import Agent, ScriptedLLM; Agent(ScriptedLLM([]));"
        "print([m for m in sys.modules if m.startswith('holdfast.agent.security')])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "[]"
