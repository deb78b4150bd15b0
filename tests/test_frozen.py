"""Bytes and signatures that users and stored data depend on, compared with `data/frozen/`.

A difference is a change of behaviour. If it is meant, write the new state with
`pytest tests/test_frozen.py --freeze` and explain it in the changelog.
"""

from __future__ import annotations

import datetime as dt
import enum
import inspect
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Agent, Conversation, SQLiteStore
from holdfast.serve import agui, responses_routes
from tests.agent_servers import Serving
from tests.llm.test_fidelity import WIRE_NAMES, add, answer, model
from tests.model_server import ModelServer
from tests.paths import DATA

FROZEN = DATA / "frozen"
COMMANDS = [
    "run",
    "chat",
    "demo",
    "show",
    "list",
    "tell",
    "replay",
    "eval",
    "stats",
    "check",
    "export",
    "import",
    "tools",
    "mcp",
    "serve",
]


@pytest.fixture
def frozen(request: pytest.FixtureRequest) -> Any:
    """Return a function that compares text with a file of `data/frozen/`, or writes it with
    --freeze."""

    def compare(name: str, text: str) -> None:
        path = FROZEN / name
        if request.config.getoption("--freeze"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{path} differs: see the docstring of {__file__}"

    return compare


@pytest.mark.parametrize("wire", WIRE_NAMES)
def test_the_journal_and_the_requests_of_a_conversation(
    wire: str, tmp_path: Path, frozen: Any
) -> None:
    seconds = itertools.count()
    ids = itertools.count(1)
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    with ModelServer(answer) as server, SQLiteStore(tmp_path / "s.db") as store:
        agent = Agent(model(wire, server.url), [add], confirm={"add": "ask"})
        with Conversation(
            agent,
            store,
            "c",
            clock=lambda: begin + dt.timedelta(seconds=next(seconds)),
            new_id=lambda: f"{next(ids):032x}",
        ) as conversation:
            conversation.send_message("1 + 2?")
            conversation.run()
            conversation.approve()
            conversation.run()
            conversation.send_message("Again.")
            conversation.run()
            conversation.reject(reason="not again")
            conversation.run()
        journal = b"\n".join(event.to_json() for event in store.read("c")).decode() + "\n"
        bodies = "\n".join(request.body.decode() for request in server.requests) + "\n"
    for moving, still in (
        (r'"duration":[0-9.e-]+', '"duration":0'),
        (r'"timestamp":"[^"]*"', '"timestamp":"T"'),
        (r"127\.0\.0\.1:\d+", "HOST"),
    ):
        journal = re.sub(moving, still, journal)
    frozen(f"journal-{wire}.jsonl", journal)
    frozen(f"requests-{wire}.jsonl", bodies)


def test_the_signatures_of_the_public_names(frozen: Any) -> None:
    lines: list[str] = []
    for name in holdfast.__all__:
        thing = getattr(holdfast, name)
        lines.append(f"{name}{_signature(thing)}")
        if inspect.isclass(thing):
            ours = [one for one in thing.__mro__ if one.__module__.startswith("holdfast")]
            for member in sorted({name for one in ours for name in vars(one)}):
                value = inspect.getattr_static(thing, member)
                if member.startswith("_"):
                    continue
                parameters = _signature(getattr(thing, member)) if callable(value) else ""
                lines.append(f"    {member}{parameters}")
    frozen("signatures.txt", "\n".join(lines) + "\n")


def _signature(thing: Any) -> str:
    """Return the parameters' names, kinds and whether they have a default, on every Python alike."""
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        return ""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return ""
    texts = [
        f"{'*' * (one.kind - 1) if one.kind in (2, 4) else ''}{one.name}"
        f"{'=' if one.default is not one.empty else ''}{'!' if one.kind == 3 else ''}"
        for one in parameters
    ]
    return f"({', '.join(texts)})"


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse lays out options otherwise")
def test_the_help_of_the_command(frozen: Any) -> None:
    text = ""
    for command in ([], *([name] for name in COMMANDS)):
        process = subprocess.run(
            [sys.executable, "-m", "holdfast.cli", *command, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={
                "COLUMNS": "100",
                "PATH": "",
                "PYTHONPATH": str(Path(holdfast.__file__).parents[1]),
            },
        )
        text += process.stdout
    frozen("help.txt", text)


def test_the_openapi_document(tmp_path: Path, frozen: Any) -> None:
    with Serving(tmp_path, doors=[responses_routes.add, agui.add]) as server:
        document = server.ask("GET", "/openapi.json").json
    lines = [
        f"{part}/{name}: {json.dumps(_without_prose(value), sort_keys=True)}"
        for part, values in (("paths", document["paths"]), *document["components"].items())
        for name, value in sorted(values.items())
    ]
    frozen("openapi.txt", "\n".join(lines) + "\n")


def _without_prose(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_prose(one)
            for key, one in value.items()
            if key not in ("description", "summary", "version") or isinstance(one, dict)
        }
    return [_without_prose(one) for one in value] if isinstance(value, list) else value
