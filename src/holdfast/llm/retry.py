"""Asking again: which failures deserve it, how long to wait first, and when to give up."""

from __future__ import annotations

import logging
import random as _random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import Cancelled, LLMError

if TYPE_CHECKING:
    from holdfast.tools.context import Cancellation

T = TypeVar("T")

BASE = 0.5  # seconds: the longest first wait; doubled for each further one
CAP = 30.0  # seconds: the longest wait of our own choosing
RETRY_AFTER_CAP = 120.0  # seconds: a provider that asks for more gets an error instead of a silent hang

_log = logging.getLogger("holdfast.retry")


def retrying(
    attempt: Callable[[], T],
    *,
    max_retries: int = 5,
    deadline: float | None = None,
    cancelled: Cancellation | None = None,
    before_retry: Callable[[LLMError], object] | None = None,
    random: Callable[[], float] = _random.random,
    sleep: Callable[[float], object] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """`attempt()`, repeated up to `max_retries` times while it raises an `LLMError` that is `retryable`.

    Waits `delay` seconds in between, which a cancel ends with `Cancelled`. The error is raised as it came when the
    retries are used up, when the wait would pass `deadline` (a `clock()` value), or when the provider asks for a wait of
    more than 120 s (then in its `retry_after`). `before_retry` is told of the failure once the wait is over; the log
    `holdfast.retry` at once (INFO).
    """
    number = 0
    while True:
        try:
            return attempt()
        except LLMError as error:
            if not error.retryable or number >= max_retries:
                raise
            seconds = delay(error, number, random)
            if seconds is None or (deadline is not None and clock() + seconds >= deadline):
                raise
            failure = error
        number += 1
        _log.info("%s Trying again in %.1f s (%d of %d).", failure, seconds, number, max_retries)
        if sleep is not None:
            sleep(seconds)
        elif cancelled is not None:
            cancelled.wait(seconds)
        else:
            time.sleep(seconds)
        if cancelled:
            raise Cancelled("The model call was cancelled.") from failure
        if before_retry is not None:
            before_retry(failure)


def delay(error: LLMError, number: int, random: Callable[[], float]) -> float | None:
    """Seconds to wait before retry `number` (from 0); None: do not.

    Full jitter (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/), which spreads the retries of many
    clients best. After a Retry-After the same jitter is added, but never taken off: earlier is refused again.
    """
    jitter = random() * min(CAP, BASE * 2**number)
    if error.retry_after is None:
        return jitter
    if error.retry_after > RETRY_AFTER_CAP:
        return None
    return max(error.retry_after, 0.0) + min(jitter, BASE)


def retry_after(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Seconds that a response's headers (names in lower case) ask to wait: `retry-after-ms`, or `retry-after` in seconds or
    as an HTTP date. None when they do not, or not legibly."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    seconds = _number(text)
    if seconds is not None:
        return seconds
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now())
    except (ValueError, OverflowError):
        return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
