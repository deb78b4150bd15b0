"""Retries: which failures are retried, how long to wait, and when to give up."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from holdfast.error_text import describe_error
from holdfast.errors import Cancelled, LLMError

if TYPE_CHECKING:
    from holdfast.tools.context import Cancellation

T = TypeVar("T")

BASE_DELAY_SECONDS = 0.5  # seconds: the longest first wait, doubled for each further one
MAX_DELAY_SECONDS = 30.0  # seconds: the longest wait that the provider did not ask for
# Seconds. If a provider asks for a longer wait, the error is raised instead of a silent hang.
MAX_RETRY_AFTER_SECONDS = 120.0

_log = logging.getLogger("holdfast.retry")

# A callback for observers of model calls. It receives each failure at once, with its number from 0
# and the seconds until the next attempt.
retry_listener: ContextVar[Callable[[LLMError, int, float], object] | None] = ContextVar(
    "holdfast_retry_listener", default=None
)


def retrying(
    attempt: Callable[[], T],
    *,
    failed: LLMError | None = None,
    max_retries: int = 5,
    deadline: float | None = None,
    cancelled: Cancellation | None = None,
    on_wait: Callable[[LLMError, int, float], object] | None = None,
    before_retry: Callable[[LLMError], object] | None = None,
    random: Callable[[], float] | None = None,
    sleep: Callable[[float], object] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Return `attempt()`, repeated up to `max_retries` times while it raises a `retryable`
    `LLMError`.

    Waits `delay` seconds before each retry; a cancellation ends the wait with `Cancelled`. The log
    `holdfast.retry` reports each failure at once.

    The error is raised unchanged when the retries are used up or the wait would pass `deadline` (a
    `clock()` value). The same holds if the provider asks for more than 120 s, which are then in
    `retry_after`.

    Args:
        failed: The failure of a first attempt that the caller has made.
        on_wait: Receives the failure, the number of the retry from 1, and the seconds, before the
            wait.
        before_retry: Receives the failure after the wait.
    """
    number = 0
    while True:
        try:
            if failed is not None:
                raise failed
            return attempt()
        except LLMError as error:
            if not error.retryable or number >= max_retries:
                raise
            seconds = delay(error, number, random)
            if seconds is None or (deadline is not None and clock() + seconds >= deadline):
                raise
            failure, failed = error, None
        if (listener := retry_listener.get()) is not None:
            listener(failure, number, seconds)
        number += 1
        reason = describe_error(failure)
        reason += "" if reason.endswith((".", "!", "?")) else "."
        _log.info("%s Trying again in %.1f s (%d of %d).", reason, seconds, number, max_retries)
        if on_wait is not None:
            on_wait(failure, number, seconds)
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


def delay(error: LLMError, number: int, random: Callable[[], float] | None = None) -> float | None:
    """Return the seconds to wait before retry `number` (from 0), or None to give up.

    Full jitter (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/) spreads
    the retries of many clients best. After a Retry-After the jitter is only added, because an
    earlier retry would be refused again.
    """
    if random is None:
        from random import random  # few programs retry, and it takes 1 ms to import
    jitter = random() * min(MAX_DELAY_SECONDS, BASE_DELAY_SECONDS * 2**number)
    if error.retry_after is None:
        return jitter
    if error.retry_after > MAX_RETRY_AFTER_SECONDS:
        return None
    return max(error.retry_after, 0.0) + min(jitter, BASE_DELAY_SECONDS)


def retry_after(
    headers: Mapping[str, str], now: Callable[[], float] = time.time, *, status: int = 0
) -> float | None:
    """Return the seconds that a response's headers (names in lower case) ask to wait, or None. The
    order is `retry-after-ms`, `retry-after` (seconds or an HTTP date), and for status 429
    `until_reset`."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after", "").strip()
    if not text:
        return until_reset(headers, now) if status == 429 else None
    seconds = _number(text)
    if seconds is not None:
        return seconds
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now())
    except (ValueError, OverflowError):
        return None


# x-ratelimit-reset-tokens (OpenAI, Groq, Azure, Cerebras), x-ratelimit-reset (OpenRouter and many),
# ratelimit-reset (IETF draft 7), anthropic-ratelimit-input-tokens-reset.
_RESET = re.compile(r"(?:x-)?rate-?limit-reset(?:-[a-z-]+)?|anthropic-ratelimit-[a-z-]+-reset")


def until_reset(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Return the seconds until the last of the exhausted limits is reset: those whose `remaining`
    header is 0. A limit without that header counts only if it is the only one."""
    resets = {name: value for name, value in headers.items() if _RESET.fullmatch(name)}
    waits: list[float] = []
    for name, value in resets.items():
        remaining = headers.get(name.replace("reset", "remaining"))
        used_up = len(resets) == 1 if remaining is None else _number(remaining) == 0
        seconds = _seconds_until(value.strip(), now) if used_up else None
        if seconds is not None:
            waits.append(max(0.0, seconds))
    return max(waits, default=None)


_UNIT_SECONDS = {
    "d": 86400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "\N{MICRO SIGN}s": 1e-6,
    "ns": 1e-9,
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|us|\N{MICRO SIGN}s|ns|d|h|m|s)")


def duration(text: str) -> float | None:
    """Return the seconds of a duration in Go's form, such as `6m0s`, `1h2m` or `120ms`, or None for
    any other text. OpenAI, Groq and Google write this form."""
    if not text or _DURATION.sub("", text):
        return None
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION.findall(text))


def _seconds_until(text: str, now: Callable[[], float]) -> float | None:
    """Return the seconds until a number (of seconds, or of the epoch's seconds or milliseconds,
    distinguished by size), a duration, or an RFC 3339 time."""
    number = _number(text)
    if number is not None:
        if number <= 1e8:
            return number
        return (number if number < 1e11 else number / 1000) - now()
    if "T" not in text:
        return duration(text)
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now()
    except (ValueError, OverflowError):
        return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
