"""The settings of a `Host`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.conversation.journal import utc_now
from holdfast.conversation.observer import Observing
from holdfast.errors import ConfigurationError
from holdfast.server.deliveries import Sending
from holdfast.server.limits import Bounds
from holdfast.server.named_parts import OfferedModel
from holdfast.server.policy import Policy
from holdfast.server.runtimes import WorkspaceRuntimes

if TYPE_CHECKING:
    from holdfast.server.workers.worker_conversation import Patience


class HostSettings(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The settings of a `Host`. Raises `ConfigurationError` for an invalid one."""

    policy: Policy  # decides which modules clients may have imported
    root: Path | None = None  # workspaces are created below this folder; None: there are none
    # Existing folders that are workspaces too, by tenant and id.
    folders: Mapping[tuple[str, str], Path] = {}
    runtimes: WorkspaceRuntimes = WorkspaceRuntimes()  # of workspaces
    # The values of `${NAME}` in agents. Other tenants than the default one may use them only for
    # models of known providers.
    variables: Mapping[str, str] = {}
    models: Mapping[str, OfferedModel] = {}  # that agents of all tenants may name
    max_running: int = 64  # conversations that run at once
    idle: float = 600.0  # seconds after which an unused conversation or workspace is closed
    claim_timeout: float = 600.0  # seconds that a call waits for a client to claim it
    # Seconds that a claimed call waits for a client that shows no sign of life.
    client_grace: float = 30.0
    bounds: Bounds = Bounds()
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now  # the time with a zone by which timers are due
    # "process" runs each open conversation in a process of its own.
    isolation: Literal["thread", "process"] = "thread"
    worker_memory: int = 0  # the limit of such a process's address space in MB; 0: none
    # How long the server waits for such a process before it ends it; None: `Patience()`.
    patience: Patience | None = None
    observer: Observing = None  # follows all conversations; see `holdfast.observe`
    sending: Sending = Sending()  # of webhooks
    drives: bool = True  # False leaves driving to the other servers of a shared store

    __repr__ = object.__repr__  # the variables are secrets

    def __post_init__(self) -> None:
        if self.max_running < 1:
            raise ConfigurationError(
                f"max_running takes a number above 0, not {self.max_running!r}."
            )
        if self.isolation not in ("thread", "process"):
            raise ConfigurationError(
                f"isolation takes 'thread' or 'process', not {self.isolation!r}."
            )
        if self.bounds.open < 2 * self.max_running:
            raise ConfigurationError(
                f"Bounds: open takes at least twice max_running ({self.max_running}), not"
                f" {self.bounds.open}."
            )
