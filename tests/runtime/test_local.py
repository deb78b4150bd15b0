"""`LocalRuntime` as a whole: its arguments, its tools, clones, and the cost of its import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import ConfigurationError, PathRefused, RuntimeFault
from holdfast.runtime import LocalRuntime, Runtime, clone
from holdfast.tools import Tool, ToolManager


def git(*arguments: str, cwd: Path) -> None:
    identity = [
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.com",
        "-c",
        "init.defaultBranch=main",
    ]
    subprocess.run(["git", *identity, *arguments], cwd=cwd, check=True, capture_output=True)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    folder = tmp_path / "origin.git"
    folder.mkdir()
    git("init", "-q", cwd=folder)
    (folder / "a.txt").write_text("main")
    git("add", ".", cwd=folder)
    git("commit", "-qm", "one", cwd=folder)
    git("checkout", "-qb", "other", cwd=folder)
    (folder / "a.txt").write_text("other")
    git("commit", "-qam", "two", cwd=folder)
    git("checkout", "-q", "main", cwd=folder)
    return folder


def test_without_a_workdir_there_is_a_temporary_one_removed_at_close() -> None:
    with LocalRuntime() as runtime:
        assert isinstance(runtime, Runtime)
        runtime.write_file("a.txt", "x")
        assert runtime.run_command("cat a.txt").text.startswith("x\n")
        workdir = runtime.workdir
        assert workdir.is_dir()
    assert not workdir.exists()


def test_a_given_workdir_stays(tmp_path: Path) -> None:
    with LocalRuntime(str(tmp_path)) as runtime:
        assert runtime.run_command("pwd").text.startswith(str(tmp_path.resolve()))
        runtime.write_file("a.txt", "x")
    assert (tmp_path / "a.txt").read_text() == "x"


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for wrong, argument in (
        ({"workdir": tmp_path / "none"}, "workdir"),
        ({"workdir": file}, "workdir"),
        ({"allow_outside": "/tmp"}, "allow_outside"),
        ({"env": {"A": 1}}, "env"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"output_limit": 3}, "output_limit"),
        ({"command_timeout": 0}, "command_timeout"),
    ):
        with pytest.raises(ConfigurationError, match=argument):
            LocalRuntime(**wrong)  # type: ignore[arg-type]


def test_tools_can_be_added_to_and_are_the_same_as_get_tools(tmp_path: Path) -> None:
    with LocalRuntime(tmp_path) as runtime:
        more = [*runtime.tools, Tool("more", "More.", lambda: "x")]
        assert [tool.name for tool in more] == [
            *("terminal", "terminal_input", "read_file", "write_file", "edit_file", "glob", "grep"),
            "more",
        ]
        assert runtime.tools + more[-1:] == more
        assert len(runtime.get_tools()) == 7
        manager = ToolManager(more)
        assert manager.call("terminal", {"command": "echo hi"}).text == "hi\n[exit code 0]"


def test_tools_declare_what_they_do(tmp_path: Path) -> None:
    with LocalRuntime(tmp_path) as runtime:
        tools = {tool.name: tool for tool in runtime.tools}
    reads = {name for name, tool in tools.items() if tool.annotations.read_only}
    assert reads == {"read_file", "glob", "grep"}
    assert {name for name, tool in tools.items() if tool.annotations.repeatable} == reads | {
        "write_file"
    }
    for tool in tools.values():
        assert tool.description
        assert "{timeout}" not in str(tool.input_schema)
        for name, parameter in tool.input_schema["properties"].items():
            assert parameter.get("description"), (tool.name, name)
            assert name != "context"


def test_tool_definitions_are_the_same_in_every_folder(tmp_path: Path) -> None:
    with LocalRuntime(tmp_path) as one, LocalRuntime() as two:
        texts = [
            [(tool.description, tool.input_schema) for tool in runtime.tools]
            for runtime in (one, two)
        ]
    assert texts[0] == texts[1]


def test_a_repository_is_cloned_from_a_path_a_url_and_at_a_branch(
    tmp_path: Path, origin: Path
) -> None:
    with LocalRuntime() as runtime:
        assert runtime.clone_repo(str(origin)) == runtime.workdir / "origin"
        assert runtime.read_file("origin/a.txt") == "main"
        where = runtime.clone_repo(f"file://{origin}", branch="other", target="deep/er")
        assert where == runtime.workdir / "deep/er"
        assert (where / "a.txt").read_text() == "other"
        with pytest.raises(RuntimeFault, match="exists and is not empty"):
            runtime.clone_repo(str(origin))
        with pytest.raises(RuntimeFault, match="Remote branch none not found"):
            runtime.clone_repo(str(origin), branch="none", target="x")
        with pytest.raises(RuntimeFault, match="does not exist"):
            runtime.clone_repo("./nothing")
        with pytest.raises(PathRefused):
            runtime.clone_repo(str(origin), target="../x")
        with pytest.raises(RuntimeFault) as failed:
            runtime.clone_repo("http://user:planted@127.0.0.1:9/a/b.git")
        assert "planted" not in str(failed.value)


def test_repository_names_become_urls(tmp_path: Path) -> None:
    def url(repo: str) -> str:
        return clone.repository_url(repo, tmp_path)

    assert url("owner/name") == "https://github.com/owner/name.git"
    assert url("owner/name.git") == "https://github.com/owner/name.git"
    assert url("git@host:a/b.git") == "git@host:a/b.git"
    assert url("https://example.com/a/b") == "https://example.com/a/b"
    assert url("./a/b") == str(tmp_path / "a/b")
    for repo in ("--upload-pack=touch x", "", "ext::sh -c true", "-a/b"):
        with pytest.raises(ConfigurationError, match="repo"):
            url(repo)
    with LocalRuntime() as runtime, pytest.raises(ConfigurationError, match="branch"):
        runtime.clone_repo("owner/name", branch="--x")
    assert clone.folder_name("git@host:b.git") == "b"
    assert clone.folder_name("https://host/a/b/") == "b"


def test_importing_the_runtime_loads_neither_pydantic_nor_yaml_nor_an_outer_room() -> None:
    script = (
        "import sys, holdfast.runtime; print([m for m in sys.modules if m.split('.')[0] in"
        " ('pydantic', 'yaml', 'asyncio') or m.startswith(('holdfast.agent',"
        " 'holdfast.conversation', 'holdfast.llm', 'holdfast.store'))])"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"
