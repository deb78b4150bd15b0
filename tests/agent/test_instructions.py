"""AGENTS.md files: which are read, their order, that the nearest one wins, and that no file from
outside of the repository is read."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, LocalRuntime, ScriptedLLM, SQLiteStore
from holdfast import events as ev
from holdfast.agent.instructions import MAX_FILE_CHARS, Instructions
from holdfast.cli import main
from holdfast.errors import ConfigurationError
from tests.model_server import ModelServer, text


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Return a repository with instructions at three levels above and below its working folder
    `app`."""
    (tmp_path / "repo/.git").mkdir(parents=True)
    write(tmp_path / "AGENTS.md", "Outside of the repository.")
    for folder in (".", "app", "app/api", "app/api/v1", "other"):
        write(tmp_path / "repo" / folder / "AGENTS.md", f"For {folder}.")
    write(tmp_path / "repo/app/api/v1/x.py", "pass")
    return tmp_path / "repo"


def note_topics(state: Any) -> list[str]:
    return [
        event.about for event in state.events if isinstance(event, ev.MessageAdded) and event.about
    ]


def test_those_from_the_repositorys_root_down_are_in_the_prompt_outermost_first(repo: Path) -> None:
    instructions = Instructions.read(repo / "app/api")
    assert [path for path, _ in instructions.in_prompt()] == [
        "../../AGENTS.md",
        "../AGENTS.md",
        "AGENTS.md",
    ]
    assert instructions.below() == {"v1": "v1/AGENTS.md"}
    agent = Agent(ScriptedLLM([]), system_prompt="Base.", instructions=instructions)
    assert (
        agent.system_prompt
        == "Base.\n\n# ../../AGENTS.md\n\nFor ..\n\n# ../AGENTS.md (Where it differs from those"
        " above, it wins.)\n\nFor app.\n\n# AGENTS.md (Where it differs from those above, it"
        " wins.)\n\nFor app/api."
    )


def test_without_a_repository_the_folder_alone_is_read(tmp_path: Path) -> None:
    write(tmp_path / "AGENTS.md", "Above.")
    write(tmp_path / "work/AGENTS.md", "Here.")
    assert Instructions.read(tmp_path / "work").texts == {"AGENTS.md": "Here."}


def test_a_worktrees_file_git_is_a_root_too(repo: Path) -> None:
    write(repo / "app/.git", "gitdir: elsewhere")
    assert [path for path, _ in Instructions.read(repo / "app").in_prompt()] == ["AGENTS.md"]


def test_one_in_a_subfolder_is_added_when_a_call_touches_a_file_below_it(
    repo: Path, tmp_path: Path
) -> None:
    script = [
        ("read_file", {"path": "AGENTS.md"}),
        ("read_file", {"path": "api/v1/x.py"}),
        ("read_file", {"path": str(repo / "other/AGENTS.md")}),
        ("terminal", {"command": "cat api/v1/x.py"}),
        "Done.",
    ]
    with LocalRuntime(repo / "app") as runtime, SQLiteStore(tmp_path / "s.db") as store:
        agent = Agent(ScriptedLLM(script), runtime.tools, instructions=runtime.workdir)
        with Conversation(agent, store, runtime=runtime) as conversation:
            conversation.send_message("Go.")
            state = conversation.run()
            assert conversation.replay().same
    assert note_topics(state) == ["instructions:api/AGENTS.md", "instructions:api/v1/AGENTS.md"]
    texts = [event for event in state.events if isinstance(event, ev.MessageAdded) and event.about]
    answers = [event.seq for event in state.events if isinstance(event, ev.AssistantReplied)]
    assert answers[1] < texts[0].seq < texts[1].seq < answers[2], (
        "before the model call that follows"
    )
    assert (
        texts[1].text
        == "# api/v1/AGENTS.md\n\n(For all files below api/v1/. Where it differs from other"
        " instructions, it wins there.)\n\nFor app/api/v1."
    )


def test_the_working_directory_may_be_named_by_a_link(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(repo / "app")
    llm = ScriptedLLM([("read_file", {"path": str(tmp_path / "link/api/v1/x.py")}), "Done."])
    with LocalRuntime(repo / "app") as runtime:
        agent = Agent(llm, runtime.tools, instructions=tmp_path / "link")
        with Conversation(agent, runtime=runtime) as conversation:
            conversation.send_message("Go.")
            assert note_topics(conversation.run()) == [
                "instructions:api/AGENTS.md",
                "instructions:api/v1/AGENTS.md",
            ]


def test_other_names_are_read_if_they_are_asked_for(repo: Path) -> None:
    write(repo / "app/CLAUDE.md", "For Claude.")
    write(repo / "app/lib/CLAUDE.md", "For Claude, too.")
    assert not any("CLAUDE" in path for path in Instructions.read(repo / "app").texts)
    texts = Instructions.read(repo / "app", ("CLAUDE.md", "AGENTS.md")).texts
    assert [*texts] == [
        "../AGENTS.md",
        "CLAUDE.md",
        "api/AGENTS.md",
        "lib/CLAUDE.md",
        "api/v1/AGENTS.md",
    ]


def test_what_cannot_be_read_is_left_out_with_a_warning(
    repo: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = write(tmp_path / "secret.md", "Secret.")
    for folder in ("link", "large", "latin", "loop", "fifo", "folder", "inner"):
        (repo / "app" / folder).mkdir()
    (repo / "app/link/AGENTS.md").symlink_to(secret)
    (repo / "app/large/AGENTS.md").write_bytes(b"x" * 10_000_000)
    (repo / "app/latin/AGENTS.md").write_bytes(b"caf\xe9")
    (repo / "app/loop/AGENTS.md").symlink_to(repo / "app/loop/AGENTS.md")
    os.mkfifo(repo / "app/fifo/AGENTS.md")
    (repo / "app/folder/AGENTS.md").mkdir()
    (repo / "app/inner/AGENTS.md").symlink_to(repo / "other/AGENTS.md")  # it stays inside
    (repo / "app/away").symlink_to(tmp_path)
    with caplog.at_level(logging.WARNING, "holdfast"):
        texts = Instructions.read(repo / "app").texts
    assert {path for path in texts if path.count("/") == 1 and not path.startswith("..")} == {
        "api/AGENTS.md",
        "inner/AGENTS.md",
    }
    assert "Secret." not in str(texts)
    for folder in ("link", "large", "latin", "loop", "fifo", "folder"):
        assert f"/{folder}/AGENTS.md were left out" in caplog.text


def test_folders_that_tools_fill_and_hidden_ones_are_not_looked_into(repo: Path) -> None:
    for folder in ("node_modules/x", ".venv/y", ".hidden"):
        write(repo / "app" / folder / "AGENTS.md", "No.")
    assert "No." not in str(Instructions.read(repo / "app").texts)


@pytest.mark.slow
def test_a_tree_without_end_is_walked_to_a_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(5100):
        (tmp_path / f"{n:04}").mkdir()
    write(tmp_path / "0001/AGENTS.md", "One.")
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert [*Instructions.read(tmp_path).texts] == ["0001/AGENTS.md"]
    assert "it has more" in caplog.text


def test_long_ones_are_cut_and_say_so() -> None:
    instructions = Instructions(
        {"AGENTS.md": "x" * (MAX_FILE_CHARS + 5), "src/AGENTS.md": "y" * (MAX_FILE_CHARS + 7)}
    )
    [(_, text)] = instructions.in_prompt()
    assert text.endswith(
        "[5 of 20,005 characters are left out here to save room; the file AGENTS.md has them.]"
    )
    assert "[7 of 20,007 characters" in instructions.text_for_model("src/AGENTS.md", 10**9)
    assert "[20,007 of 20,007 characters" in instructions.text_for_model("src/AGENTS.md", 0)


def test_a_changed_file_is_a_new_agent_event_when_the_conversation_is_opened_again(
    repo: Path, tmp_path: Path
) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        for text in ("First.", "Second."):
            write(repo / "AGENTS.md", text)
            with Conversation(
                Agent(ScriptedLLM(["Yes."] * 2), instructions=repo), store, id="c-1"
            ) as conversation:
                write(repo / "AGENTS.md", "While it works: not read.")
                conversation.send_message("Go.")
                state = conversation.run()
    heads = [event.system_prompt for event in state.events if isinstance(event, ev.AgentConfigured)]
    assert [head.rpartition("\n")[2] for head in heads] == ["First.", "Second."]


def test_a_line_that_names_a_file_stands_for_that_file(repo: Path) -> None:
    claude = "@AGENTS.md\n\nWrite to me@AGENTS.md.\n- @docs/style.md\n@CLAUDE.md\n@.env"
    write(repo / "CLAUDE.md", claude)
    write(repo / ".env", "TOKEN=1")
    write(repo / "docs/style.md", "Short lines.\n@../AGENTS.md\n@missing.md\n@../../AGENTS.md")
    (text,) = [text for _, text in Instructions.read(repo, ["CLAUDE.md"]).in_prompt()]
    assert text.partition("\n\n")[2].splitlines() == [
        "For ..",
        "",
        "Write to me@AGENTS.md.",
        "Short lines.",
        "@../AGENTS.md",  # it is there already
        "@missing.md",
        "@../../AGENTS.md",  # outside of the repository
        "@CLAUDE.md",
        "@.env",  # may hold secrets
    ]


@pytest.mark.parametrize("given", [3, ["AGENTS.md"], {"AGENTS.md": "x"}, "/no/such/folder"])
def test_what_is_no_folder_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="Agent: instructions"):
        Agent(ScriptedLLM([]), instructions=given)


@pytest.mark.parametrize(
    "path", ["/etc/AGENTS.md", "a/../AGENTS.md", "", "./AGENTS.md", "a//AGENTS.md"]
)
def test_texts_are_by_relative_paths(path: str) -> None:
    with pytest.raises(ConfigurationError, match="Instructions: texts"):
        Instructions({path: "x"})


@pytest.mark.parametrize("names", ["AGENTS.md", [], ["a/b"], [".."], [3]])
def test_names_are_names_of_files(names: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="names takes a list"):
        Instructions.read(tmp_path, names)


@pytest.mark.parametrize("more", [[], ["--no-instructions"]], ids=["told", "not-told"])
def test_the_command_line_tells_of_the_working_directorys(
    repo: Path, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOLDFAST_MODEL", "HOLDFAST_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOLDFAST_API_KEY", "key-of-the-tests")
    with ModelServer(lambda request: text("Done.")) as server:
        assert (
            main(
                [
                    "run",
                    "Hi",
                    "--workdir",
                    str(repo / "app"),
                    "--base-url",
                    server.url,
                    "--model",
                    "m",
                    *more,
                ]
            )
            == 0
        )
        prompt = server.requests[0].messages[0]["content"]
    assert ("For app." in prompt) == (not more)
