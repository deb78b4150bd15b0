"""The agent server's page in a headless Chromium: its first paint, how soon an event is seen, and
10,000 of them scrolled.

A server and a browser in processes of their own, over loopback. First paint is the browser's own
(`first-contentful-paint`), in a tab that has loaded nothing before, and its floor that of the
server's `/health`, a line of text. An event's way is from `Store.append` having returned in the
server to the first frame that has it on the page, both read from the same clock. Scrolled is a
conversation of 10,000 events from its end to its beginning, 300 pixels a frame; a frame's length is
what `requestAnimationFrame` says, and its floor that of an empty page of the same height, scrolled
the same way. Skipped where there is no Chromium.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import REPOSITORY, Goal, Row

sys.path.insert(0, str(REPOSITORY))

EVENTS = 10_000
SCROLL = """
new Promise(done => {
  const one = document.querySelector('#scroller') ?? document.scrollingElement;
  const frames = [];
  let before = performance.now();
  let left = STEPS;
  const step = now => {
    frames.push(now - before);
    before = now;
    one.scrollTop -= 300;
    if (left-- > 0 && one.scrollTop > 0) requestAnimationFrame(step);
    else done(frames.slice(2));
  };
  one.scrollTop = one.scrollHeight;
  requestAnimationFrame(now => { before = now; requestAnimationFrame(step); });
})
"""


def rows(quick: bool) -> list[Row]:
    """Return the rows of the table."""
    from tests.browser import CHROMIUM, SKIP

    names = (
        ("first paint", "ms", Goal(300)),
        ("an event appended, until it is seen", "ms", Goal(100)),
        (f"{EVENTS:,} events opened, until the newest are seen", "ms", None),
        (f"{EVENTS:,} events scrolled: CPU of the page's thread, per frame", "ms", Goal(16.7)),
        (f"{EVENTS:,} events scrolled: a frame, median", "ms", None),
        (f"{EVENTS:,} events scrolled: the longest frame", "ms", Goal(50)),
    )
    if CHROMIUM is None:
        return [Row(what, unit, goal=goal, skipped=SKIP) for what, unit, goal in names]
    figures = _measured(quick)
    return [
        Row(what, unit, values, floor, goal)
        for (what, unit, goal), (values, floor) in zip(names, figures, strict=True)
    ]


def _measured(quick: bool) -> list[tuple[list[float], list[float]]]:
    from holdfast import Agent, Limits, ScriptedLLM
    from holdfast.agent.serial_form import form_of
    from tests.agent_servers import Serving
    from tests.browser import Browser
    from tests.server.test_page import long_journal

    repeats = 2 if quick else 7
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="holdfast-bench-"))
        server = stack.enter_context(Serving(Path(folder)))
        browser = stack.enter_context(Browser())
        form = form_of(
            Agent(ScriptedLLM([str(number) for number in range(1000)]), limits=Limits(steps=10**6))
        ).mapping
        for id in ("short", "long"):
            assert server.ask("POST", "/api/conversations", {"id": id, "agent": form}).status == 201
        server.host.chats.append("default", "long", long_journal(EVENTS))
        url = server.server.url

        paints: list[float] = []
        bare_paints: list[float] = []
        for _ in range(repeats):
            for path, into in (("/", paints), ("/health", bare_paints)):
                page = browser.open(f"{url}{path}")
                into.append(
                    page.until(
                        "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
                    )
                )
                browser.close_tabs()

        latencies = _event_latencies(server, browser, 3 * repeats)
        opened: list[float] = []
        work: list[float] = []
        middle: list[float] = []
        longest: list[float] = []
        floor_middle: list[float] = []
        floor_longest: list[float] = []
        for _ in range(repeats):
            page = browser.open(f"{url}/")
            page.log_in(server.key)
            began = time.perf_counter()
            page.run("location.hash = '#/c/long'")
            page.until("document.querySelectorAll('.entry').length > 0")
            opened.append((time.perf_counter() - began) * 1000)
            page.until("document.querySelector('#facts').innerText.includes('steps')")
            page.run("new Promise(done => setTimeout(done, 300))")
            page.ask("Performance.enable", timeDomain="threadTicks")
            busy_before = _busy(page)
            frames: list[float] = page.run(SCROLL.replace("STEPS", "200" if quick else "600"))
            work.append((_busy(page) - busy_before) * 1000 / len(frames))
            middle.append(statistics.median(frames))
            longest.append(max(frames))
            bare = browser.open(f"{url}/page/page.css")
            bare.run(
                "document.body.style.cssText = 'height: auto; overflow: visible';"
                " document.body.firstChild.style.height = '900000px'"
            )
            frames = bare.run(SCROLL.replace("STEPS", "200" if quick else "600"))
            floor_middle.append(statistics.median(frames))
            floor_longest.append(max(frames))
            browser.close_tabs()
    return [
        (paints, bare_paints),
        (latencies, []),
        (opened, []),
        (work, []),
        (middle, floor_middle),
        (longest, floor_longest),
    ]


def _busy(page: Any) -> float:
    """Return the seconds of CPU that the page's main thread has spent on tasks."""
    return next(
        one["value"]
        for one in page.ask("Performance.getMetrics")["metrics"]
        if one["name"] == "TaskDuration"
    )


def _event_latencies(server: Any, browser: Any, times: int) -> list[float]:
    """Return the milliseconds from an event's append to the frame that shows it, with the
    conversation open in a tab."""
    appended: dict[int, float] = {}
    listener = server.host._store._listener

    def noted(id: str, events: Any) -> None:
        now = time.time() * 1000
        for event in events:
            appended[event.seq] = now
        listener(id, events)

    server.host._store._listener = noted
    page = browser.open(f"{server.server.url}/#/c/short")
    page.log_in(server.key)
    page.until("document.querySelector('#facts').innerText.includes('idle')")
    page.run("""
      window.shown = {};
      new MutationObserver(() => {
        const here = [...document.querySelectorAll('[data-seq]')].map(one => one.dataset.seq).filter(seq => !(seq in shown));
        if (here.length) requestAnimationFrame(() => setTimeout(() => here.forEach(seq => shown[seq] ??= performance.timeOrigin + performance.now())));
      }).observe(document.querySelector('#log'), {childList: true, subtree: true})
    """)
    while server.host.stats()["readers"] < 1:
        time.sleep(0.01)
    for _ in range(times):
        server.ask("POST", "/api/conversations/short/messages", {"text": "How long does it take?"})
        time.sleep(0.25)
    page.until(f"Object.keys(shown).length >= {times}")
    frame_times: dict[str, float] = page.run("shown")
    browser.close_tabs()
    return [at - appended[int(seq)] for seq, at in frame_times.items() if int(seq) in appended]
