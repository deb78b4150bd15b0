"""Tests of `holdfast skills list`."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from holdfast.cli import main


def run(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


def test_skills_of_a_folder_and_a_plugin_are_listed(tmp_path: Path) -> None:
    know, care = tmp_path / "know", tmp_path / "care"
    (know / "pdf").mkdir(parents=True)
    text = "---\nname: pdf\ndescription: PDFs.\nmetadata: {paths: '*.pdf'}\n---\nx\n"
    (know / "pdf" / "SKILL.md").write_text(text)
    (care / ".plugin").mkdir(parents=True)
    (care / ".plugin" / "plugin.json").write_text('{"name": "care"}')
    (care / "commands").mkdir()
    (care / "commands" / "review.md").write_text("---\ndescription: Reviews.\n---\nReview.\n")
    code, out, err = run("skills", "list", str(know), str(care))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "pdf  (files: *.pdf)  PDFs.",
        "care:review  (words: /care:review)  Reviews.",
    ]
    assert json.loads(run("skills", "list", str(know), "--json")[1])["name"] == "pdf"
    (care / "commands" / "bad.md").write_bytes(b"\xff")
    code, _, err = run("skills", "list", str(care))
    assert code == 1
    assert "left out: commands/bad.md" in err


def test_folders_without_skills_and_broken_plugins_are_told(tmp_path: Path) -> None:
    assert "There are no skills." in run("skills", "list", str(tmp_path))[2]
    (tmp_path / ".plugin").mkdir()
    (tmp_path / ".plugin" / "plugin.json").write_text("{")
    code, _, err = run("skills", "list", str(tmp_path))
    assert (code, len(err.splitlines())) == (2, 1)
