"""Every Python block in the README and the docs is run as it stands, but for the model's address,
and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.model_server import ModelServer, Request, calls, sse, text

REPO = Path(__file__).parents[1]
PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, printed, id=f"{path.relative_to(REPO)}-{number}")
    for path in PAGES
    for number, (block, printed) in enumerate(
        re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", path.read_text(), re.DOTALL), 1
    )
]


@pytest.mark.parametrize(("block", "printed"), BLOCKS)
def test_a_python_block_runs_as_it_stands_and_prints_what_is_below_it(
    block: str, printed: str, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text("one two three")

    def answer(request: Request) -> Any:
        if request.json.get("stream"):
            return sse(text("It has 3 words."), size=8)
        if request.messages[-1]["role"] == "user":
            return calls(("read_file", {"path": "README.md"}))
        if "one two three" in request.messages[-1]["content"]:
            return calls(("count_words", {"text": "one two three"}))
        return text(f"It has {request.messages[-1]['content']} words.")

    with ModelServer(answer) as server:
        program = tmp_path / "program.py"
        program.write_text(block.replace("https://api.openai.com/v1", server.url))
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (printed or "finished It has 3 words.\n")


def test_every_public_name_is_in_a_program_of_the_docs() -> None:
    shown = "\n".join(str(block.values[0]) for block in BLOCKS)
    assert [name for name in holdfast.__all__ if not re.search(rf"\b{name}\b", shown)] == []


def test_the_readme_program_has_fifteen_lines() -> None:
    block = re.findall(r"```python\n(.*?)```", (REPO / "README.md").read_text(), re.DOTALL)[0]
    assert len(block.splitlines()) <= 15


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_every_page_is_in_the_site() -> None:
    shown = (REPO / "mkdocs.yml").read_text()
    assert [
        str(path.relative_to(REPO / "docs"))
        for path in PAGES[1:]
        if f" {path.relative_to(REPO / 'docs')}\n" not in shown
    ] == []


def test_every_public_name_is_in_the_reference() -> None:
    reference = "\n".join(path.read_text() for path in (REPO / "docs" / "reference").glob("*.md"))
    assert [name for name in holdfast.__all__ if not re.search(rf"\b{name}\b", reference)] == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'holdfast[docs]'")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(
        command, cwd=REPO, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "tutorial" / "1-hello" / "index.html").exists()


def test_every_room_is_in_the_architecture() -> None:
    page = (REPO / "docs" / "architecture.md").read_text()
    for room in sorted(
        path.name
        for path in (REPO / "src" / "holdfast").iterdir()
        if not path.name.startswith(("_", "py.typed"))
    ):
        assert f"`{room}" in page, f"docs/architecture.md does not say what {room} is"


def test_every_dependency_is_accounted_for() -> None:
    import tomllib

    page = (REPO / "docs" / "dependencies.md").read_text()
    for requirement in tomllib.loads((REPO / "pyproject.toml").read_text())["project"][
        "dependencies"
    ]:
        assert f"| {re.split(r'[<>=~! ]', requirement)[0]} |" in page
