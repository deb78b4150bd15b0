"""`holdfast demo`: a scripted model fixes a real bug with real tools, and the result is checked."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from holdfast import events as ev
from holdfast.cli.build import LocalSource
from holdfast.cli.console import Console
from holdfast.cli.display import ReadingPace
from holdfast.cli.environment import shell_environment
from holdfast.cli.exit_codes import Exit
from holdfast.cli.option_values import agent_in
from holdfast.cli.session import Parts, Session
from holdfast.cli.signals import Signals
from holdfast.cli.text import GAP, TextLine, styled
from holdfast.conversation import Conversation
from holdfast.llm.scripted import ScriptedLLM, ScriptedRequest
from holdfast.runtime import LocalRuntime

TASK = (
    "Our users say that search results start at the eleventh. Find out why, fix it, and show with"
    " the tests that it is fixed."
)

BROKEN, FIXED = "    first = number * size\n", "    first = (number - 1) * size\n"

# The fixed line is longer, because Python considers a .pyc current if its source has the same size
# and the same second of modification.
PROJECT = {
    "shop/__init__.py": '"""A small shop."""\n',
    "shop/search.py": (
        '''"""Finding things in the shop."""

from shop.paging import page


def search(items, word, number=1):
    """Page `number` of the items that contain `word`."""
    return page([item for item in items if word in item], number)
'''
    ),
    "shop/paging.py": (
        f'''"""Long lists, a page at a time."""


def page(items, number, size=10):
    """The items on page `number`; the first page is number 1."""
{BROKEN}    return items[first : first + size]


def pages(items, size=10):
    """How many pages there are."""
    return -(-len(items) // size)
'''
    ),
    "tests/__init__.py": "",
    "tests/test_paging.py": (
        """import unittest

from shop.paging import page, pages


class PagingTest(unittest.TestCase):
    def test_the_first_page_has_the_first_items(self):
        self.assertEqual(page("abcdefg", 1, size=3), "abc")

    def test_the_last_page_may_be_short(self):
        self.assertEqual(page("abcdefg", 3, size=3), "g")

    def test_an_incomplete_page_counts(self):
        self.assertEqual(pages("abcdefg", size=3), 3)
"""
    ),
}


def _script(tests: str) -> list[Any]:
    """Return the model's script. A function of the request answers by a tool's result."""

    def after_first_run(request: ScriptedRequest) -> Any:
        if "FAILED" not in request.text:
            return "The tests pass as they are, so I change nothing."
        return [
            (
                "They fail as the users say. `page` counts from 1, but `number * size` skips the"
                " whole first page."
            ),
            ("edit_file", {"path": "shop/paging.py", "old": BROKEN, "new": FIXED}),
        ]

    def after_last_run(request: ScriptedRequest) -> Any:
        if "OK" not in request.text:
            return "The tests still fail, so this was not the whole reason."
        return (
            "Fixed. Pages are numbered from 1, but `shop/paging.py` computed the first item as if"
            " they were numbered from 0, so that every search began with its second page. It now"
            " subtracts one. The tests failed before the change and pass after it."
        )

    return [
        [
            "I look for where results are cut into pages, and for the tests of it.",
            ("grep", {"pattern": r"\bpage\(", "glob": "*.py"}),
            ("glob", {"pattern": "tests/**/*.py"}),
        ],
        ["`search` leaves it to `page`. I read that.", ("read_file", {"path": "shop/paging.py"})],
        ["Before I change anything I want to see it fail.", ("terminal", {"command": tests})],
        after_first_run,
        ["Now the tests again.", ("terminal", {"command": tests})],
        after_last_run,
    ]


REAL = """\
That was a scripted model with real tools. To use a real model:
  export OPENAI_API_KEY=...
  holdfast run "Find out why the tests fail, and fix it" --model gpt-5-mini --workdir DIR
or on your own machine, with any server that speaks Chat Completions:
  holdfast run "..." --base-url http://localhost:11434/v1 --model NAME
See holdfast --help for everything else."""


def demo(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Run the demo. Return FINISHED only if the project's tests failed before and pass after."""
    console = Console(env)
    slow = console.is_terminal and not options.fast
    passed = shell_environment(env, ())
    with TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        for name, text in PROJECT.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        failed_before = not _passes(folder, passed)
        llm = ScriptedLLM(
            _script(f"{shlex.quote(sys.executable)} -m unittest"),
            delay=0.8 if slow else 0.0,
            stream=console.is_terminal,
        )
        pace = ReadingPace(0.6, 0.03) if slow else ReadingPace()
        stack = ExitStack()
        runtime = stack.enter_context(LocalRuntime(folder, env=passed))
        real = "The model is scripted; tools, files and tests are real."
        console.line(f"A small shop with a bug, in {folder}. {real}", "dim")
        agent = agent_in(f"the folder {runtime.workdir}", llm, runtime.tools, {})
        source = LocalSource(runtime, partial(Conversation, agent), None, None, stack)
        parts = Parts(source, shows_tokens=False)
        with Signals() as signals, closing(Session(parts, console, signals, pace=pace)) as session:
            code = session.main(_work)
            history = session.conversation.get_history()
        if code is not Exit.FINISHED:
            return code
        problem = _problem(failed_before, _passes(folder, passed), history)
        if problem:
            console.error(f"the demo failed: {problem}.")
            return Exit.FAILED
        checked = TextLine("add", "Checked: the project's tests failed before and pass now.")
        console.show([GAP, checked, GAP, *styled("plain", REAL)])
        return console.loss if console.broken else Exit.FINISHED


def _work(session: Session) -> Exit:
    session.say(TASK)
    code = session.drive()
    if session.was_interrupted:
        return Exit.INTERRUPTED
    return session.outcome() if code is None else code


def _passes(folder: Path, env: Mapping[str, str]) -> bool:
    """Return True if the project's tests pass, run here and not by the agent."""
    run = subprocess.run(
        [sys.executable, "-m", "unittest"],
        cwd=folder,
        env={"PATH": os.defpath, **env},
        capture_output=True,
        timeout=60,
        check=False,
    )
    return run.returncode == 0


def _problem(failed_before: bool, passes_after: bool, history: list[ev.AnyEvent]) -> str:
    """Return the first expectation that the demo did not meet, "" if it met all."""
    if not failed_before:
        return "the tests passed before anything was changed"
    if not passes_after:
        return "the tests fail after the change"
    codes = [
        event.result.meta["exitCode"]
        for event in history
        if isinstance(event, ev.ToolCallFinished) and "exitCode" in event.result.meta
    ]
    if len(codes) != 2 or codes[0] == 0 or codes[1] != 0:
        return f"the agent's test runs ended with {codes}"
    return ""
