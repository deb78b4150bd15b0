"""Tests of cancellation, which reaches every waiting thread once, and of the context of a call."""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import Any

import pytest

from holdfast.errors import ToolCancelled
from holdfast.tools import Cancellation, ToolContext


def test_a_cancellation_is_raised_once_and_stays() -> None:
    token = Cancellation()
    assert not token
    assert not token.is_set()
    token.raise_if_set()
    token.cancel()
    token.cancel()
    assert token
    assert token.is_set()
    with pytest.raises(ToolCancelled):
        token.raise_if_set()


def test_a_callback_runs_at_the_cancel_and_only_once() -> None:
    token, runs = Cancellation(), list[int]()
    token.add_callback(lambda: runs.append(1))
    assert runs == []
    token.cancel()
    token.cancel()
    assert runs == [1]


def test_a_callback_that_comes_after_the_cancel_runs_at_once() -> None:
    token, runs = Cancellation(), list[int]()
    token.cancel()
    forget = token.add_callback(lambda: runs.append(1))
    assert runs == [1]
    forget()


def test_a_callback_that_was_taken_back_does_not_run() -> None:
    token, runs = Cancellation(), list[int]()
    forget = token.add_callback(lambda: runs.append(1))
    forget()
    forget()
    token.cancel()
    assert runs == []


def test_one_function_registered_twice_runs_twice_and_is_taken_back_once() -> None:
    token, runs = Cancellation(), list[int]()

    def callback() -> None:
        runs.append(1)

    forget = token.add_callback(callback)
    token.add_callback(callback)
    token.add_callback(callback)
    forget()
    token.cancel()
    assert runs == [1, 1]


def test_a_callback_that_raises_is_logged_and_the_others_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    token, runs = Cancellation(), list[int]()
    token.add_callback(lambda: runs.append(1))
    token.add_callback(lambda: 1 / 0)
    token.add_callback(lambda: runs.append(2))
    with caplog.at_level(logging.ERROR, "holdfast"):
        token.cancel()
    assert sorted(runs) == [1, 2]
    assert "A cancellation callback failed" in caplog.text


def test_a_callback_may_use_its_own_cancellation() -> None:
    token, runs = Cancellation(), list[Any]()
    token.add_callback(
        lambda: (
            token.cancel(),
            token.add_callback(lambda: runs.append("inner")),
            runs.append(token.wait(0)),
        )
    )
    token.cancel()
    assert runs == ["inner", True]


@pytest.mark.slow
def test_whatever_the_threads_do_each_callback_runs_exactly_once() -> None:
    for _ in range(60):
        token, counts = Cancellation(), [0] * 64
        ready = threading.Barrier(9)

        def register(first: int) -> None:
            ready.wait()  # noqa: B023
            for n in range(first, first + 8):
                token.add_callback(lambda n=n: counts.__setitem__(n, counts[n] + 1))  # noqa: B023
                token.add_callback(lambda: None)()  # noqa: B023

        def cancel() -> None:
            ready.wait()  # noqa: B023
            token.cancel()  # noqa: B023

        threads = [
            threading.Thread(target=register, args=(first,)) for first in range(0, 64, 8)
        ] + [threading.Thread(target=cancel)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts == [1] * 64


def test_a_wait_ends_with_the_cancel_on_another_thread() -> None:
    token = Cancellation()
    timer = threading.Timer(0.02, token.cancel)
    timer.start()
    began = time.monotonic()
    assert token.wait(60) is True
    assert time.monotonic() - began < 20
    timer.join()


def test_a_wait_ends_with_its_timeout_and_leaves_nothing_registered() -> None:
    token = Cancellation()
    assert token.wait(0.001) is False
    assert token.wait(0) is False
    assert token._callbacks == []
    token.cancel()
    assert token.wait() is True


def test_a_signal_handler_may_cancel_what_the_interrupted_thread_is_registering_on() -> None:
    token, counts = Cancellation(), dict[int, int]()
    before = signal.signal(signal.SIGALRM, lambda *_: token.cancel())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        n = 0
        while not token:
            token.add_callback(lambda n=n: counts.__setitem__(n, counts.get(n, 0) + 1))
            n += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(counts) == n
    assert set(counts.values()) == {1}


# --- the context ---


def test_a_context_names_the_call_and_its_idempotency_key() -> None:
    context = ToolContext("conv", "4.1", attempt=3)
    assert (context.conversation_id, context.call_id, context.attempt, context.idempotency_key) == (
        "conv",
        "4.1",
        3,
        "conv:4.1",
    )
    assert not context.cancelled


def test_an_empty_context_hears_nothing_and_keeps_nothing() -> None:
    context = ToolContext()
    context.report_progress("half")
    context.on_close("key", lambda: None)


def test_progress_and_clean_up_reach_whoever_gave_the_context() -> None:
    received: list[Any] = []
    context = ToolContext(
        progress=received.append, on_close=lambda key, cleanup: received.append(key)
    ).with_cancellation(Cancellation())
    context.report_progress("half")
    context.on_close("key", lambda: None)
    assert received == ["half", "key"]


def test_the_same_context_under_another_flag_is_otherwise_the_same() -> None:
    token, runtime = Cancellation(), object()
    context = ToolContext("conv", "4.1", 2, runtime=runtime).with_cancellation(token)
    assert (context.idempotency_key, context.attempt, context.cancelled, context.runtime) == (
        "conv:4.1",
        2,
        token,
        runtime,
    )


def test_a_sleep_is_ended_by_a_cancel() -> None:
    context = ToolContext()
    context.sleep(0)
    context.sleep(-1)
    context.sleep(0.001)
    timer = threading.Timer(0.01, context.cancelled.cancel)
    timer.start()
    for seconds in (10, 0):
        with pytest.raises(ToolCancelled):
            context.sleep(seconds)
    timer.join()
