"""Callbacks that tests run in processes of their own."""

from __future__ import annotations

import ctypes
import enum
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, SecretStr

from holdfast import ImageContent, TextContent, ToolContext, ToolError, ToolResult, tool
from holdfast.errors import ToolValidationError

IMPORTED = os.getpid()


class Color(enum.Enum):
    RED = "red"


class Order(BaseModel):
    item: str
    count: int = Field(alias="howMany")
    secret: SecretStr = SecretStr("")


class Busy(ConnectionError):
    status_code = 429


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Places:
    @staticmethod
    def static(a: int) -> int:
        return a + 1

    @classmethod
    def klass(cls, a: int) -> str:
        return f"{cls.__name__} {a}"

    def method(self, a: int) -> int:
        return a


@tool(isolation="process")
def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


def plain(value: Any) -> Any:
    return value


def types(
    order: Order,
    color: Color,
    day: date,
    kind: Literal["x"],
    path: Path = Path("/tmp"),
    many: tuple[Order, ...] = (),
) -> dict[str, str]:
    """What arrives is what the signature asks for."""
    assert isinstance(order, Order)
    assert isinstance(path, Path)
    assert all(isinstance(one, Order) for one in many)
    return {"item": order.item, "count": str(order.count), "secret": order.secret.get_secret_value(), "color": color.name,
            "day": f"{type(day).__name__} {day.isoformat()}", "kind": kind, "many": str(len(many))}  # fmt: skip


def about(context: ToolContext) -> dict[str, Any]:
    return {
        "conversation": context.conversation_id,
        "call": context.call_id,
        "attempt": context.attempt,
        "key": context.idempotency_key,
        "marks": context.process_environment(),
        "environment": dict(os.environ),
        "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
        "links": [
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
        ],
        "pid": os.getpid(),
        "imported": IMPORTED,
        "argv": sys.argv,
        "threads": [thread.name for thread in threading.enumerate()],
    }


def lacks(what: str, context: ToolContext) -> str:
    """Ask the context for what only the parent has."""
    acts: dict[str, Any] = {
        "output": lambda: context.output("1.0"),
        "secret": lambda: context.secret("TOKEN"),
        "spawn": lambda: context.spawn(None),
    }
    return str(acts[what]())


def runtime(context: ToolContext) -> str:
    return str(context.runtime)


def content() -> ToolResult:
    return ToolResult(
        [TextContent("é"), ImageContent(b"\x00\xff")], {"n": [1, None]}, {"exitCode": 0}
    )


def nothing() -> None:
    return None


async def coroutine(a: int) -> int:
    import asyncio

    await asyncio.sleep(0.01)
    return a


def forever() -> None:
    while True:
        pass


def locked() -> None:
    """Holds the interpreter's lock: no other thread of its process runs."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def sleeping() -> None:
    ctypes.PyDLL(None).sleep(1000)  # under the lock as well


def stubborn(file: str) -> None:
    """Ignores signals, and starts what leaves its session and its parents."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    family(file)
    time.sleep(1000)


def family(file: str) -> str:
    """Starts a child, a child in a session of its own, and an orphan in a session of its own; writes their pids to `file`."""
    code = "import time; time.sleep(1000)"
    near = subprocess.Popen([sys.executable, "-c", code])
    far = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, env={}, close_fds=True
    )
    orphan = (
        "import os, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "print(os.getpid(), flush=True); os.close(1); time.sleep(1000)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", orphan], stdout=subprocess.PIPE, text=True, env={}, check=True
    ).stdout
    part = Path(file).with_suffix(".part")
    part.write_text(f"{os.getpid()} {os.getppid()} {near.pid} {far.pid} {shown}")
    part.rename(file)
    return "started"


def patient(file: str, context: ToolContext) -> str:
    """Waits to be cancelled, and cleans up."""
    Path(file).write_text(str(os.getpid()))
    context.cancelled.wait()
    Path(file).write_text("cleaned up")
    return "ended when asked"


def deaf(file: str, context: ToolContext) -> None:
    """Could know of a cancel and does not care."""
    Path(file).write_text(str(os.getpid()))
    time.sleep(1000)


def progress(count: int, context: ToolContext) -> str:
    for n in range(count):
        context.report_progress(f"step {n}")
    return "done"


def babble(text: str, times: int) -> str:
    for _ in range(times):
        print(text)
        sys.stderr.write(text)
        os.write(1, b"\0\0\0\4oops")
    return "said"


def closing() -> None:
    os.closerange(0, 256)
    time.sleep(1000)


def leaving(how: str) -> None:
    print("last words")
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(4)
    os.kill(os.getpid(), getattr(signal, how))


def failing(how: str) -> None:
    raise {
        "file": FileNotFoundError(2, "No such file or directory", "/x"),
        "key": KeyError("k"),
        "busy": Busy("too many"),
        "timeout": TimeoutError("late"),
        "denied": PermissionError("no"),
        "tool": ToolError("the tool says no", "rate_limit", max_retries=7, backoff="fixed"),
        "validation": ToolValidationError("not so"),
        "unsayable": Unsayable(),
        "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        "group": ExceptionGroup("several", [ValueError("a")]),
    }[how]


def bad_result() -> object:
    return object()


def flaky(file: str, context: ToolContext) -> str:
    """Fails the first time."""
    with open(file, "a") as log:
        log.write(f"{context.attempt} {context.idempotency_key}\n")
    if context.attempt == 1:
        raise ConnectionResetError("once")
    return f"attempt {context.attempt}"


def thread_left() -> str:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return "done"


def clean_up(file: str, context: ToolContext) -> str:
    context.on_close("k", lambda: Path(file).write_text("cleaned"))
    return "done"


def nested(a: int) -> str:
    return f"from inside: {add.run({'a': a}).text}"


def echo_context(context: ToolContext) -> str:
    return context.call_id
