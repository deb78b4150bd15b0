"""An open session of an editor: its conversation, and the turns that its prompts are."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from acp import RequestError
from acp.schema import PromptResponse

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.content import Content, text_of
from holdfast.conversation.rests import ApprovalRequest, QuestionRequest, Rest, TurnCommand
from holdfast.errors import HoldfastError, NotPending
from holdfast.runtime.files import TextFiles
from holdfast.runtime.folder import FolderRuntime
from holdfast.serve.acp_client import ClientAccess
from holdfast.serve.acp_modes import Mode, ModePolicy
from holdfast.serve.acp_questions import EditorQuestions
from holdfast.serve.acp_updates import SessionUpdates
from holdfast.serve.door import LocalSession
from holdfast.tools.question_forms import form_fields

_CANCEL_SECONDS = 0.05  # between two interrupts of one cancellation


class SessionPlace(NamedTuple):
    """The agent of a session, its runtime, and further options of its conversation.
    `client_terminals` is True if commands may run in terminals of the client instead of the
    runtime's."""

    agent: Agent
    runtime: FolderRuntime
    options: dict[str, Any] = {}
    client_terminals: bool = False


# Returns the place of a session in a folder. The file tools use the text files, if there are any.
OpenPlace = Callable[[Path, TextFiles | None], SessionPlace]


class EditorSession:
    """A session that is open here. Its coroutines run on the connection's loop."""

    def __init__(
        self,
        conversation: LocalSession,
        place: SessionPlace,
        agents: dict[Mode, Agent],
        policy: ModePolicy,
        access: ClientAccess,
    ) -> None:
        runtime = place.runtime
        self.conversation = conversation
        self.place = place
        self.agents = agents
        self.policy = policy
        self.cursor = 0
        self.lock = asyncio.Lock()  # held by a prompt
        self._client = access.client
        self._updates = SessionUpdates(str(runtime.workdir), runtime.workdir_visible)
        self._questions = EditorQuestions(access, policy, self._updates)
        self._own = ""  # the event id of the last prompt
        # Asks about what waited when the session was loaded.
        self._later: asyncio.Task[None] | None = None
        self._asking = asyncio.Event()  # `_later` asks, or has ended
        self._turn: object = None  # the turn that runs now

    @property
    def id(self) -> str:
        return self.conversation.id

    # --- the client's requests ---

    async def prompt(self, content: tuple[Content, ...]) -> PromptResponse:
        """Run a turn. Raises `RequestError` for a failure of the agent."""
        cancels = self._questions.cancels
        if self._later is not None:  # this turn asks instead, or answers
            await self._asking.wait()
            self._later.cancel()
        async with self.lock:
            if self._questions.cancels == cancels:
                rest = await self._drive(cancels, self._command_of(content))
                if self._questions.cancels == cancels:
                    return PromptResponse(stop_reason=self._stop_reason(rest))
            for one in self.conversation.pending():
                if isinstance(one, ApprovalRequest):
                    reject = one.reject("The user cancelled.")
                    with suppress(NotPending):  # decided elsewhere meanwhile, or interrupted
                        await asyncio.to_thread(self.conversation.execute, reject)
            return PromptResponse(stop_reason="cancelled")

    async def cancel(self) -> None:
        """Interrupt the turn that runs."""
        turn = self._turn
        self._questions.cancel()
        # Again until it takes effect: the run of a turn may not have begun yet.
        while turn is not None and self._turn is turn:
            await asyncio.to_thread(self.conversation.execute, cmd.Interrupt())
            await asyncio.sleep(_CANCEL_SECONDS)

    async def set_mode(self, mode: Mode) -> None:
        before, self.policy.mode = self.policy.mode, mode

        def change() -> None:
            labels = cmd.Label(add=(f"mode={mode}",), remove=(f"mode={before}",))
            if before != mode:
                self.conversation.execute(labels)
            if self.agents[before] is not self.agents[mode]:
                self.conversation.conversation.use(self.agents[mode])

        await asyncio.to_thread(change)

    async def replay(self) -> None:
        """Show the events up to the cursor."""
        for event in self.conversation.conversation.get_history():
            if event.seq <= self.cursor:
                await self._show(event, live=False)

    def ask_later(self) -> None:
        """Ask about what waits in a session that was opened again, after the present answer."""
        if not self.conversation.asks():
            return

        async def ask() -> None:
            async with self.lock:
                with suppress(HoldfastError, RequestError, ConnectionError):
                    await self._drive(self._questions.cancels)

        self._later = asyncio.ensure_future(ask())
        self._later.add_done_callback(lambda _: self._asking.set())

    def withdraw(self, about: str) -> None:
        """Withdraw a question to the client, because it was answered elsewhere."""
        self._questions.withdraw(about)

    def stop_asking(self) -> None:
        """Ask nothing more. Called on any thread."""
        if self._later is not None:
            self._later.get_loop().call_soon_threadsafe(self._later.cancel)
        self._questions.stop()

    # --- turns ---

    def _command_of(self, content: tuple[Content, ...]) -> TurnCommand:
        """Return the command that a prompt is: a message, or the answer to a question that the
        client has no form for."""
        text = text_of(content)
        for one in self.conversation.pending():
            if isinstance(one, QuestionRequest) and text and not self._questions.has_form(one):
                fields = list(form_fields(one.question.schema))
                return one.answer({fields[0]: text} if len(fields) == 1 else True)
        self._own = secrets.token_hex(8)
        return cmd.Send(content, self._own)

    async def _drive(self, cancels: int, *commands: TurnCommand) -> Rest:
        """Run, show what happens and ask the client, until nothing is left to do. The caller has
        the lock."""
        self._turn = object()
        try:
            return await self._drive_to_rest(cancels, commands)
        finally:
            self._turn = None

    async def _drive_to_rest(self, cancels: int, commands: tuple[TurnCommand, ...]) -> Rest:
        first = commands
        while True:
            rest = None
            try:
                async for item in self.conversation.stream(self.cursor, *commands):
                    if isinstance(item, Rest):
                        rest = item
                        continue
                    await self._show(item)
                    if isinstance(item, ev.Event):
                        self.cursor = item.seq
            except NotPending:
                if commands is first:
                    raise
                commands = ()  # decided elsewhere meanwhile
                continue
            assert rest is not None
            self._asking.set()
            answers: list[TurnCommand] = []
            for one in rest.pending:
                if self._questions.cancels != cancels:
                    return rest
                if isinstance(one, ApprovalRequest):
                    answer = await self._questions.permission(one, self.place.runtime.read_file)
                elif isinstance(one, QuestionRequest):
                    answer = await self._questions.question(one)
                else:
                    continue
                answers += [] if answer is None else [answer]
            commands = tuple(answers)
            if not commands and self.conversation.pending() == rest.pending:
                return rest

    async def _show(self, item: Any, *, live: bool = True) -> None:
        for update in self._updates.take(item, live=live, own=self._own):
            await self._client.session_update(session_id=self.id, update=update)

    def _stop_reason(self, rest: Rest) -> Any:
        """Return the protocol's reason for the end of a turn. Raises `RequestError` for a
        failure."""
        error = rest.error
        if rest.reason == "error" and error is not None:
            if error.error == "LimitExceeded":
                return "max_turn_requests"
            raise RequestError(-32603, error.message or error.error, {"error": error.error})
        if rest.reason in ("error", "stuck", "ended"):
            failure = self.conversation.conversation.failure
            text = f"The agent is {rest.reason}" if failure is None else str(failure)
            raise RequestError(-32603, text, {"error": rest.reason})
        return "cancelled" if rest.reason == "paused" else "end_turn"
