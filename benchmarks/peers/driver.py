"""Runs in a peer's environment: `driver.py PROGRAM WHAT URL [ARGUMENTS]`, where PROGRAM is a module
`of_<peer>.py` beside this one.

A program has: at its top, the imports of a hello-agent; `make(url, tool)`, an agent; `ask(agent,
text)`, one conversation with it up to its last answer, returned as what has to be kept to go on
with it; and where it has a way to save a run before its end, `crash(url, folder, effect, again)`.
Those of an asynchronous peer are coroutines, and the whole measurement is one `asyncio.run`, as its
documentation has it. Settings that a peer reads from the environment are set in `run.py`. WHAT is
hello, steps, idle, crash or environment; the result is the last line, as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path

NOTE = (
    "A line of what was found, as long as a short answer of a tool is: a path, a number, some"
    " words. " * 3
)  # 288 characters
QUESTION = "What is known of these items?"
called = 0


def look_up(key: str, limit: int = 10) -> str:
    """Look up what is known of an item.

    Args:
        key: the item
        limit: how many lines at most
    """
    global called
    called += 1
    return f"{key}: {NOTE}"


def effect_in(folder: str):
    """A tool with an effect that lasts; in its second call its process is killed between the effect
    and the result."""

    def effect(key: str) -> str:
        """Do it. It has an effect.

        Args:
            key: the item
        """
        path = Path(folder) / "effects.txt"
        with path.open("a") as file:
            file.write(f"{key}\n")
            file.flush()
            os.fsync(file.fileno())
        if len(path.read_text().splitlines()) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return "EFFECT made"

    return effect


def status(name: str) -> int:
    """A number of `/proc/self/status`: VmRSS and VmHWM in KB, Threads."""
    return next(
        int(line.split()[1])
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(name)
    )


def drive(coroutine, asynchronous: bool):
    """What a coroutine returns. One that never waits, a synchronous peer's, is run without
    asyncio."""
    if asynchronous:
        import asyncio

        return asyncio.run(coroutine)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")


def coroutine(function) -> bool:
    return bool(
        function.__code__.co_flags & 0x80
    )  # `inspect` would be an import more than the peer's


async def ask(program, agent, text: str):
    found = program.ask(agent, text)
    return await found if hasattr(found, "__await__") else found


def address(program, url: str, calls: int) -> str:
    return f"{url}/{os.urandom(6).hex()}/{calls}/{getattr(program, 'TOOL', 'look_up')}"


async def hello(program, url: str):
    await ask(program, program.make(url, look_up), "hello")
    return {"threads": status("Threads")}


async def steps(program, url: str, count: int):
    """CPU per step of this process, all threads, after a warm-up of 20 steps."""
    global called
    spent = wall = 0.0
    for calls in (20, count):
        agent = program.make(address(program, url, calls), look_up)
        called = 0
        began, start = time.process_time(), time.perf_counter()
        await ask(program, agent, QUESTION)
        spent, wall = time.process_time() - began, time.perf_counter() - start
        assert called == calls, f"{called} calls instead of {calls}"
    return {"cpu": spent / count * 1000, "wall": wall / count * 1000, "threads": status("Threads")}


async def idle(program, url: str, count: int):
    """KB by which the process grows per conversation of ten messages: a question, four calls and
    their results, an answer."""
    agent = program.make(address(program, url, 4), look_up)
    warm = count // 4
    kept = [await ask(program, agent, f"What is known of item {number}?") for number in range(warm)]
    gc.collect()
    before = status("VmRSS")
    for number in range(count):
        kept.append(await ask(program, agent, f"What is known of item {warm + number}?"))
    gc.collect()
    assert called == 4 * len(kept), f"{called} calls in {len(kept)} conversations"
    assert kept[-1] is not None
    return {"kb": (status("VmRSS") - before) * 1.024 / count, "threads": status("Threads")}


async def crash(program, url: str, folder: str, again: bool):
    found = program.crash(url, folder, effect_in(folder), again)
    return {"said": str(await found if hasattr(found, "__await__") else found)}


def read_at_import(name: str):
    """The environment variables that are read while a program's imports run, by the top-level
    package that reads them."""
    read: dict[str, set[str]] = {}

    class Watched(type(os.environ)):
        def __getitem__(self, key):
            note(key)
            return super().__getitem__(key)

        def __contains__(self, key):
            note(key)
            return super().__contains__(key)

    def note(key) -> None:
        frame = sys._getframe(2)
        while frame and frame.f_globals.get("__name__", "").split(".")[0] in (
            "os",
            "collections",
            __name__,
        ):
            frame = frame.f_back
        package = frame.f_globals.get("__name__", "?").split(".")[0] if frame else "?"
        copied = ("PATH", "HOME", "LANG", "TMPDIR")  # what a copy of all of it reads, too
        if package not in sys.stdlib_module_names and isinstance(key, str) and key not in copied:
            read.setdefault(package, set()).add(key)

    os.environ.__class__ = Watched
    import_module(name)
    return {"read": {package: sorted(names) for package, names in read.items()}}


def main() -> None:
    name, what, *rest = sys.argv[1:]
    if what == "environment":
        print("\n" + json.dumps(read_at_import(name)), flush=True)
        return
    program = import_module(name)
    asynchronous = coroutine(program.ask)
    found = {}
    if what == "hello":
        found = drive(hello(program, *rest), asynchronous)
    elif what == "steps":
        found = drive(steps(program, rest[0], int(rest[1])), asynchronous)
    elif what == "idle":
        found = drive(idle(program, rest[0], int(rest[1])), asynchronous)
    elif what == "crash":
        found = drive(
            crash(program, rest[0], rest[1], rest[2] == "again"), coroutine(program.crash)
        )
    found["peak"] = status("VmHWM") / 1e3 * 1.024
    print("\n" + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
