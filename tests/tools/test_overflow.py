"""Tests of results over `result_limit`: the file that takes them, and the text that stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.content import EmbeddedResource, ResourceLink, TextContent, ToolCall, ToolResult
from holdfast.tools import Tool, ToolManager


def limited(tmp_path: Path, output: Any) -> ToolResult:
    manager = ToolManager(
        [Tool("t", "", lambda: output)], result_limit={"*": 200}, result_dir=tmp_path / "out"
    )
    return manager.run(ToolCall("1", "t"))


def test_a_limit_holds_for_all_texts_of_a_result_together(tmp_path: Path) -> None:
    link = ResourceLink("file:///a", "a")
    texts = [f"block {number}" for number in range(1000)]
    page = EmbeddedResource({"uri": "file:///b", "mimeType": "text/plain", "text": "the last"})
    result = limited(
        tmp_path, ToolResult((TextContent(texts[0]), link, *map(TextContent, texts[1:]), page))
    )
    assert [type(block) for block in result.content] == [TextContent, ResourceLink]
    assert len(result.text) < 500
    assert result.text.startswith("block 0\n")
    assert result.text.endswith("the last")
    (file,) = (tmp_path / "out").iterdir()
    assert file.read_text() == "\n".join([*texts, "the last"])
    assert str(file) in result.text


def test_structured_content_over_the_limit_is_a_note_and_a_file_of_json(tmp_path: Path) -> None:
    data = {"a": "x" * 100_000}
    result = limited(tmp_path, data)
    assert len(result.to_json()) < 1500
    (file,) = (tmp_path / "out").glob("*.json")
    assert json.loads(file.read_text()) == data
    assert str(file) in result.structured_content["note"]


def test_what_is_not_over_the_limit_stays_as_it_is(tmp_path: Path) -> None:
    page = EmbeddedResource({"uri": "file:///b", "blob": "eHh4" * 100})
    small = ToolResult((TextContent("x" * 200), page), {"a": 1})
    assert limited(tmp_path, small) == small
    assert not (tmp_path / "out").exists()
    wide = limited(tmp_path, ToolResult((TextContent("fine"),), ["y" * 300]))
    assert (wide.text, [*wide.structured_content]) == ("fine", ["note"])
    failed = limited(tmp_path, ToolResult.failure("z" * 5000))
    assert failed.is_error
    assert len(failed.to_json()) < 1500
