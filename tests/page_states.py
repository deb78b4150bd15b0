"""States of the agent server's page, for judges and for pictures. Each function shows one on a
page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.agent_servers import Serving
from tests.browser import Browser, Page
from tests.server.test_page import ask_in, family, open_page, talk
from tests.waiting import until

BUG = '''def median(values):
    """The middle value."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
'''
FIX = (
    "    return ordered[len(ordered) // 2]\n",
    "    middle = len(ordered) // 2\n"
    "    if len(ordered) % 2:\n"
    "        return ordered[middle]\n"
    "    return (ordered[middle - 1] + ordered[middle]) / 2\n",
)
CHECK = "python3 -c 'from stats import median; print(median([1, 2, 3, 4]))'"
ANSWER = """**Fixed.** `median` took the upper of the two middle values:

| values | before | now |
|---|---|---|
| 1 2 3 4 | 3 | 2.5 |
| 1 2 3 | 2 | 2 |

- [x] the function
- [ ] a test

```python
print(median([1, 2, 3, 4]))
```
"""
TASK = "median([1, 2, 3, 4]) gives 3. Mend it."
WORK: list[Any] = [
    ("write_file", {"path": "stats.py", "content": BUG}),
    ("read_file", {"path": "stats.py"}),
    [
        ("edit_file", {"path": "stats.py", "old": FIX[0], "new": FIX[1]}),
        ("grep", {"pattern": "def"}),
    ],
    ("terminal", {"command": "ls nothing"}),
    ("terminal", {"command": CHECK}),
    ANSWER,
]


def fill(server: Serving) -> None:
    """Make the conversations that the states show."""
    finished = talk(server, "finished", WORK, runtime=True, message=TASK)
    plan = {
        "steps": [
            {"step": "Find the mistake", "state": "done"},
            {"step": "Mend it", "state": "in_progress"},
            {"step": "Write a test", "state": "pending"},
        ]
    }
    waiting = talk(
        server,
        "waiting",
        [("plan", plan), WORK[0], WORK[2], WORK[4], ANSWER],
        runtime=True,
        message=TASK,
        confirm="risky",
        planning="tool",
    )
    broken = talk(server, "failed", [("look", {"at": "it"})], message="Hello?")
    ask_in(server, {"question": "Which city?", "options": ["Ghent", "Bruges"]})
    family(server)
    for path, status in ((finished, "finished"), (waiting, "waiting_for_confirmation")):
        until(lambda path=path, status=status: _status(server, path) == status, seconds=60)
    until(lambda: _status(server, broken) == "error")


def _status(server: Serving, path: str) -> str:
    return server.ask("GET", path).json["status"]


State = Callable[[Browser, Serving, dict[str, Any]], Page]


def _talk(id: str, wait: str = ".entry", text: str = "") -> State:
    def show(browser: Browser, server: Serving, options: dict[str, Any]) -> Page:
        page = open_page(browser, server, id, **options)
        page.wait(wait, text)
        return page

    return show


def _tab(id: str, tab: str, wait: str) -> State:
    def show(browser: Browser, server: Serving, options: dict[str, Any]) -> Page:
        page = _talk(id)(browser, server, options)
        if page.run("document.querySelector('#panel').hidden"):
            page.click("#panel-open")
        page.click("[role=tab]", tab)
        page.wait(wait)
        return page

    return show


def _login(browser: Browser, server: Serving, options: dict[str, Any]) -> Page:
    page = browser.open(f"http://127.0.0.1:{server.port}/", **options)
    page.wait("#dialog[open]")
    return page


def _home(browser: Browser, server: Serving, options: dict[str, Any]) -> Page:
    page = open_page(browser, server, "", **options)
    page.wait("#list .item")
    return page


def _new(browser: Browser, server: Serving, options: dict[str, Any]) -> Page:
    page = _home(browser, server, options)
    page.click("#new-open")
    page.wait("#main button.primary")
    return page


def _pressed(id: str, key: str) -> State:
    def show(browser: Browser, server: Serving, options: dict[str, Any]) -> Page:
        page = _talk(id)(browser, server, options) if id else _home(browser, server, options)
        page.press(key)
        page.wait("#dialog[open]")
        return page

    return show


STATES: dict[str, State] = {
    "login": _login,
    "list": _home,
    "finished": _talk("finished", ".answer", "Fixed"),
    "waiting": _talk("waiting", "#decide .card"),
    "asking": _talk("c", "#decide .card"),
    "failed": _talk("failed", ".entry.error"),
    "trace": _tab("finished", "Trace", ".waterfall .row"),
    "tree": _tab("lead", "Tree", ".tree li"),
    "tools": _tab("finished", "Tools", ".tool"),
    "about": _tab("finished", "About", ".about"),
    "new": _new,
    "help": _pressed("finished", "?"),
}
