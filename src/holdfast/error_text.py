"""Errors as text. Without msgspec, which the help of the command does not load."""

from __future__ import annotations


def describe_error(error: BaseException) -> str:
    """Return the class and the text of an error, such as `TimeoutError: timed out`. An empty text
    is replaced by the error's cause, if that has a text."""
    name, text = type(error).__name__, _text_of(error)
    cause = error.__cause__
    if not text and cause is not None and (why := _text_of(cause)):
        return f"{name} (no message; caused by {type(cause).__name__}: {why})"
    return typed_text(name, text)


def typed_text(type: str, text: str) -> str:
    """Return an error's class and text as `type: text`, and without a text `type (no message)`. A
    text of `describe_error` is returned unchanged."""
    if text.startswith(f"{type} (no message"):
        return text
    return f"{type}: {text}" if text.strip() else f"{type} (no message)"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide the failure
        return "(its message cannot be shown)"
