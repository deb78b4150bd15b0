"""Objections to the end of a run: of a stop hook, or of the agent's goal."""

from __future__ import annotations

import msgspec

from holdfast.errors import HoldfastError


class StopObjection(msgspec.Struct, frozen=True):
    """The reason why a run may not finish, or the `error` with which it ends instead.

    `hook` is the hook that objects. `about` is the `MessageAdded.about` of the message that tells
    the model the reason, "" for that of the hook.
    """

    hook: str
    reason: str
    error: HoldfastError | None = None
    about: str = ""
