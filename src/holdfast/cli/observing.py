"""The observers of `--log` and `--trace`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from holdfast.cli.exits import UsageError
from holdfast.conversation.observer import Observer
from holdfast.errors import ConfigurationError


def observing(
    options: argparse.Namespace, content: bool, secrets: Sequence[str], stack: ExitStack
) -> list[Observer]:
    """Return the observers that the options name. `stack` closes them. Raises `UsageError`."""
    found: list[Observer] = []
    if options.trace:
        from holdfast.observe.telemetry import Telemetry

        try:
            found.append(Telemetry())
        except ConfigurationError:
            raise UsageError(
                "--trace needs opentelemetry-api, which is not installed: pip install"
                " 'holdfast[otel]'"
            ) from None
    if options.log is not None:
        from holdfast.observe.log import JsonLog

        try:
            log = JsonLog(Path(options.log).expanduser(), content=content, secrets=secrets)
        except OSError as error:
            raise UsageError(
                f"--log {options.log!r} cannot be written: {error.strerror}"
            ) from error
        found.append(stack.enter_context(log))
    return found
