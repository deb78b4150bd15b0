"""The run of a conversation on an agent server, as a client starts, awaits and stops it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.conversation.run_context import inside
from holdfast.conversation.state import ConversationStatus
from holdfast.errors import ConversationBusy, HoldfastError, StoreError
from holdfast.remote.agent_requests import CreateReply
from holdfast.remote.client_side import ClientSide
from holdfast.remote.journal_copy import JournalCopy
from holdfast.tools import Cancellation

_log = logging.getLogger("holdfast.remote")

_STATUS_POLL_SECONDS = 15.0  # seconds of silence after which the server is asked for its status


class RemoteRun:
    """The server's loop of one conversation. Thread-safe. `info` asks the server for its
    description; `started` is True if the server drives it until it is closed. `lock` is that of
    the conversation's requests about its agent."""

    def __init__(
        self,
        copy: JournalCopy,
        here: ClientSide,
        info: Callable[[], CreateReply],
        lock: threading.RLock,
        started: bool,
    ) -> None:
        self._copy = copy
        self._here = here
        self._info = info
        self._lock = lock
        self._title = f"Conversation {copy.id!r}"
        self._started = started
        self.drives = False  # True if this client started the loop
        self._runner: threading.Thread | None = None  # the one in `run`
        # the threads whose requests to start the loop have no answer yet
        self._beginning: set[threading.Thread] = set()
        self._not_begun = Cancellation()  # ends those requests
        self._stops = False

    def start(self, send_tools: Callable[[], None]) -> bool:
        """Have the server drive the loop until the conversation is closed. Return False if it is
        closed here already."""
        with self._lock:
            if self._runner is not None:
                busy = f"{self._title} is being run by {self._runner.name!r}"
                raise ConversationBusy(f"{busy}; start_thread after that.")
            if not (self._started and self.drives):
                send_tools()
                self._here.prepare()
            # Sent each time, because another client may have closed the conversation since.
            if not self._begin("/start"):
                return False
            self._started = True
        if self._here.follower.thread is not None:  # else the first to read the copy catches up
            self._here.catch_up()
        return True

    def run(self, send_tools: Callable[[], None], interrupt: Callable[[], None]) -> None:
        """Let the server drive the loop, and wait until the conversation rests."""
        self.check_not_inside("run")
        with self._lock:
            if self._started or self._runner is not None:
                raise ConversationBusy(f"{self._title} is driven by the agent server; use wait().")
            self._runner = threading.current_thread()
        try:
            send_tools()
            self._here.prepare()
            self._here.follow()
            if self._begin("/run"):
                self._here.catch_up()
                self.wait(None)
        except KeyboardInterrupt:
            with suppress(HoldfastError):
                interrupt()
            raise
        finally:
            with self._copy.lock:
                self._runner = None
                self._copy.lock.notify_all()

    def check_not_inside(self, method: str) -> None:
        """Raise `ConversationBusy` on a thread of the conversation itself."""
        if self._copy.mark in inside.get():
            own = f"{self._title}: its own model, tool or listener called {method}()"
            raise ConversationBusy(f"{own}, which would wait for itself forever.")

    def _begin(self, path: str) -> bool:
        """Ask the server to start the loop; return False if `close` or `detach` came first.

        `close` sends its own request after the answer, since the server may carry out two requests
        at once in any order.
        """
        lock, thread = self._copy.lock, threading.current_thread()
        with lock:
            if self._copy.closed:
                return False
            self.drives = True
            self._beginning.add(thread)
        try:
            self._copy.request("POST", path, cancelled=self._not_begun)
            return True
        except HoldfastError:
            if not self._copy.closed:
                raise
            return False
        finally:
            with lock:
                self._beginning.discard(thread)
                lock.notify_all()

    def join(self, timeout: float | None) -> None:
        """Do `wait` on a thread that does not know if the copy is up to date."""
        self.check_not_inside("wait")
        with self._copy.lock:
            resting = self._is_over()
        # The stream brings the end of a run. The end in an old copy may be that of another run.
        self._here.follow(catch_up=resting)
        if not self._started and self._runner is None and not self._copy.closed:
            self._copy.catch_up()
            if not self._is_driven():
                return
        self.wait(timeout)

    def wait(self, timeout: float | None) -> None:
        """Block until nothing runs any more, at most `timeout` seconds."""
        copy = self._copy
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            with copy.lock:
                seq, poll = copy.fold.last_seq, time.monotonic() + _STATUS_POLL_SECONDS
                while not self._is_over():
                    seconds = min(deadline, poll) - time.monotonic()
                    if seconds <= 0:
                        break
                    copy.lock.wait(seconds)
                else:
                    return
            if time.monotonic() >= deadline:
                return
            if copy.fold.last_seq == seq:
                with suppress(StoreError):
                    if not self._is_driven():  # another client closed it
                        return

    def _is_over(self) -> bool:
        """Return True if nothing runs any more by the events so far. Needs the copy's lock."""
        fold = self._copy.fold
        if self._copy.closed or self._here.follower.error is not None:
            return True
        if fold.status is ConversationStatus.RUNNING or fold.has_new_message:
            return False
        # a pause lets calls that have begun end first
        return not any(
            item.attempt and item.ask_reason is None and not item.script
            for item in fold.open.values()
        )

    def _is_driven(self) -> bool:
        """Return True if the server drives the conversation, whichever client started it."""
        reply = self._info()
        if reply.error:
            what = "conversation %s: the agent server cannot drive it now: %s"
            _log.warning(what, self._copy.id, reply.error)
        driven = reply.open if reply.driven is None else reply.driven
        offered = any(item.offered for item in self._copy.fold.open.values())
        return reply.started or reply.busy or driven or offered

    def end(self, stop: bool) -> bool:
        """Close the copy; with `stop` let `stop_once` stop a run that this client has started.
        Return False if it was closed before."""
        with self._copy.lock:
            if self._copy.closed:
                return False
            self._stops = stop and self.drives
            self._copy.closed = True
            self._copy.lock.notify_all()
        return True

    def stop_once(self, deadline: float) -> None:
        """Stop the server's run once, before results of calls that end here reach the model."""
        self._wait_for(lambda: self._beginning <= {threading.current_thread()}, deadline)
        self._not_begun.cancel()
        stops, self._stops = self._stops, False
        if stops and self._here.follower.error is None:
            try:
                timeout = max(1.0, deadline - time.monotonic())
                self._copy.request("POST", "/close", timeout=timeout)
            except HoldfastError as error:
                what = "conversation %s: the request to stop it on the agent server failed: %s"
                _log.warning(what, self._copy.id, error)

    def wait_for_runner(self, deadline: float) -> None:
        """Wait until no other thread waits in `run`."""
        self._wait_for(lambda: self._runner in (None, threading.current_thread()), deadline)

    def _wait_for(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait for a condition of this program's own threads until the deadline."""
        with self._copy.lock:
            while not condition() and (seconds := deadline - time.monotonic()) > 0:
                self._copy.lock.wait(seconds)
