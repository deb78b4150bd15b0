"""The dialog with a user at a terminal: shows a conversation, and reads the user's lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.cli.console import Console
from holdfast.cli.display import ConversationDisplay
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.render import call_title
from holdfast.cli.signals import Signals
from holdfast.cli.terminal_input import is_interactive
from holdfast.cli.text import one_line
from holdfast.conversation import Conversation

if TYPE_CHECKING:
    from holdfast.remote import RemoteConversation

    AnyConversation = Conversation | RemoteConversation

# Seconds to wait for the screen; a pager that the user does not scroll must not block the process
# for ever.
_DRAIN_SECONDS, _LAST_DRAIN_SECONDS = 30.0, 1.0


class Dialog:
    """The console, signals and display of one conversation. `interactive` is True if there is a
    user."""

    def __init__(
        self, console: Console, signals: Signals, display: ConversationDisplay, asks: bool = True
    ) -> None:
        self.console = console
        self.signals = signals
        self.display = display
        self.interactive = asks and is_interactive()

    def catch_up(self) -> None:
        """Wait until every event is on the screen. A signal ends the wait."""
        self.display.catch_up(_DRAIN_SECONDS, lambda: self.signals.pending)
        self.console.status("")

    def finish(self) -> None:
        """Wait a short time until every event is on the screen, although a signal came."""
        self.display.catch_up(_LAST_DRAIN_SECONDS)
        self.console.status("")

    def ask(
        self,
        prompt: str,
        until: Callable[[], bool] | None = None,
        *,
        prefill: str = "",
        hidden: bool = False,
    ) -> str:
        """Return a line from standard input, after the screen has caught up. `prefill` is text to
        edit; a `hidden` line is not shown.

        Raises `EOFError`, `KeyboardInterrupt`, `EndRequested`, `UsageError` for a pipe that has no
        text, and `PromptWithdrawn` as soon as `until`, which another thread calls, is True."""
        while True:
            self.catch_up()
            try:
                with self.display.quiet(), self.signals.prompting(until):
                    return self.console.ask(prompt, self.interactive, prefill, hidden)
            except UnicodeDecodeError as error:
                why = f"the line is not {error.encoding.upper()}"
                if not self.interactive:
                    text = f"a line of standard input cannot be read: {why}"
                    raise UsageError(text) from error
                self.console.error(f"{why}; type it again.")

    def list_waiting(self, conversation: AnyConversation, headline: str, approve: str) -> Exit:
        """List the calls that are left waiting, and the command `approve`."""
        self.catch_up()
        self.console.error(headline)
        for call in (pending.call for pending in conversation.state.pending_confirmations):
            self.console.notice(f"  {one_line(call.id)}  {call_title(call.name, call.arguments)}")
        if approve:
            self.console.notice(f"approve with: {approve}")
        return Exit.STOPPED
