"""Sub-agents in `run` and `chat`: the option `--agents`, and confirmation of their calls."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from holdfast.agent.agents_files import SubAgent, load_sub_agents
from holdfast.cli.exits import Exit, UsageError
from holdfast.cli.render import call_title
from holdfast.cli.text import one_line
from holdfast.conversation import Conversation, ConversationStatus
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.cli.session import Session


def agents_of(folder: str | None) -> Mapping[str, SubAgent]:
    """Return the agents of `--agents DIR`. Raises `UsageError` if there are none."""
    if folder is None:
        return {}
    try:
        found = load_sub_agents(Path(folder).expanduser())
    except ConfigurationError as error:
        raise UsageError(f"--agents takes a folder; {folder!r} is not one") from error
    if not found:
        raise UsageError(
            f"--agents {folder!r}: no readable agent was found in the folder, or in its"
            " .agents/agents, .holdfast/agents or .claude/agents"
        )
    return found


def waiting_child(conversation: Any) -> Conversation | None:
    """Return the first descendant of a conversation that waits for confirmation, None if there
    is none."""
    if not isinstance(conversation, Conversation):  # the conversation is on a server
        return None
    for child in conversation.open_children():
        if child.status is ConversationStatus.WAITING_FOR_CONFIRMATION:
            return child
        if (found := waiting_child(child)) is not None:
            return found
    return None


class _About:
    """A session whose conversation is a child, for a `Confirmer` that asks about the child's
    calls."""

    def __init__(self, session: Session, child: Conversation, tell: str) -> None:
        self._session = session
        self._tell = tell
        self.conversation = child

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def pause(self) -> None:
        """Stop the whole tree, for Ctrl-C at the question."""
        self._session.interrupt()

    def outcome(self) -> Exit | None:
        """Return None: the child continued by itself."""
        return None

    def tell_waiting(self) -> Exit:
        """List the calls that are left waiting, and the command that approves them."""
        screen, child = self._session.screen, self.conversation
        screen.error(
            f"calls of the sub-agent {one_line(child.id)} are left waiting for confirmation."
        )
        for pending in child.state.pending_confirmations:
            screen.notice(
                f"  {one_line(pending.call.id)} "
                f" {call_title(pending.call.name, pending.call.arguments)}"
            )
        if self._tell:
            screen.notice(
                f"approve with: {shlex.join([*shlex.split(self._tell)[:-1], child.id])} approve"
            )
        return Exit.STOPPED


def ask_about(session: Session, child: Conversation, tell: str) -> Exit | None:
    """Ask the user about a child's call. Return an exit code if the call is left waiting, or if
    no user is at the terminal."""
    about = _About(session, child, tell)
    if not session.interactive:
        session.catch_up()
        return about.tell_waiting()
    from holdfast.cli.confirm import Confirmer

    session.screen.notice(f"The sub-agent {one_line(child.id)} waits for you:", "dim")
    return Confirmer(cast("Session", about)).ask()
