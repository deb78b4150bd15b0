"""`view_image`: a picture of the work folder, in the size that models take."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import LocalRuntime, ToolCall, ToolManager, ToolResult
from holdfast.content import ImageContent
from holdfast.errors import ConfigurationError, RuntimeFault
from holdfast.image_size import pixels
from holdfast.runtime.pictures import load_picture


def png(width: int, height: int, noise: bytes = b"") -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = (b"\0" + b"\x40\x80\xc0" * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"tEXt", noise), chunk(b"IDAT", zlib.compress(rows, 1)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(tmp_path) as runtime:
        yield runtime


def view(runtime: LocalRuntime, path: str) -> ToolResult:
    return ToolManager(runtime.all_tools).run(ToolCall("1.0", "view_image", {"path": path}))


def test_a_small_picture_comes_as_it_is(runtime: LocalRuntime) -> None:
    data = png(40, 20)
    (runtime.workdir / "a.png").write_bytes(data)
    result = view(runtime, "a.png")
    assert result.content[1] == ImageContent(data, "image/png")
    assert result.text == "a.png: image/png, 40x20 pixels"


@pytest.mark.parametrize("name", ["text", "gone.png", "../outside.png", "cut.png"])
def test_what_is_no_picture_here_is_refused(runtime: LocalRuntime, name: str) -> None:
    (runtime.workdir / "text").write_text("PNG")
    (runtime.workdir / "cut.png").write_bytes(png(40, 20)[:12])
    (runtime.workdir.parent / "outside.png").write_bytes(png(1, 1))
    assert view(runtime, name).is_error


def test_a_large_picture_is_scaled_down_with_pillow(runtime: LocalRuntime) -> None:
    pytest.importorskip("PIL")
    (runtime.workdir / "a.png").write_bytes(png(3200, 1600))
    result = view(runtime, "a.png")
    image: Any = result.content[1]
    assert pixels(image.data) == (1568, 784)
    assert "scaled down to 1568x784" in result.text


def test_without_pillow_a_large_picture_is_bounded_and_the_result_says_so(
    runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    (runtime.workdir / "a.png").write_bytes(png(3200, 16))
    assert "not scaled down, Pillow is not installed" in view(runtime, "a.png").text
    (runtime.workdir / "b.png").write_bytes(png(10, 10, b"x" * 6_000_000))
    assert "Pillow is not installed to scale it down" in view(runtime, "b.png").text


def test_a_picture_of_too_many_pixels_is_not_unpacked(runtime: LocalRuntime) -> None:
    data = png(10, 10).replace(struct.pack(">II", 10, 10), struct.pack(">II", 60000, 60000), 1)
    (runtime.workdir / "bomb.png").write_bytes(data)
    assert "too many" in view(runtime, "bomb.png").text


# --- pictures of messages ---


def test_a_picture_of_a_file_is_read_for_a_message(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(png(40, 20))
    assert load_picture(tmp_path / "a.bin") == ImageContent(png(40, 20), "image/png")


def test_a_large_picture_is_scaled_down(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "a.png").write_bytes(png(3000, 1500))
    assert pixels(load_picture(tmp_path / "a.png").data) == (1568, 784)


def test_without_pillow_a_large_picture_is_noted_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    data = png(3000, 1500)
    (tmp_path / "a.png").write_bytes(data)
    assert load_picture(tmp_path / "a.png").data == data
    assert "not scaled down, Pillow is not installed" in caplog.text
    with pytest.raises(RuntimeFault, match="Pillow is not installed to scale it down"):
        load_picture(tmp_path / "a.png", max_bytes=1000)


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no picture")
    with pytest.raises(RuntimeFault, match="is no PNG, JPEG, GIF or WebP"):
        load_picture(tmp_path / "a.png")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_picture(tmp_path / "gone.png")
