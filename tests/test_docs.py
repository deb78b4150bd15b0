"""Every Python block in the README and the docs runs unchanged, except for the model's address, and
prints the text below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.runtime.sandbox.mechanisms import MECHANISMS
from tests import forks, stand_in_engine
from tests.model_server import ModelServer, Request, calls, sse, text
from tests.reference import PAGES as REFERENCE
from tests.reference import pages

REPO = Path(__file__).parents[1]
PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
BLOCKS = {
    path: re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", path.read_text(), re.DOTALL)
    for path in PAGES
}
END = "--- end of block ---\n"
# the address in the pages; replaced by a real one
DATABASE = "postgresql://agents:secret@db.example/agents"
# Runs the programs that it is given one after the other, each as `__main__` in a folder of its own.
RUNNER = f"""
import os, runpy, sys, traceback
for program in sys.argv[1:]:
    os.chdir(os.path.dirname(program))
    try:
        runpy.run_path(program, run_name="__main__")
    except BaseException:
        traceback.print_exc()
    print({END!r}, end="", flush=True)
    print({END!r}, end="", flush=True, file=sys.stderr)
"""


def cited(request: Request) -> Any:
    """Return Claude's answer from a PDF document whose sources it has to name."""
    document, _ = request.messages[-1]["content"]
    assert (document["type"], document["citations"]) == ("document", {"enabled": True})
    page = {
        "type": "page_location",
        "cited_text": "Sales rose by 4 %.",
        "document_index": 0,
        "document_title": document["title"],
        "start_page_number": 2,
        "end_page_number": 3,
    }
    usage = {"input_tokens": 50, "cache_creation_input_tokens": 1600, "output_tokens": 12}
    return {
        "type": "message",
        "id": "msg_1",
        "model": "claude-sonnet-4-5",
        "role": "assistant",
        "content": [
            {"type": "text", "text": "According to the report, "},
            {"type": "text", "text": "sales rose by 4 %", "citations": [page]},
            {"type": "text", "text": "."},
        ],
        "stop_reason": "end_turn",
        "usage": usage,
    }


def answer(request: Request) -> Any:
    if request.path.endswith("/messages"):
        return cited(request)
    if request.json.get("stream"):
        return sse(text("It has 3 words."), size=8)
    if request.messages[-1]["role"] == "user":
        return calls(("read_file", {"path": "README.md"}))
    if "one two three" in request.messages[-1]["content"]:
        return calls(("count_words", {"text": "one two three"}))
    return text(f"It has {request.messages[-1]['content']} words.")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [path for path in PAGES if BLOCKS[path]], ids=lambda path: str(path.relative_to(REPO))
)
def test_the_python_blocks_of_a_page_run_unchanged_and_print_the_text_below_them(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = ""
    if any(DATABASE in block for block, _ in BLOCKS[page]):
        database = request.getfixturevalue("postgres_database")
    boxed = any("SandboxedRuntime(" in block for block, _ in BLOCKS[page])
    if boxed and all(mechanism.missing() for mechanism in MECHANISMS):
        pytest.skip("no sandbox can be made here")
    engines = stand_in_engine.install(tmp_path / "engines")  # containers are processes here
    programs: list[str] = []
    with ModelServer(answer) as server:
        for number, (block, _) in enumerate(BLOCKS[page]):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "README.md").write_text("one two three")
            program = folder / "program.py"
            block = block.replace("https://api.openai.com/v1", server.url)
            block = block.replace(DATABASE, database)
            # At another address the protocol has to be named.
            here = f'"{server.url}", wire="anthropic_messages"'
            program.write_text(block.replace('"https://api.anthropic.com/v1"', here))
            programs.append(str(program))
        process = forks.run(
            [sys.executable, "-c", RUNNER, *programs],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "PATH": f"{engines}:{os.environ['PATH']}"},
        )
    errors = process.stderr.split(END)
    printed = process.stdout.split(END)
    for number, (_, expected) in enumerate(BLOCKS[page]):
        assert "Traceback" not in errors[number], f"block {number + 1}: {errors[number]}"
        assert printed[number] == (expected or "finished It has 3 words.\n"), f"block {number + 1}"


def test_every_public_name_is_in_a_program_of_the_docs() -> None:
    programs = "\n".join(block for blocks in BLOCKS.values() for block, _ in blocks)
    assert [name for name in holdfast.__all__ if not re.search(rf"\b{name}\b", programs)] == []


def test_the_readme_program_has_fifteen_lines() -> None:
    block = re.findall(r"```python\n(.*?)```", (REPO / "README.md").read_text(), re.DOTALL)[0]
    assert len(block.splitlines()) <= 15


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_every_page_is_in_the_site() -> None:
    navigation = (REPO / "mkdocs.yml").read_text()
    assert [
        str(path.relative_to(REPO / "docs"))
        for path in PAGES[1:]
        if f" {path.relative_to(REPO / 'docs')}\n" not in navigation
    ] == []


def test_every_public_name_is_in_the_reference() -> None:
    reference = "\n".join(path.read_text() for path in (REPO / "docs" / "reference").glob("*.md"))
    assert [name for name in holdfast.__all__ if not re.search(rf"\b{name}\b", reference)] == []


@pytest.mark.slow
def test_the_reference_is_that_of_the_source() -> None:
    old = [name for name, text in pages().items() if (REFERENCE / name).read_text() != text]
    assert old == [], "docs/reference is out of date. Run: make reference"


@pytest.mark.proof
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
    process = subprocess.run(
        command, cwd=REPO, capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
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


def test_every_file_that_the_architecture_names_exists() -> None:
    pages = [REPO / "docs" / "architecture.md", REPO / "docs" / "where-to-change.md"]
    pages += (REPO / "docs" / "internals").glob("*.md")
    source = REPO / "src" / "holdfast"
    missing = [
        f"{page.name}: {name}"
        for page in pages
        for name in re.findall(r"`([\w./]+\.py)`", page.read_text())
        if not (
            (REPO / name).exists()
            or (source / name).exists()
            or any(path.name == name for path in source.rglob("*.py"))
        )
    ]
    assert missing == []
