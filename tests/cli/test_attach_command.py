"""`--attach` of run, chat and tell, and `/attach` in a chat: they send files to the model."""

from __future__ import annotations

import base64
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import SQLiteStore
from holdfast import events as ev
from holdfast.cli.attachments import MAX_BYTES, attachments, split_places
from holdfast.cli.exit_codes import UsageError
from holdfast.content import FileContent, TextContent
from holdfast.image_size import pixels
from tests.cli.test_commands import holdfast, options, terminal
from tests.cli.test_tell_command import store_options, tell
from tests.model_server import ModelServer, Request, sse, text
from tests.runtime.test_pictures import png
from tests.waiting import until

PDF = b"%PDF-1.4 a report"
PDF_PART = {
    "type": "file",
    "file": {
        "filename": "report.pdf",
        "file_data": f"data:application/pdf;base64,{base64.b64encode(PDF).decode()}",
    },
}


def user_contents(folder: Path) -> list[tuple[Any, ...]]:
    """Return the contents of the user's messages in the store."""
    with SQLiteStore(folder / "s.db") as store:
        events = store.read("one")
    return [
        event.content
        for event in events
        if isinstance(event, ev.MessageAdded) and event.sender == "user"
    ]


def usage_error(*values: str) -> str:
    """Return the text of the usage error that these values of `--attach` raise."""
    with pytest.raises(UsageError) as caught:
        attachments(values)
    return str(caught.value)


# --- what may be attached ---


def test_a_file_has_the_type_of_its_suffix_or_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(PDF)
    (tmp_path / "notes").write_text("Grüezi.")
    files = attachments([str(tmp_path / "a.pdf"), str(tmp_path / "notes")])
    assert files == (
        FileContent(PDF, "application/pdf", name="a.pdf"),
        FileContent("Grüezi.".encode(), "text/plain", name="notes"),
    )


def test_an_address_is_left_to_the_provider(tmp_path: Path) -> None:
    files = attachments(["https://example.org/a%20b.pdf", "gs://bucket/clip.mp4"])
    assert [(one.url, one.mime_type, one.data) for one in files] == [
        ("https://example.org/a%20b.pdf", "application/pdf", b""),
        ("gs://bucket/clip.mp4", "video/mp4", b""),
    ]


def test_a_type_may_stand_before_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shot").write_bytes(b"\xff")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b=c").write_text("x")
    values = ("image/png=shot", "application/pdf=https://example.org/42", "a/b=c")
    assert attachments(values) == (
        FileContent(b"\xff", "image/png", name="shot"),
        FileContent(url="https://example.org/42", mime_type="application/pdf"),
        FileContent(b"x", "text/plain", name="b=c"),
    )


def test_an_address_without_a_host_is_refused() -> None:
    assert usage_error("https://") == "--attach 'https://' is not a complete address"
    assert "url takes an address that the provider can fetch" in usage_error("data://text")


def test_a_file_address_is_a_path_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "a b?.txt").write_text("x")
    (file,) = attachments([f"file://{tmp_path}/a%20b%3F.txt"])
    assert (file.name, file.data, file.url) == ("a b?.txt", b"x", "")
    assert usage_error("file://elsewhere/a.txt") == (
        "--attach 'file://elsewhere/a.txt' is on another machine; give a path of this one"
    )


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("x")
    assert attachments(["~/a.txt"])[0].name == "a.txt"


def test_what_is_no_file_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.pdf").touch()
    (tmp_path / "blob").write_bytes(b"\x00\xff\xfe")
    assert usage_error(f"{tmp_path}/gone.pdf") == f"--attach '{tmp_path}/gone.pdf' does not exist"
    assert usage_error(str(tmp_path)) == (
        f"--attach '{tmp_path}' is a folder; name the files in it that you mean"
    )
    assert usage_error(f"{tmp_path}/empty.pdf") == f"--attach '{tmp_path}/empty.pdf' is empty"
    assert usage_error(f"{tmp_path}/blob") == (
        f"--attach '{tmp_path}/blob': its type is unknown, and it is not text. Say the type, such as"
        f" --attach image/png={tmp_path}/blob"
    )
    assert usage_error("/dev/zero") == "--attach '/dev/zero' is a device or a socket, not a file"
    assert "empty text" in usage_error(" ")
    assert "is no path" in usage_error("a\0b")


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to(tmp_path / "a.txt")
    assert "cannot be read: Too many levels" in usage_error(str(tmp_path / "a.txt"))


def test_files_of_a_message_have_a_largest_size_together(tmp_path: Path) -> None:
    for name, count in (("big.pdf", MAX_BYTES + 1), ("half.pdf", MAX_BYTES // 2 + 1)):
        with open(tmp_path / name, "wb") as file:
            file.truncate(count)
    assert usage_error(f"{tmp_path}/big.pdf") == (
        f"--attach '{tmp_path}/big.pdf' has 20.0 MB; all files of a message may have 20.0 MB."
        " Providers fetch larger ones themselves from an address: give https://..."
    )
    half = str(tmp_path / "half.pdf")
    assert len(attachments([half])) == 1
    assert "and 10.0 MB are left" in usage_error(half, half)
    with pytest.raises(UsageError, match="are left"):
        attachments([half], "/attach", attachments([half]))


def test_a_pipe_is_read_to_its_end() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"from a command")
    os.close(writer)
    try:
        (file,) = attachments([f"/dev/fd/{reader}"])
    finally:
        os.close(reader)
    assert (file.data, file.mime_type) == (b"from a command", "text/plain")


def test_a_pipe_is_read_no_further_than_the_largest_size(tmp_path: Path) -> None:
    path, byte_counts = tmp_path / "pipe.txt", [0]
    os.mkfifo(path)

    def write() -> None:
        with suppress(BrokenPipeError), open(path, "wb", buffering=0) as pipe:
            while byte_counts[0] < 3 * MAX_BYTES:
                byte_counts[0] += pipe.write(bytes(1_000_000))

    thread = threading.Thread(target=write)
    thread.start()
    assert "has more than 20.0 MB; all files of a message may have" in usage_error(str(path))
    thread.join(30)
    assert byte_counts[0] < 2 * MAX_BYTES


def test_a_name_that_is_not_utf8_is_shown_with_a_replacement(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.txt")
    Path(path).write_text("hello")
    [file] = attachments([path])
    assert file == FileContent(b"hello", "text/plain", name="bad\ufffd.txt")
    assert FileContent.from_json(file.to_json()) == file
    assert "'http://h/\\udcff.pdf' is not UTF-8" in usage_error("http://h/\udcff.pdf")


def test_a_dragged_path_is_one_file_however_it_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "it's here.pdf").write_bytes(PDF)
    place = f"{tmp_path}/it's here.pdf"
    assert split_places(place) == [place]
    assert split_places(place.replace(" ", "\\ ").replace("'", "\\'")) == [place]
    assert split_places(f'"{place}"') == [place]
    assert split_places(" a.pdf  'b c.png' ") == ["a.pdf", "b c.png"]
    assert split_places("it's gone.pdf") == ["it's gone.pdf"]
    assert split_places("  ") == []


# --- commands ---


def test_a_run_sends_its_files_before_the_task(tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(PDF)
    more = ["--attach", f"{tmp_path}/report.pdf", "--attach=https://example.org/a.png"]
    with ModelServer([text("Twelve.")]) as server:
        ended = holdfast(
            "run", "How many?", *options(server, tmp_path), *store_options(tmp_path), *more
        )
    assert (ended.returncode, ended.stderr.splitlines()[0]) == (0, "New conversation 'one'.")
    content = server.requests[0].messages[-1]["content"]
    assert content == [
        PDF_PART,
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "text", "text": "How many?"},
    ]
    assert ended.stdout.startswith(
        "\n> How many?\n> (file, application/pdf, report.pdf, 17 B)\n"
        "> (file, image/png, https://example.org/a.png)\n"
    )
    assert user_contents(tmp_path)[0][0] == FileContent(PDF, "application/pdf", name="report.pdf")
    with SQLiteStore(tmp_path / "s.db") as store:
        assert store.list()[0].title == "How many?"


def test_a_file_that_cannot_be_attached_ends_the_command_before_anything_begins(
    tmp_path: Path,
) -> None:
    with ModelServer([]) as server:
        for command in (["run", "x"], ["chat"]):
            ended = holdfast(
                *command,
                *options(server, tmp_path),
                *store_options(tmp_path),
                "--attach",
                "gone.pdf",
            )
            assert (ended.returncode, ended.stdout) == (2, "")
            assert ended.stderr == "holdfast: --attach 'gone.pdf' does not exist\n"
    assert not (tmp_path / "s.db").exists()


def test_a_file_that_the_model_does_not_take_is_named_in_a_note(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(b"PK\x03\x04")
    with ModelServer([text("Nothing.")]) as server:
        more = ["--full", "--attach", str(tmp_path / "a.docx")]
        ended = holdfast("run", "x", *options(server, tmp_path), *more)
    assert "a.docx, 4 bytes: this model's API takes no such file" in ended.stdout


def test_lines_of_a_pipe_attach_files_to_the_next_line(tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(PDF)
    (tmp_path / "b.txt").write_text("bee")
    lines = f"/attach {tmp_path}/report.pdf\n/detach\n/attach {tmp_path}/b.txt\none\ntwo\n"
    with ModelServer([text("1"), text("2")]) as server:
        first = ["--attach", f"{tmp_path}/report.pdf"]
        ended = holdfast("chat", *options(server, tmp_path), *first, stdin=lines)
    assert ended.returncode == 0, ended.stderr
    assert server.requests[0].messages[-1]["content"] == [
        {"type": "text", "text": "b.txt:\nbee"},
        {"type": "text", "text": "one"},
    ]
    assert server.requests[1].messages[-1]["content"] == "two"
    assert "Attached to your next message: b.txt (text/plain, 3 B)." in ended.stderr
    assert "Nothing is attached." in ended.stderr


def test_a_script_does_not_send_a_message_without_its_file(tmp_path: Path) -> None:
    with ModelServer([]) as server:
        ended = holdfast("chat", *options(server, tmp_path), stdin="/attach gone.pdf\nSum it up.\n")
    assert ended.returncode == 2
    assert "/attach 'gone.pdf' does not exist" in ended.stderr
    assert not server.requests


@pytest.mark.slow
def test_a_user_attaches_a_file_in_a_chat(tmp_path: Path) -> None:
    (tmp_path / "my report.pdf").write_bytes(PDF)

    def answer(request: Request) -> Any:
        content = request.messages[-1]["content"]
        kinds = "text" if isinstance(content, str) else [part["type"] for part in content]
        return sse(text(f"Got {kinds}."))

    with ModelServer(answer) as server, terminal("chat", *options(server, tmp_path)) as typist:
        typist.sees("> ")
        typist.types(f"/attach {tmp_path}/gone.pdf\r")
        typist.sees("gone.pdf' does not exist")
        typist.sees("> ")
        typist.types(f"/attach {tmp_path}/my\\ report.pdf\r")
        typist.sees(r"next message: my report\.pdf \(application/pdf, 17 B\)")
        typist.sees("> ")
        typist.types("/attach https://example.org/a.png\r")
        typist.sees(r"my report\.pdf .*https://example\.org/a\.png")
        typist.sees("> ")
        typist.types("How many?\r")
        typist.sees(r"Got \['file', 'image_url', 'text'\]")
        typist.sees("> ")
        typist.types("And now?\r")
        typist.sees("Got text")
        typist.sees("> ")
        typist.types("/attach\r")
        typist.sees("Nothing is attached")
        typist.sees("> ")
        typist.types("\x04")
        assert typist.leaves() == 0


@pytest.mark.slow
def test_tell_sends_a_file(tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(PDF)
    with ModelServer([text("Hello."), text("Read.")]) as server:
        holdfast("run", "hi", *options(server, tmp_path), *store_options(tmp_path))
        posted = tell(tmp_path, "send", "Read it", "--attach", f"{tmp_path}/report.pdf")
        assert posted.stdout == "posted: send\n"
        assert (
            holdfast("chat", *options(server, tmp_path), *store_options(tmp_path)).returncode == 0
        )
    assert server.requests[1].messages[-1]["content"] == [
        PDF_PART,
        {"type": "text", "text": "Read it"},
    ]
    assert user_contents(tmp_path)[-1] == (
        FileContent(PDF, "application/pdf", name="report.pdf"),
        TextContent("Read it"),
    )
    wrong = tell(tmp_path, "pause", "--attach", "x")
    assert (wrong.returncode, wrong.stderr) == (2, "holdfast: --attach is for send only\n")


@pytest.mark.slow
def test_a_run_and_a_chat_on_a_server_send_files_of_this_machine(
    tmp_path: Path,
) -> None:
    remote = pytest.importorskip("tests.cli.test_remote_command")
    (tmp_path / "report.pdf").write_bytes(PDF)
    (tmp_path / "server").mkdir()
    key = {"HOLDFAST_SERVER_KEY": remote.KEY}
    more = ["--attach", f"{tmp_path}/report.pdf"]
    with (
        remote.AgentServer(tmp_path / "server") as server,
        ModelServer([text("One."), text("Two."), text("Three.")]) as model,
    ):
        there = ["--server", server.url, "--id", "one"]
        first = ["--model", "m", "--base-url", model.url]
        assert holdfast("run", "What is it?", "--new", *there, *first, *more, **key).returncode == 0
        lines = f"/attach {tmp_path}/report.pdf\nAnd this?\n"
        assert holdfast("chat", *there, stdin=lines, **key).returncode == 0
        ended = holdfast("tell", "--server", server.url, "one", "send", "Again", *more, **key)
        assert ended.stdout == "posted: send\n"
        until(lambda: len(model.requests) == 3)
        for request, words in zip(
            model.requests, ("What is it?", "And this?", "Again"), strict=True
        ):
            assert request.messages[-1]["content"] == [PDF_PART, {"type": "text", "text": words}]
        output = holdfast("show", "--server", server.url, "one", **key).stdout
    assert "> (file, application/pdf, report.pdf, 17 B)" in output


def test_a_large_picture_is_scaled_down(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "a.png").write_bytes(png(2000, 1000))
    (tmp_path / "small.png").write_bytes(png(40, 20))
    large, small = attachments([str(tmp_path / "a.png"), str(tmp_path / "small.png")])
    assert (pixels(large.data), large.mime_type, large.name) == ((1568, 784), "image/png", "a.png")
    assert small.data == png(40, 20)


def test_a_picture_that_cannot_be_scaled_down_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(40, 20)[:12])
    assert "is damaged" in usage_error(str(tmp_path / "a.png"))
