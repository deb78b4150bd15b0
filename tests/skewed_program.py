"""A program whose wall clock is wrong: `python -m tests.skewed_program SECONDS MODULE ARGUMENT`."""

from __future__ import annotations

import datetime
import importlib
import sys
import time


class _AnyDatetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime.datetime)


def skew(seconds: float) -> None:
    """Set the wall clock of all modules that are imported ahead by that many seconds."""
    right_time = time.time
    shift = datetime.timedelta(seconds=seconds)

    class Skewed(datetime.datetime, metaclass=_AnyDatetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # pyright: ignore
            return datetime.datetime.now(tz) + shift

    time.time = lambda: right_time() + seconds
    for name, module in list(sys.modules.items()):
        if name.startswith("holdfast") and getattr(module, "datetime", None) is datetime.datetime:
            module.datetime = Skewed  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    program = importlib.import_module(sys.argv[2])
    skew(float(sys.argv[1]))
    program.main(sys.argv[3])
