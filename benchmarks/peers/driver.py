"""Runs in a peer's environment: `driver.py PROGRAM WHAT URL [ARGUMENTS]`, where PROGRAM is a module
`of_<peer>.py` beside this one.

A program has: at its top, the imports of a hello-agent; `make(url, tool)`, which returns an agent;
`ask(agent, text)`, which runs one conversation up to its last answer and returns the object that
continues it; and, if the peer can save a run before its end, `crash(url, folder, effect, again)`.
The functions of an asynchronous peer are coroutines, and the whole measurement is one
`asyncio.run`, as the peer's documentation shows. Settings that a peer reads from the environment
are set in `run.py`. WHAT is hello, steps, idle, crash or environment; the result is the last line,
as JSON.
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
    """Return a tool with a lasting effect. In its second call its process is killed between the
    effect and the result."""

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
    """Return a number of `/proc/self/status`: VmRSS and VmHWM in KB, Threads."""
    return next(
        int(line.split()[1])
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(name)
    )


def drive(coroutine, asynchronous: bool):
    """Return the result of a coroutine. A coroutine of a synchronous peer never waits, and runs
    without asyncio."""
    if asynchronous:
        import asyncio

        return asyncio.run(coroutine)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")


def coroutine(function) -> bool:
    # `inspect` would be an import that the peer does not need
    return bool(function.__code__.co_flags & 0x80)


async def ask(program, agent, text: str):
    result = program.ask(agent, text)
    return await result if hasattr(result, "__await__") else result


def address(program, url: str, calls: int) -> str:
    return f"{url}/{os.urandom(6).hex()}/{calls}/{getattr(program, 'TOOL', 'look_up')}"


async def hello(program, url: str):
    await ask(program, program.make(url, look_up), "hello")
    return {"threads": status("Threads")}


async def steps(program, url: str, count: int):
    """Return the CPU per step of this process, all threads, after a warm-up of 20 steps."""
    global called
    cpu = wall = 0.0
    for calls in (20, count):
        agent = program.make(address(program, url, calls), look_up)
        called = 0
        began, start = time.process_time(), time.perf_counter()
        await ask(program, agent, QUESTION)
        cpu, wall = time.process_time() - began, time.perf_counter() - start
        assert called == calls, f"{called} calls instead of {calls}"
    return {"cpu": cpu / count * 1000, "wall": wall / count * 1000, "threads": status("Threads")}


async def idle(program, url: str, count: int):
    """Return the KB by which the process grows per conversation of ten messages: a question, four
    calls and their results, an answer."""
    agent = program.make(address(program, url, 4), look_up)
    warm = count // 4
    conversations = [
        await ask(program, agent, f"What is known of item {number}?") for number in range(warm)
    ]
    gc.collect()
    before = status("VmRSS")
    for number in range(count):
        conversations.append(await ask(program, agent, f"What is known of item {warm + number}?"))
    gc.collect()
    assert called == 4 * len(conversations), f"{called} calls in {len(conversations)} conversations"
    assert conversations[-1] is not None
    return {"kb": (status("VmRSS") - before) * 1.024 / count, "threads": status("Threads")}


async def crash(program, url: str, folder: str, again: bool):
    result = program.crash(url, folder, effect_in(folder), again)
    return {"said": str(await result if hasattr(result, "__await__") else result)}


def read_at_import(name: str):
    """Return the environment variables that are read while a program's imports run, by the
    top-level package that reads them."""
    variables: dict[str, set[str]] = {}

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
        copied = (
            "PATH",
            "HOME",
            "LANG",
            "TMPDIR",
        )  # a copy of the whole environment reads these, too
        if package not in sys.stdlib_module_names and isinstance(key, str) and key not in copied:
            variables.setdefault(package, set()).add(key)

    os.environ.__class__ = Watched
    import_module(name)
    return {"read": {package: sorted(names) for package, names in variables.items()}}


def main() -> None:
    name, what, *rest = sys.argv[1:]
    if what == "environment":
        print("\n" + json.dumps(read_at_import(name)), flush=True)
        return
    program = import_module(name)
    asynchronous = coroutine(program.ask)
    figures = {}
    if what == "hello":
        figures = drive(hello(program, *rest), asynchronous)
    elif what == "steps":
        figures = drive(steps(program, rest[0], int(rest[1])), asynchronous)
    elif what == "idle":
        figures = drive(idle(program, rest[0], int(rest[1])), asynchronous)
    elif what == "crash":
        figures = drive(
            crash(program, rest[0], rest[1], rest[2] == "again"), coroutine(program.crash)
        )
    figures["peak"] = status("VmHWM") / 1e3 * 1.024
    print("\n" + json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
