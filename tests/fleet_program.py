"""A worker as a program that can be killed or stopped, and an agent whose effects are counted in
files beside the store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore, Tool, ToolAnnotations
from holdfast import events as ev
from holdfast.commands import Send
from holdfast.content import TextContent, ToolResult
from holdfast.fleet import Bell, FleetBackend, TableBackend, Worker
from holdfast.fleet.procrastinate import ProcrastinateBackend
from holdfast.llm.scripted import ScriptedRequest
from holdfast.store import PostgresStore, Store
from holdfast.tools import ToolContext
from tests import forks


class Settings(msgspec.Struct, frozen=True):
    """The settings of a worker program, as JSON in its argument."""

    place: str
    folder: str
    backend: str = "table"
    schema: str = "holdfast"
    lease_seconds: float = 6.0
    concurrency: int = 8
    tenant_limit: int | None = None
    grace: float = 10.0

    def opened(self) -> tuple[Store, FleetBackend]:
        """Open the store and the backend."""
        backend: FleetBackend
        if not self.place.startswith("postgresql:"):
            backend = TableBackend(self.place)
            return SQLiteStore(self.place, bell=Bell(backend)), backend
        kind = TableBackend if self.backend == "table" else ProcrastinateBackend
        backend = kind(self.place, schema=self.schema)
        store = PostgresStore(
            self.place,
            schema=self.schema,
            bell=Bell(backend),
            lease_seconds=self.lease_seconds,
            pool_size=self.concurrency,
        )
        return store, backend


class Effects:
    """The tools of a fleet's agent. Each effect is a line in a file, outside of any store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "mails").mkdir(exist_ok=True)

    def agent(self) -> Agent:
        """Return an agent that plays the plan in a conversation's last message."""
        repeatable = ToolAnnotations(idempotent=True)
        tools = [
            Tool("strike", "", self.strike),
            Tool("mail", "", self.mail, annotations=repeatable),
            Tool("nap", "", self.nap, annotations=repeatable),
            Tool("die", "", self.die),
            Tool("hold", "", self.hold),
        ]
        return Agent(ScriptedLLM(self.answer), tools)

    def answer(self, request: ScriptedRequest) -> Any:
        """Return the next call of the plan, a list of names and arguments, or the end."""
        last = max(number for number, one in enumerate(request.messages) if one["role"] == "user")
        content = request.messages[last]["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        if text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        plan = json.loads(text) if text.startswith("[") else []
        answered = sum(one["role"] == "assistant" for one in request.messages[last:])
        return tuple(plan[answered]) if answered < len(plan) else "done"

    def _write(self, name: str, line: str) -> None:
        file = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)

    def strike(self, context: ToolContext, seconds: float = 0.0) -> str:
        """Have an effect that may not be repeated."""
        self._write("strikes", f"{context.idempotency_key} {os.getpid()}")
        time.sleep(seconds)
        return "struck"

    def mail(self, context: ToolContext, seconds: float = 0.0) -> str:
        """Have an effect that its receiver deduplicates by the idempotency key."""
        # One system call is the receipt of the mail: a kill falls before it or after it.
        place = self._folder / "mails" / quote(context.idempotency_key, safe="")
        try:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return "sent before"
        time.sleep(seconds)
        return "sent"

    def nap(self, seconds: float) -> str:
        """Have no effect."""
        time.sleep(seconds)
        return "slept"

    def die(self) -> str:
        """Kill the process."""
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    def hold(self, context: ToolContext) -> str:
        """Return once there is a file `open`."""
        self._write("holds", f"{context.conversation_id} {os.getpid()}")
        while not (self._folder / "open").exists() and not context.cancelled.is_set():
            time.sleep(0.01)
        return "held"

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file of effects."""
        try:
            return (self._folder / name).read_text().splitlines()
        except FileNotFoundError:
            return []

    def mails(self) -> set[str]:
        """Return the idempotency keys of the mails that were received."""
        return {unquote(one.name) for one in (self._folder / "mails").iterdir()}

    def strikes(self) -> Counter[str]:
        """Return how often each call of `strike` began."""
        return Counter(line.split()[0] for line in self.lines("strikes"))


def post(store: Store, id: str, plan: Sequence[tuple[str, dict[str, Any]]] | str, key: str) -> None:
    """Create the conversation if needed, and post its plan."""
    if not store.list([id], waiting=True) and not store.list([id]):
        store.release(store.acquire(id))
    text = plan if isinstance(plan, str) else json.dumps(plan)
    store.post(id, Send((TextContent(text),)), key)


def outcome(result: ToolResult) -> str:
    """Return the text of a call's result, or "unknown" or "failed"."""
    if result.is_error:
        return result.meta.get("outcome", "failed")
    return "".join(one.text for one in result.content if isinstance(one, TextContent))


def results(store: Store, id: str) -> list[str]:
    """Return the outcomes of a conversation's calls."""
    outcomes: list[str] = []
    for event in store.read(id):
        if isinstance(event, ev.ToolCallFinished):
            outcomes.append(outcome(event.result))
    return outcomes


class WorkerProcess:
    """A worker in another process. `close` kills it.

    `within` are the name of a module that runs the program, and its first arguments.
    """

    def __init__(self, settings: Settings, *within: str) -> None:
        module = (*within, "tests.fleet_program")
        self.process = forks.Popen(
            [sys.executable, "-m", *module, msgspec.json.encode(settings).decode()],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        self.pid = self.process.pid

    def ready(self) -> WorkerProcess:
        """Wait until it claims conversations."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        return self

    def kill(self) -> None:
        """End it without a warning."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Freeze it."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue it after `stop`."""
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self, seconds: float = 30.0) -> int:
        """Ask it to drain, and return its exit status."""
        self.process.terminate()
        return self.process.wait(seconds)

    @property
    def dead(self) -> bool:
        """True if it has ended."""
        return self.process.poll() is not None

    def close(self) -> None:
        """Kill it and release its pipe."""
        self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


def main(argument: str) -> None:
    """Serve until SIGTERM."""
    settings = msgspec.json.decode(argument, type=Settings)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    store, backend = settings.opened()
    agent = Effects(Path(settings.folder)).agent()

    def opened(id: str) -> Conversation:
        return Conversation(agent, store, id)

    worker = Worker(
        store,
        opened,
        backend,
        concurrency=settings.concurrency,
        tenant_limit=settings.tenant_limit,
    )
    worker.start()
    print("ready", flush=True)
    ended.wait()
    worker.close(settings.grace)
    store.close()
    backend.close()


if __name__ == "__main__":
    main(sys.argv[1])
