"""Tests of skills: discovery, their lines in the prompt, the tool that reads them, and paths that
must not leave a skill's folder."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.content import ToolCall
from holdfast.errors import ConfigurationError, ToolError, ToolNotFound
from holdfast.tools import ToolManager, skills
from holdfast.tools.skills_files import Skill, read_skill, text_below, validate

# The specification's own validator: a command of the package skills-ref, beside the interpreter or
# in a folder of its own.
_PLACES = [
    Path(sys.executable).parent / "agentskills",
    Path(sys.executable).parents[1] / "skills-ref" / "bin" / "agentskills",
]
AGENTSKILLS = next((str(path) for path in _PLACES if path.exists()), None) or shutil.which(
    "agentskills"
)
needs_validator = pytest.mark.skipif(
    AGENTSKILLS is None, reason="the command agentskills (PyPI: skills-ref) is not installed"
)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def skill(folder: Path, body: str = "Do it.", **head: str) -> Path:
    """Write a skill to `folder`; its name is the folder's."""
    lines = [
        f"{key.replace('_', '-')}: {value}"
        for key, value in {
            "name": folder.name,
            "description": f"About {folder.name}.",
            **head,
        }.items()
    ]
    return write(folder / "SKILL.md", "\n".join(["---", *lines, "---", body]))


# --- finding ---


def test_skills_and_microagents_are_found_and_the_earlier_folder_counts(tmp_path: Path) -> None:
    project, user = tmp_path / "project", tmp_path / "user"
    skill(project / ".agents/skills/lint", description="The project's way.")
    write(
        project / "microagents/git.md",
        "---\ntriggers: [git, commit]\n---\n# How to commit\n\nSmall steps.",
    )
    write(project / "README.md", "not one")
    skill(user / "lint", description="The user's way.")
    skill(user / "mail")
    write(user / "notes.md", "Be brief.")
    skill_set = skills.discover([project, user])
    assert [(one.name, one.description) for one in skill_set.list()] == [
        ("lint", "The project's way."),
        ("git", "How to commit"),
        ("notes", "Be brief."),
        ("mail", "About mail."),
    ]
    assert skill_set.list()[1].triggers == ("git", "commit")
    assert skill_set.unreadable == {}
    assert [one.name for one in skills.discover([user / "mail"]).list()] == ["mail"]


def test_what_cannot_be_read_is_named_and_harms_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    skill(tmp_path / "good")
    write(tmp_path / "open/SKILL.md", "---\nname: open\n")
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin/SKILL.md").write_bytes(b"---\nname: latin\ndescription: caf\xe9\n---\n")
    write(tmp_path / "large/SKILL.md", "x" * 2_000_000)
    write(tmp_path / "listed/SKILL.md", "---\n- a\n---\nx")
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo/SKILL.md")
    skill(tmp_path / "other", name="good")
    with caplog.at_level(logging.WARNING, "holdfast"):
        skill_set = skills.discover([tmp_path, tmp_path / "absent"])
    assert [one.name for one in skill_set.list()] == ["good"]
    for name in ("open", "latin", "large", "listed", "other", "absent"):
        [(path, reason)] = [
            (path, reason) for path, reason in skill_set.unreadable.items() if f"/{name}" in path
        ]
        assert reason
        assert any(path in record.getMessage() for record in caplog.records)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    skill(tmp_path / "elsewhere/secret")
    write(tmp_path / "repo/skills/linked/x.txt", "x")
    (tmp_path / "repo/skills/linked/SKILL.md").symlink_to(tmp_path / "elsewhere/secret/SKILL.md")
    (tmp_path / "repo/skills/folder").symlink_to(tmp_path / "elsewhere/secret")
    skill(tmp_path / "repo/shared/inner")
    (tmp_path / "repo/skills/inner").symlink_to(tmp_path / "repo/shared/inner")
    skill_set = skills.discover([tmp_path / "repo"])
    assert [one.name for one in skill_set.list()] == ["inner"]
    assert sorted(Path(path).name for path in skill_set.unreadable) == ["SKILL.md", "SKILL.md"]
    assert all("outside of" in reason for reason in skill_set.unreadable.values())


def test_discover_takes_a_list_of_folders() -> None:
    with pytest.raises(ConfigurationError, match="list of folders"):
        skills.discover("skills")


# --- the rules, leniently ---


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("---\nname: Wrong_Name\ndescription: d\n---\n", "small letters"),
        ("---\nname: other\ndescription: d\n---\n", "not that of its folder"),
        ("---\nname: a--b\ndescription: d\n---\n", "single hyphens"),
        ("---\nname: it\n---\nUse it.", "description is missing"),
        ("---\nname: it\ndescription: ''\n---\nUse it.", "description takes a text"),
        ("---\nname: it\ndescription: " + "x" * 1025 + "\n---\n", "more than 1024 characters"),
        (
            "---\nname: it\ndescription: d\ncompatibility: " + "x" * 501 + "\n---\n",
            "compatibility has more than 500",
        ),
        ("---\nname: it\ndescription: d\nversion: 1\n---\n", "unknown keys version"),
        ("---\nname: it\ndescription: Use this: when asked\n---\n", "read line by line"),
        ("Just text.", "name is missing"),
    ],
)
def test_what_breaks_the_rules_is_loaded_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, warning: str
) -> None:
    write(tmp_path / "it/SKILL.md", text)
    with caplog.at_level(logging.WARNING, "holdfast"):
        [loaded] = skills.discover([tmp_path]).list()
    assert any(warning in problem for problem in loaded.problems), loaded.problems
    assert any(warning in record.getMessage() for record in caplog.records)
    assert loaded.description
    assert len(loaded.description) <= 1024


@pytest.mark.parametrize(
    ("head", "description"),
    [
        ("description: @State and views", "@State and views"),
        ("description: |\n  Two\n  lines: here.\nversion: a: b", "Two lines: here."),
        ("description: >-\n  Two\n  lines.\nallowed-tools: - Read\n- Write", "Two lines."),
    ],
)
def test_a_description_survives_front_matter_that_is_no_yaml(
    tmp_path: Path, head: str, description: str
) -> None:
    path = write(tmp_path / "it/SKILL.md", f"---\nname: it\n{head}\n---\nDo it.")
    assert read_skill(path).description == description


def test_allowed_tools_may_be_a_list(tmp_path: Path) -> None:
    head = "name: it\ndescription: d\nallowed-tools: [Read, 'Bash(git log:*)']"
    path = write(tmp_path / "it/SKILL.md", f"---\n{head}\n---\nDo it.")
    assert read_skill(path).allowed_tools == ("Read", "Bash(git log:*)")


def test_a_skill_that_was_read_line_by_line_is_shown_to_the_model(tmp_path: Path) -> None:
    write(tmp_path / "it/SKILL.md", "---\nname: it\ndescription: Use this: now\n---\nDo it.")
    assert skills.discover([tmp_path]).read("it").startswith("Do it.")


def test_all_six_keys_are_read_and_every_value_is_a_text(tmp_path: Path) -> None:
    head = (
        "name: '007'\ndescription: >-\n  One\n  two.\nlicense: MIT\ncompatibility:"
        " 1.10\nallowed-tools: Read Bash(git:*)\nmetadata:\n  version: 1.0\n  on: yes\n"
    )
    path = write(tmp_path / "007/SKILL.md", f"---\n{head}---\nBody")
    folder = str(tmp_path / "007")
    assert read_skill(path) == Skill(
        "007",
        "One two.",
        str(path),
        folder,
        (),
        "MIT",
        "1.10",
        ("Read", "Bash(git:*)"),
        {"version": "1.0", "on": "yes"},
    )


CASES = {
    "plain": "---\nname: plain\ndescription: d\n---\n# Body\n",
    "crlf": "---\r\nname: crlf\r\ndescription: d\r\n---\r\nBody\r\n",
    "blanks": "--- \nname: blanks\ndescription: d\n---   \nBody",
    "four": "---\nname: four\ndescription: d\n----\nBody",
    "noline": "---\nname: noline\ndescription: d\n--- Body",
    "end": "---\nname: end\ndescription: d\n---",
    "123": "---\nname: 123\ndescription: 1.10\n---\n",
    "yes": "---\nname: yes\ndescription: on\n---\n",
    "null": "---\nname: null\ndescription: d\n---\n",
    "rule": "---\nname: rule\ndescription: d\n---\n\n---\n",
    "folded": "---\nname: folded\ndescription: >\n  a\n  b\n---\n",
    "quoted": "---\nname: 'quoted'\ndescription: \"a: b\"\n---\n",
    "comment": "---\n# why\nname: comment # this\ndescription: d\n---\n",
    "meta": "---\nname: meta\ndescription: d\nmetadata:\n  author: me\n  version: 1.0\n---\n",
    "tools": (
        "---\nname: tools\ndescription: d\nallowed-tools: Read Write\nlicense: x\ncompatibility:"
        " y\n---\n"
    ),
    "größe": "---\nname: größe\ndescription: d\n---\n",
    "naïve-2": "---\nname: naïve-2\ndescription: dé\n---\n",
    "long" + "g" * 60: f"---\nname: long{'g' * 60}\ndescription: {'x' * 1024}\n---\n",
    "long" + "h" * 61: f"---\nname: long{'h' * 61}\ndescription: d\n---\n",
    "toolong": f"---\nname: toolong\ndescription: {'x' * 1025}\n---\n",
    "Upper": "---\nname: Upper\ndescription: d\n---\n",
    "-dash": "---\nname: -dash\ndescription: d\n---\n",
    "under_score": "---\nname: under_score\ndescription: d\n---\n",
    "mismatch": "---\nname: another\ndescription: d\n---\n",
    "extra": "---\nname: extra\ndescription: d\nversion: 1\n---\n",
    "nodesc": "---\nname: nodesc\n---\n",
    "emptydesc": "---\nname: emptydesc\ndescription: ''\n---\n",
    "noname": "---\ndescription: d\n---\n",
    "nothing": "Body",
    "dashes": "--- Body",
    "tight": "---name: tight\ndescription: d\n---Body",
    "open": "---\nname: open\ndescription: d\n",
    "twice": "---\nname: twice\nname: twice\ndescription: d\n---\n",
    "empty": "---\n---\n",
    "badcompat": f"---\nname: badcompat\ndescription: d\ncompatibility: {'x' * 501}\n---\n",
    "colon": "---\nname: colon\ndescription: Use: this\n---\n",
}


@pytest.mark.slow
@needs_validator
@pytest.mark.parametrize("name", CASES)
def test_what_the_reference_validator_accepts_has_no_problem_here_and_what_it_refuses_has_one(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "SKILL.md").write_bytes(CASES[name].encode())
    assert AGENTSKILLS is not None
    process = subprocess.run(
        [AGENTSKILLS, "validate", str(folder)], capture_output=True, text=True, check=False
    )
    skill_set = skills.discover([tmp_path])
    fine = [one.name for one in skill_set.list() if not one.problems] == [name]
    assert fine == (process.returncode == 0), (
        process.stderr,
        skill_set.list(),
        skill_set.unreadable,
    )


@needs_validator
def test_the_lower_case_file_counts_too(tmp_path: Path) -> None:
    skill(tmp_path / "low").rename(tmp_path / "low/skill.md")
    assert AGENTSKILLS is not None
    subprocess.run(
        [AGENTSKILLS, "validate", str(tmp_path / "low")], check=True, capture_output=True
    )
    assert [one.problems for one in skills.discover([tmp_path]).list()] == [()]


def test_validate_speaks_of_front_matter_alone() -> None:
    assert validate({"name": "a", "description": "b"}, "a") == []
    assert len(validate({}, "a")) == 2


# --- the prompt and the tool ---


def test_the_prompt_has_a_line_for_each_and_no_body(tmp_path: Path) -> None:
    skill(tmp_path / "a", "The body.", description="'Several\n\n  lines'")
    skill(tmp_path / "b")
    skill_set = skills.discover([tmp_path])
    assert skill_set.prompt().splitlines()[-2:] == ["- a: Several lines", "- b: About b."]
    assert "read_skill" in skill_set.prompt()
    assert "The body." not in skill_set.prompt()
    assert skills.discover([]).prompt() == ""


def test_a_manager_by_itself_tells_the_model_of_its_skills(tmp_path: Path) -> None:
    skill(tmp_path / "a", description="'Several\n\n  lines'")
    skill(tmp_path / "b", description="x" * 500)
    with ToolManager.from_config({"skills": [str(tmp_path)]}) as manager:
        (definition,) = manager.definitions()
    assert "\n- a: Several lines\n- b: xxx" in definition.description
    assert len(definition.description.splitlines()[-1]) <= 202
    assert "Several" not in skills.discover([tmp_path]).tool(listed=False).description


def test_more_skills_than_a_description_holds_are_told_at_the_parameter_and_their_number_is_bounded(
    tmp_path: Path,
) -> None:
    for number in range(120):
        skill(tmp_path / f"s{number:03}", description="'Does: it, {all}'")
    tool = skills.discover([tmp_path]).tool()
    assert len(tool.description) <= 1024
    assert "s000" not in tool.description
    description = tool.input_schema["properties"]["name"]["description"]
    assert "s000: Does: it, {all} | s001: " in description
    assert description.endswith("s099: Does: it, {all} | ... and 20 more")
    assert tool.input_schema["properties"]["file"]["description"].startswith("A file of the skill")


def test_the_tool_reads_the_body_and_the_files_beside_it_anew_each_time(tmp_path: Path) -> None:
    path = skill(tmp_path / "pdf", "# Use it\n---\nrule")
    write(tmp_path / "pdf/references/forms.md", "Forms.")
    write(tmp_path / "pdf/scripts/run.py", "print()")
    write(tmp_path / "note.md", "---\ntriggers: x\n---\nA note.")
    skill_set = skills.discover([tmp_path])
    tool = skill_set.tool()
    assert tool.annotations.repeatable
    assert not tool.annotations.open_world
    manager = ToolManager([tool])
    assert (
        manager.call("read_skill", {"name": "pdf"}).text
        == f"# Use it\n---\nrule\n\n(The folder of this skill is {tmp_path / 'pdf'}. Its other"
        " files: references/forms.md, scripts/run.py.)"
    )
    assert (
        manager.call("read_skill", {"name": "pdf", "file": "references/forms.md"}).text == "Forms."
    )
    assert (
        manager.call("read_skill", {"name": "pdf", "file": "./references/../scripts/run.py"}).text
        == "print()"
    )
    assert manager.call("read_skill", {"name": "note"}).text == "A note."
    path.write_text("---\nname: pdf\n---\nNew.")
    assert manager.call("read_skill", {"name": "pdf"}).text.startswith("New.")
    path.unlink()
    assert "is gone" in manager.run(ToolCall("1.0", "read_skill", {"name": "pdf"})).text


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("../outside.txt", "leads out"),
        ("/etc/passwd", "leads out"),
        ("references/../../outside.txt", "leads out"),
        ("link.txt", "leads out"),
        ("way/outside.txt", "leads out"),
        ("loop", "cannot be read|has no file"),
        ("fifo", "not a regular file"),
        ("references", "it is a folder"),
        (".", "it is a folder"),
        ("", "is not a path"),
        ("a\0b", "is not a path"),
        ("picture.png", "binary file"),
        ("large.txt", "larger than 1024 KB"),
        ("latin.txt", "not UTF-8"),
        (".env", "is hidden"),
        (".git/config", "is hidden"),
        ("references/.secret", "is hidden"),
        ("./.git/../.env", "is hidden"),
        ("to-env.txt", "is hidden"),
        (".absent", "is hidden"),
    ],
)
def test_no_path_leads_out_of_a_skill(tmp_path: Path, file: str, pattern: str) -> None:
    skill(tmp_path / "skills/one")
    folder = tmp_path / "skills/one"
    write(tmp_path / "skills/outside.txt", "secret")
    write(folder / "references/a.md", "a")
    write(folder / "large.txt", "x" * 2_000_000)
    (folder / "picture.png").write_bytes(b"\x89PNG\0")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "link.txt").symlink_to("../outside.txt")
    (folder / "way").symlink_to("..")
    (folder / "loop").symlink_to("loop")
    for hidden in (".env", ".git/config", "references/.secret"):
        write(folder / hidden, "secret")
    (folder / "to-env.txt").symlink_to(".env")
    os.mkfifo(folder / "fifo")
    skill_set = skills.discover([tmp_path / "skills"])
    with pytest.raises(ToolError, match=pattern):
        skill_set.read("one", file)


def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:
    skill(tmp_path / "one")
    write(tmp_path / "one/a.md", "a")
    (tmp_path / "one/b.md").symlink_to("a.md")
    assert skills.discover([tmp_path]).read("one", "b.md") == "a"


def test_a_folder_that_becomes_a_link_after_it_was_checked_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "outside/a.md", "secret")
    write(tmp_path / "one/real/a.md", "a")
    (tmp_path / "one/way").symlink_to("../outside")
    (tmp_path / "one/b.md").symlink_to("../outside/a.md")
    assert text_below(tmp_path / "one", "real", "a.md") == "a"
    for parts in (("way", "a.md"), ("b.md",)):
        with pytest.raises(OSError):
            text_below(tmp_path / "one", *parts)


def test_a_wrong_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    skill(tmp_path / "lint")
    write(tmp_path / "lint/rules.md", "r")
    write(tmp_path / "note.md", "n")
    skill_set = skills.discover([tmp_path])
    with pytest.raises(
        ToolNotFound, match=r"no skill 'lnt'. Did you mean 'lint'\? There are: note, lint"
    ):
        skill_set.read("lnt")
    with pytest.raises(
        ToolNotFound, match=r"has no file 'rule.md'. Did you mean 'rules.md'\? It has: rules.md"
    ):
        skill_set.read("lint", "rule.md")
    with pytest.raises(ToolError, match="is a single file"):
        skill_set.read("note", "x")


def test_no_file_handle_is_left(tmp_path: Path) -> None:
    skill(tmp_path / "one")
    write(tmp_path / "one/deep/er/a.md", "a")
    before = len(os.listdir("/proc/self/fd"))
    skill_set = skills.discover([tmp_path])
    for file in (None, "deep/er/a.md", "deep/none/a.md", "deep/er"):
        try:
            skill_set.read("one", file)
        except ToolError:
            pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_skill_for_the_user_alone_is_neither_listed_nor_read(tmp_path: Path) -> None:
    for name, more in (("deploy", "disable-model-invocation: true\n"), ("pdf", "")):
        (tmp_path / name).mkdir()
        head = f"---\nname: {name}\ndescription: About {name}.\n{more}---\n"
        (tmp_path / name / "SKILL.md").write_text(head + "x" * 90 + "the end")
        (tmp_path / name / "more.md").write_text("More.")
    skill_set = skills.discover([tmp_path], each=80)
    assert [skill.name for skill in skill_set.list()] == ["deploy", "pdf"]
    tool = skill_set.tool()
    for text in (skill_set.prompt(), tool.description, str(tool.input_schema)):
        assert "deploy" not in text
    assert "About pdf." in skill_set.prompt()
    for file in (None, "SKILL.md", "./SKILL.md", "../deploy/SKILL.md", "skill.md/../SKILL.md"):
        with pytest.raises(ToolError, match="only when the user asks for it: /deploy"):
            skill_set.read("deploy", file)
    with pytest.raises(ToolError, match="only when the user asks"):
        skill_set.read("deploy", None, 79)
    with pytest.raises(ToolError) as wrong:
        skill_set.read("deploi")
    assert "deploy" not in str(wrong.value)
    # The rest after the user has asked for it: the part that was cut, and its other files.
    assert skill_set.read("deploy", None, 80).startswith("x" * 10 + "the end")
    assert skill_set.read("deploy", "more.md") == "More."
    assert skill_set.read("pdf").startswith("x")
    skill_text = skills.as_text(skill_set.list()[0])
    assert skill_text.user_only
    again = skills.Skills([skill_text], each=80)
    assert again.prompt() == ""
    for file in (None, "SKILL.md"):
        with pytest.raises(ToolError, match="only when the user asks"):
            again.read("deploy", file)
