"""Microagents: which files are read, the settings in their front matter, and that a bad file
harms no other."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

import pytest

from holdfast import Agent, ScriptedLLM
from holdfast.errors import ConfigurationError
from holdfast.runtime import LocalRuntime, Microagent, load_microagents
from holdfast.runtime.microagents import read_microagent


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_skills_and_notes_of_a_repository_are_read_in_a_fixed_order(tmp_path: Path) -> None:
    write(tmp_path / "README.md", "not one")
    write(tmp_path / ".holdfast/microagents/z.md", "zed")
    write(tmp_path / "microagents/b.md", "bee")
    write(tmp_path / "microagents/a.md", "ay")
    write(tmp_path / ".openhands/microagents/repo.md", "repo")
    write(tmp_path / "skills/two/SKILL.md", "two")
    write(tmp_path / ".agents/skills/one/SKILL.md", "one")
    write(tmp_path / "skills/two/notes.md", "not one")
    microagents = load_microagents(tmp_path)
    assert [m.name for m in microagents] == ["one", "two", "a", "b", "repo", "z"]
    with LocalRuntime(tmp_path) as runtime:
        assert runtime.load_microagents() == microagents


def test_front_matter_gives_name_description_and_triggers(tmp_path: Path) -> None:
    text = (
        "---\nname: Git help\ndescription: >\n  How to\n  commit.\ntriggers: [git, commit]\nother:"
        " 1\n---\n\n# Use git\n---\nrule\n"
    )
    path = write(tmp_path / "git.md", text)
    assert read_microagent(path) == Microagent(
        "Git help", "# Use git\n---\nrule", "How to commit.", ("git", "commit"), str(path)
    )
    windows = tmp_path / "w.md"
    windows.write_bytes(b"\xef\xbb\xbf" + b"---\r\ntriggers: one\r\n---\r\nText\r\n")
    assert read_microagent(windows) == Microagent("w", "Text", "", ("one",), str(windows))
    assert read_microagent(write(tmp_path / "plain.md", "--- no\n")).content == "--- no"
    assert read_microagent(write(tmp_path / "none.md", "---\n---\nx")).content == "x"


def test_a_bad_file_is_left_out_with_a_warning_that_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "microagents/good.md", "good")
    write(tmp_path / "microagents/open.md", "---\nname: x\n")
    write(tmp_path / "microagents/yaml.md", "---\nname: [\n---\nx")
    write(tmp_path / "microagents/list.md", "---\n- a\n---\nx")
    write(
        tmp_path / "microagents/tag.md", "---\nname: !!python/object/apply:os.system [true]\n---\nx"
    )
    write(tmp_path / "microagents/triggers.md", "---\ntriggers: {a: 3}\n---\nx")
    (tmp_path / "microagents/latin.md").write_bytes(b"caf\xe9")
    write(tmp_path / ".holdfast/microagents/good.md", "a second one of that name")
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert [m.content for m in load_microagents(tmp_path)] == ["good"]
    for name in (
        "open.md",
        "yaml.md",
        "list.md",
        "tag.md",
        "triggers.md",
        "latin.md",
        ".holdfast/microagents/good.md",
    ):
        assert any(name in record.getMessage() for record in caplog.records)


def test_a_link_to_a_file_outside_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "secret.md", "secret")
    repo = tmp_path / "repo"
    write(repo / "microagents/a.md", "a")
    (repo / "microagents/b.md").symlink_to(tmp_path / "secret.md")
    assert [m.name for m in load_microagents(repo)] == ["a"]


def test_a_folder_directly_full_of_markdown_works_too(tmp_path: Path) -> None:
    write(tmp_path / "notes/b.md", "b")
    write(tmp_path / "notes/a.md", "a")
    write(tmp_path / "notes/README.md", "about")
    write(tmp_path / "notes/skill/SKILL.md", "s")
    assert [m.name for m in load_microagents(tmp_path / "notes")] == ["a", "b", "skill"]
    with LocalRuntime(tmp_path / "notes") as runtime:
        assert runtime.load_microagents() == []
        assert len(runtime.load_microagents(".")) == 3


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="none"):
        load_microagents(tmp_path / "none")


def test_a_microagent_has_a_json_form() -> None:
    microagent = Microagent("a", "text", triggers=("x",))
    assert Microagent.from_json(microagent.to_json()) == microagent


def test_after_a_clone_the_log_says_that_it_has_microagents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("with", "without"):
        origin = tmp_path / name
        write(origin / "README.md", "read me")
        if name == "with":
            write(origin / ".openhands/microagents/repo.md", "Be kind.")
        git = [
            "git",
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.com",
            "-c",
            "init.defaultBranch=main",
        ]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
            subprocess.run([*git, *words], cwd=origin, check=True)
    (tmp_path / "work").mkdir()
    with LocalRuntime(tmp_path / "work") as runtime, caplog.at_level(logging.WARNING, "holdfast"):
        for name in ("with", "without"):
            runtime.clone_repo(str(tmp_path / name))
        assert runtime.load_microagents() == []
        [record] = caplog.records
        assert (
            "The clone in 'with' has 1: load_microagents('with') reads them." in record.getMessage()
        )
        assert [one.content for one in runtime.load_microagents("with")] == ["Be kind."]


def test_a_text_that_is_also_a_path_is_refused_with_both_ways_to_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "notes.md", "Be kind.")
    monkeypatch.chdir(tmp_path)
    for text in (str(path), "notes.md", str(tmp_path)):
        with pytest.raises(ConfigurationError, match="Which is meant") as caught:
            Agent(ScriptedLLM([]), microagents=[text])
        assert f"Path({text!r})" in str(caught.value)
        assert f"Microagent('name', {text!r})" in str(caught.value)
    assert "Be kind." in Agent(ScriptedLLM([]), microagents=[path]).system_prompt
    for text in ("Be kind.", "notes.md\nis a file", "x" * 10_000, "a\0b", "", "~nobody/x"):
        assert text in Agent(ScriptedLLM([]), microagents=[text]).system_prompt
    assert (
        "notes.md"
        in Agent(ScriptedLLM([]), microagents=[Microagent("name", "notes.md")]).system_prompt
    )
