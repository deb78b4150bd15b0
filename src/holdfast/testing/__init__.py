"""Tools for tests of agents and tools: kills at every append, and replays of recorded
conversations. No test runner is required.

    from holdfast.testing import assert_replays, crash_at_every_append, kill_point
"""

from __future__ import annotations

from holdfast.testing.crashes import Crash, crash_at_every_append
from holdfast.testing.replays import assert_replays
from holdfast.testing.watched_store import Point, kill_point

__all__ = ["Crash", "Point", "assert_replays", "crash_at_every_append", "kill_point"]
