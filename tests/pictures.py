"""Make the pictures of the README and the docs anew, from scripted runs of real tools: `python -m
tests.pictures`. It needs Chromium and the extra `chat`.

`python -m tests.pictures FOLDER` writes the page's twelve states there for review, at three widths,
light and dark. They are not committed.
"""

from __future__ import annotations

import sys
import tempfile
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from tests import page_states
from tests.agent_servers import Serving
from tests.browser import Browser
from tests.cli.test_commands import options, terminal
from tests.cli.test_live_chat import Screen, answer_stream
from tests.model_server import ModelServer, calls
from tests.page_states import ANSWER, BUG, CHECK, FIX, TASK
from tests.paths import REPO
from tests.server.test_page import open_page, talk
from tests.waiting import until

PICTURES = REPO / "docs" / "pictures"
WIDTHS = {390: 844, 900: 800, 1400: 900}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("read_file", {"path": "stats.py"}),
    ("edit_file", {"path": "stats.py", "old": FIX[0], "new": FIX[1]}),
    ("terminal", {"command": CHECK}),
]
# A dark terminal: the colours of the console, and the plain one.
COLOURS = {"default": "#d8dee9", "cyan": "#88c0d0", "red": "#e67c86", "green": "#a3be8c"}
BACKGROUND, FONT = "#1f2430", "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
CELL_WIDTH, CELL_HEIGHT = 8.4, 18


def terminal_picture(path: Path) -> None:
    """Draw the end of a chat, as an SVG of the terminal's cells."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "project"
        work.mkdir()
        (work / "stats.py").write_text(BUG)
        script = [*(calls(call) for call in CALLS), answer_stream(ANSWER)]
        env = {
            "HOLDFAST_PLAIN": "",
            "HOME": folder,
            "XDG_STATE_HOME": "",
            "HOLDFAST_SANDBOX": "auto",
        }
        with ModelServer(script) as server:
            arguments = [
                *options(server, work),
                "--no-undo",
                "--network",
                "pypi.org",
                "--model",
                "gpt-5",
            ]
            with terminal("chat", *arguments, **env) as typist:
                screen = Screen(typist)
                screen.shows(r"(?m)^>$")
                screen.types(f"{TASK}\r")
                screen.shows(r"1 2 3 +2 +2")
                screen.types("now add a test for it")
                screen.shows(r"(?m)^> now add a test for it$")
                path.write_text(svg(picked(screen.rows()), folder))
                screen.types("\x15\x04")
                typist.leaves()


def picked(rows: list[list[Any]]) -> list[list[Any]]:
    """Return the rows from the user's message on, with each run of empty rows reduced to one."""
    words = ["".join(cell.data for cell in row).strip() for row in rows]
    begin = words.index(f"> {TASK}")
    return [row for at, row in enumerate(rows) if at >= begin and (words[at] or words[at - 1])]


def svg(rows: list[list[Any]], hidden: str) -> str:
    """Return the cells of a terminal as SVG. The temporary folder `hidden` is shown as a home."""
    lines: list[str] = []
    for number, row in enumerate(rows):
        at = 0
        for style, group in groupby(row, key=lambda cell: (cell.fg, cell.bold)):
            words = "".join(cell.data for cell in group)
            start, at = at, at + len(words)
            if words.strip():
                colour = COLOURS.get(style[0], COLOURS["default"])
                weight = ' font-weight="bold"' if style[1] else ""
                cell_text = escape(words.rstrip().replace(hidden, "~")).replace(" ", "&#160;")
                lines.append(
                    f'<text x="{16 + start * CELL_WIDTH:.1f}" y="{30 + number * CELL_HEIGHT}"'
                    f' fill="{colour}"{weight}>{cell_text}</text>'
                )
    width, height = round(32 + 100 * CELL_WIDTH), 34 + len(rows) * CELL_HEIGHT
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' font-family="{FONT}" font-size="14">\n'
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>\n{body}\n</svg>\n'
    )


def page_picture(path: Path) -> None:
    """Take a picture of a conversation on the agent server's page, with a call that waits for
    approval."""
    with tempfile.TemporaryDirectory() as folder, Serving(Path(folder)) as server:
        script: list[Any] = [
            ("write_file", {"path": "stats.py", "content": BUG}),
            *CALLS[1:],
        ]
        more: dict[str, Any] = {"runtime": True, "confirm": "risky"}
        talk(server, "mend-the-median", script, message=TASK, **more)
        address = "/api/conversations/mend-the-median"
        until(lambda: server.ask("GET", address).json["status"] != "running", seconds=30)
        with Browser() as browser:
            page = open_page(browser, server, "mend-the-median")
            page.size(1200, 900)
            page.wait("body", "wants to run")
            page.picture(path)


def begin_picture(path: Path) -> None:
    """Take a picture of the start of a conversation on the page of a new server."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Serving(Path(folder)) as server,
        Browser() as browser,
    ):
        page = open_page(browser, server)
        page.size(1200, 800)
        page.wait("#begin-advice", "from openai")
        page.fill("#begin-text", TASK)
        page.click("#begin summary")
        page.wait("#begin-sandbox", "sandbox")
        page.picture(path)


def trace_picture(path: Path) -> None:
    """Take a picture of the trace of a conversation on the page."""
    with tempfile.TemporaryDirectory() as folder, Serving(Path(folder)) as server:
        page_states.fill(server)
        with Browser() as browser:
            form = {"width": 1120, "height": 560}
            page_states.STATES["trace"](browser, server, form).picture(path)


def state_pictures(folder: Path) -> None:
    """Take a picture of every state of the page, at three widths, light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, Serving(Path(place)) as server:
        page_states.fill(server)
        with Browser() as browser:
            for name, show in page_states.STATES.items():
                for width, height in WIDTHS.items():
                    for theme in ("light", "dark"):
                        form: dict[str, Any] = {"width": width, "height": height}
                        form |= {"dark": theme == "dark", "touch": width < 720}
                        page = show(browser, server, form)
                        # until fonts and diffs are loaded
                        page.run("new Promise(done => setTimeout(done, 250))")
                        page.picture(folder / f"{name}-{width}-{theme}.png")
                        page.close()


if __name__ == "__main__" and len(sys.argv) > 1:
    state_pictures(Path(sys.argv[1]))
elif __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    terminal_picture(PICTURES / "chat.svg")
    page_picture(PICTURES / "page.png")
    trace_picture(PICTURES / "trace.png")
    begin_picture(PICTURES / "page-begin.png")
