"""Builds the parts of a session from the options of run and chat."""

from __future__ import annotations

import secrets
import shlex
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from holdfast.agent.model_files import model_files
from holdfast.cli.call_prompt import WAITING, confirmation
from holdfast.cli.console import Console
from holdfast.cli.conversation_ids import began, to_continue
from holdfast.cli.display import ConversationDisplay
from holdfast.cli.environment import secrets_of, shell_environment
from holdfast.cli.exit_codes import UsageError, flag
from holdfast.cli.files import folder_of
from holdfast.cli.model_names import models_path
from holdfast.cli.option_values import (
    agent_in,
    agent_settings,
    keys_of,
    model_of,
    observers_of,
    sub_agents,
)
from holdfast.cli.places import open_store
from holdfast.cli.sandbox import open_workplace
from holdfast.cli.session import ConversationSource, Parts
from holdfast.cli.terminal_input import is_interactive
from holdfast.conversation import Conversation
from holdfast.conversation.below import open_below
from holdfast.conversation.undo import FileUndo
from holdfast.errors import ConfigurationError
from holdfast.events import Question
from holdfast.llm import Model
from holdfast.runtime.folder import FolderRuntime
from holdfast.runtime.paths import home_folder
from holdfast.store import SQLiteStore, Summary
from holdfast.tools.preset.asking import register_asking_tools

if TYPE_CHECKING:
    from holdfast.cli.dialog import AnyConversation

_SERVER_OPTIONS = ("workspace", "model_key_name", "server_key_file")
# The options that a stored conversation does not keep.
_REPEATED = (
    *("model", "models", "base_url", "api_key_env", "confirm", "ask", "plan", "agents", "workdir"),
    *("sandbox", "network", "mount"),
)


class LocalSource(ConversationSource):
    """A conversation of this process, which `make` opens by its id, in the store if there is
    one."""

    def __init__(
        self,
        runtime: FolderRuntime,
        make: Callable[..., Conversation],
        id: str | None,
        store: SQLiteStore | None,
        stack: ExitStack,
    ) -> None:
        super().__init__(runtime, stack)
        self._make = make
        self._id = id
        self._store = store
        self._conversation: Conversation | None = None
        self._callbacks: Mapping[str, Any] = {}

    def open(self, display: ConversationDisplay, console: Console, asks: bool) -> Conversation:
        self._callbacks = {
            "on_delta": display.on_delta,
            "on_progress": display.on_progress,
            "on_question": "wait_all" if asks else None,
        }
        self._conversation = self._open(self._id)
        self._stack.callback(self._conversation.close)
        return self._conversation

    def others(self) -> Sequence[Summary]:
        if self._store is None:
            raise UsageError("this conversation is not kept, and no other is; --store FILE keeps")
        return self._store.list()

    def other(self, id: str) -> Conversation:
        return self._open(id)

    def _open(self, id: str | None) -> Conversation:
        return self._make(id=id, runtime=self.runtime, **self._callbacks)

    def callbacks(self) -> Mapping[str, Any]:
        return self._callbacks

    def go_on_with(self, conversation: AnyConversation) -> None:
        assert self._conversation is not None
        assert isinstance(conversation, Conversation)
        self._conversation.close()
        self._conversation = conversation
        self._stack.callback(conversation.close)

    def waiting_child(self) -> Conversation | None:
        for child in self._open_below():
            if child.status is WAITING and child.hosting.has_lease:
                child.hosting.drain_inbox()  # an approval may have been posted while it was closed
                if child.status is WAITING:
                    return child
        return None

    def question_below(self) -> tuple[Conversation, Question] | None:
        for child in self._open_below():
            for _, question in child.state.pending_questions:
                if child.hosting.questions.awaits(question.id):
                    return child, question
        return None

    def _open_below(self) -> Iterable[Conversation]:
        return () if self._conversation is None else open_below(self._conversation.hosting)


def build(options: Namespace, env: Mapping[str, str], stream: bool) -> Parts:
    """Return a session's parts. `stream`: request answers piece by piece. Raises `UsageError`."""
    if options.server is not None:
        from holdfast.cli.remote import build_remote  # most sessions are local

        return build_remote(options, env, stream)
    for name in _SERVER_OPTIONS:
        if getattr(options, name) is not None:
            which = "name the server with --server URL"
            raise UsageError(f"{flag(name)} is for an agent server; {which}")
    if (options.id is not None or options.go_on) and options.store is None:
        where = "say which with --store FILE or --server URL"
        option = "--id" if options.id is not None else "--continue"
        raise UsageError(f"{option} names a conversation in a store or on a server; {where}")
    if options.id is not None and options.go_on:
        raise UsageError("--continue continues the latest conversation, --id another; give one")
    model = model_of(options, env, stream)
    settings = agent_settings(options)
    passed = shell_environment(env, options.env)
    hidden = secrets_of(env, options.secret)
    workdir = folder_of("." if options.workdir is None else options.workdir)
    with ExitStack() as stack:
        place = open_workplace(options, env, workdir, passed, is_interactive())
        runtime = stack.enter_context(place.runtime)
        policy = confirmation(options.confirm, [tool.name for tool in runtime.tools], place.asks)
        settings |= {
            "confirm": policy or "never",
            "delegates": sub_agents(options.agents),
            "instructions": None if options.no_instructions else runtime.workdir,
        }
        observers = observers_of(options, True, keys_of(model), stack)
        store = existing = None
        if options.store is not None:
            begins = not options.go_on and (options.id is None or options.new)
            store = stack.enter_context(open_store(options.store, create=begins))
            exact = partial(_entry, store)
            existing = to_continue(options, f"in {options.store!r}", store.list, exact)
        # short to type, and unique within one file
        id = options.id or secrets.token_hex(6) if existing is None else existing.id
        folder = f"the folder {runtime.workdir}"
        agent = agent_in(folder, model, runtime.tools, settings, place.prompt)
        for tool in register_asking_tools() if options.ask else ():
            agent.tools.register(tool)
        undo, no_undo = _undo(options, env, runtime)
        make = partial(Conversation, agent, store, observer=observers, secrets=hidden, undo=undo)
        source = LocalSource(runtime, make, id, store, stack.pop_all())
    start_note = began(id) if options.new and options.id is not None else ""
    notes = ["" if place.asks else place.note, no_undo, start_note]

    def new_model(name: str) -> tuple[Model, Callable[[str], str] | None]:
        new_options = Namespace(**{**vars(options), "model": name})
        go_on = None if store is None else partial(_continue_command, new_options)
        return model_of(new_options, env, stream), go_on

    return Parts(
        source,
        model.model,
        go_on=None if store is None else partial(_continue_command, options),
        tell=() if store is None else ["holdfast", "tell", str(options.store)],
        policy=policy,
        warning=place.note if place.asks else "",
        notes=[note for note in notes if note],
        advice=None if place.advice is None else place.advice.about,
        new_model=new_model,
        sandbox="no sandbox" if place.advice is None else "sandbox",
        model_names=lambda: list(model_files(models_path(options, env))),
    )


def _undo(
    options: Namespace, env: Mapping[str, str], runtime: FolderRuntime
) -> tuple[FileUndo | None, str]:
    """Return the snapshots of `/undo`, and a note if they cannot be had."""
    if options.no_undo:
        return None, ""
    cache = env.get("XDG_CACHE_HOME") or f"{env.get('HOME') or home_folder() or '/tmp'}/.cache"
    undo = FileUndo(f"{cache}/holdfast/undo")
    try:
        undo.place(runtime)
    except ConfigurationError as error:
        return None, f"/undo is off. {error}"
    return undo, ""


def _entry(store: SQLiteStore, id: str) -> Summary | None:
    return next(iter(store.list([id])), None)


def _continue_command(options: Namespace, id: str) -> str:
    """Return the command that continues this conversation with the same model in the same place."""
    words = ["holdfast", "chat", "--store", options.store, "--id", id]
    for name in _REPEATED:
        value = getattr(options, name)
        if value and (name, value) != ("confirm", "never"):
            for one in cast("list[str]", value) if isinstance(value, list) else [value]:
                words.append(flag(name))
                words += [] if one is True else [one]
    return shlex.join(words)
