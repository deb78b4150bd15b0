"""run and chat with `--server`: the parts of a session whose conversation is on an agent server."""

from __future__ import annotations

import secrets
import shlex
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast import events as ev
from holdfast.agent import Agent
from holdfast.agent.model_files import model_files
from holdfast.cli.call_prompt import ConfirmOption, confirmation
from holdfast.cli.console import Console
from holdfast.cli.conversation_ids import began, not_empty, to_continue
from holdfast.cli.display import ConversationDisplay
from holdfast.cli.environment import model_name, secrets_of
from holdfast.cli.exit_codes import UsageError, flag
from holdfast.cli.model_names import models_path
from holdfast.cli.option_values import agent_in, agent_settings, model_of
from holdfast.cli.remote_children import ServerChildren
from holdfast.cli.server import ServerConversations, ServerSummary, connect, is_id, is_loopback
from holdfast.cli.session import ConversationSource, Parts
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.llm.model import Model
from holdfast.llm.named import NamedModel
from holdfast.remote import RemoteConversation
from holdfast.tools.preset.asking import register_asking_tools
from holdfast.tools.secrets import Secrets

if TYPE_CHECKING:
    from holdfast.cli.dialog import AnyConversation

# Options that cannot be combined with --server, and the reason. None: `holdfast serve` has them.
_LOCAL_OPTIONS = {
    "agents": "only an agent on this machine can delegate to them",
    "log": None,
    "trace": None,
    "workdir": (
        "it is a folder of this machine. The agent works in a folder of the server; --workspace W"
        " names it"
    ),
    "store": "it is a file of this machine. The server keeps the conversation; --id names it",
    "allow_outside": "the file tools there work in the workspace only",
    "sandbox": "the server decides, unless it is require",
    "network": "the server decides: `holdfast serve --sandbox require --network HOST`",
    "mount": "the agent works in a folder of the server",
    "env": (
        "it passes on a variable of this machine. The agent's commands have the server's"
        " environment"
    ),
}
# Options that have no effect on an existing conversation.
_CREATION_OPTIONS = ("base_url", "api_key_env", "model_key_name", "retries", "max_steps")


class ServerSource(ConversationSource):
    """A conversation on an agent server. `agent` is None for an existing one, which has its own.
    `started`: it ran before this session. `own`: this session made the workspace. `connected`
    returns the server with another workspace."""

    def __init__(
        self,
        server: ServerConversations,
        id: str,
        agent: Agent | None = None,
        *,
        connected: Callable[[str | None], ServerConversations],
        secrets: Secrets | None,
        started: bool = False,
        own: bool = False,
        undo: bool = False,
        sandbox: bool = False,
    ) -> None:
        super().__init__(server.workspace, ExitStack())
        self._stack.callback(server.close)
        self.server = server
        self.id = id
        self._agent = agent
        self._connected = connected
        self._other: tuple[ServerConversations, bool] | None = None  # of the one to go on with
        self._options: dict[str, Any] = {}
        self._secrets = secrets
        self._started = started
        self._own = own
        self._undo = undo
        self._sandbox = sandbox
        self._conversation: RemoteConversation | None = None
        self._children: ServerChildren | None = None
        self._is_unreachable: Callable[[], bool] = bool

    def open(
        self, display: ConversationDisplay, console: Console, asks: bool
    ) -> RemoteConversation:
        streams = self._agent is None or getattr(self._agent.llm, "stream", False)
        self._options = {"on_question": "wait_all" if asks else None, "secrets": self._secrets}
        make = partial(
            RemoteConversation,
            self._agent,
            self.server.workspace,
            self.id,
            on_delta=display.on_delta if streams else None,
            sandbox=self._sandbox,
            **self._options,
        )
        self._options["on_delta"] = display.on_delta
        try:
            with self.server.understood():
                try:
                    conversation = make(undo=self._undo)
                except ConfigurationError as error:
                    if not self._undo or "undo" not in str(error):
                        raise
                    console.notice(f"/undo is off. {error}", "dim")
                    conversation = make()
        except HoldfastError as error:
            if self._own:
                forget_workspace(self.server)
            if "api_key: the variable" in str(error):
                hint = "`holdfast serve --variable NAME` gives it one"
                text = f"--model-key-name: the server has no such variable; {hint}"
                raise UsageError(text) from error
            raise
        watched = self.server.watched(lambda text: console.notice(text, "dim"))
        self._is_unreachable = self._stack.enter_context(watched)
        self._conversation = conversation
        self._children = ServerChildren(self.server, self.id)
        self._stack.callback(self._leave)
        return conversation

    def go_on_with(self, conversation: AnyConversation) -> None:
        assert isinstance(conversation, RemoteConversation)
        self._leave()
        self.server, self._started = self._other or (self.server, False)
        self._other, self.runtime = None, self.server.workspace
        self._conversation, self.id = conversation, conversation.id
        self._children = ServerChildren(self.server, self.id)

    def others(self) -> Sequence[ServerSummary]:
        return self.server.list()

    def other(self, id: str) -> RemoteConversation:
        entry = self.server.find(id)
        server = self._connected(entry.workspace or None)
        self._stack.callback(server.close)
        with server.understood():
            conversation = RemoteConversation(None, server.workspace, entry.id, **self._options)
        self._other = server, entry.started
        return conversation

    def start(self) -> None:
        self.server.start(self.id)

    def unreachable(self) -> bool:
        return self._is_unreachable()

    def waiting_child(self) -> RemoteConversation | None:
        children = self._children
        return None if children is None or self._is_unreachable() else children.waiting()

    def question_below(self) -> tuple[RemoteConversation, ev.Question] | None:
        children = self._children
        return None if children is None or self._is_unreachable() else children.question()

    def _leave(self) -> None:
        """Detach from a conversation that ran before, or whose server is gone; stop others."""
        conversation, children = self._conversation, self._children
        assert conversation is not None
        if children is not None:
            children.close()
        if self._is_unreachable():
            conversation.detach(timeout=0.5)
        elif self._started:
            conversation.detach()
        else:
            conversation.close()


def forget_workspace(server: ServerConversations) -> None:
    """Remove the workspace of a conversation that could not be created."""
    if server.workspace.id is not None:
        path = f"/api/workspaces/{quote(server.workspace.id, safe='')}"
        with suppress(HoldfastError):
            server.workspace.link.request("DELETE", path, timeout=2.0)


def build_remote(options: Namespace, env: Mapping[str, str], stream: bool) -> Parts:
    """Return all parts of a session on a server. Raises `UsageError`, `HoldfastError`."""
    for name, why in _LOCAL_OPTIONS.items():
        value = getattr(options, name)
        if value not in (None, False, []) and (name, value) != ("sandbox", "require"):
            if why is None:
                both = "--log and --trace cannot be combined with --server"
                raise UsageError(f"{both}; give them to `holdfast serve`")
            raise UsageError(f"{flag(name)} cannot be combined with --server: {why}")
    if options.id is not None and not is_id(not_empty(options.id)):
        raise UsageError(f"--id takes up to 128 letters, digits and any of ._-, not {options.id!r}")
    if options.model_key_name is not None and not options.model_key_name.isidentifier():
        mistake = f"not {options.model_key_name!r}"
        raise UsageError(f"--model-key-name takes the name of a variable, {mistake}")
    hidden = secrets_of(env, options.secret)
    server = connect(options, env, options.server, options.workspace)
    try:
        entry = to_continue(options, f"on {server.address}", server.list, server.entry)
        make = partial(
            ServerSource,
            server,
            connected=partial(connect, options, env, options.server),
            secrets=hidden,
            sandbox=options.sandbox == "require",
        )
        if entry is None:
            return _new(options, env, server, stream, make)
        return _existing(options, server, entry, make)
    except BaseException:
        server.close()
        raise


def _existing(
    options: Namespace,
    server: ServerConversations,
    entry: ServerSummary,
    make: Callable[..., ServerSource],
) -> Parts:
    names = ("plan", "ask", "system_prompt_file", "goal", "goal_check")
    made_with = {name: getattr(options, name) for name in names}
    for name, value in {"confirm": options.confirm != "never", **made_with}.items():
        if value:
            hint = f"Leave {flag(name)} out, or give another --id"
            reason = f"{entry.id!r} keeps its own setting"
            raise UsageError(f"{flag(name)} is for a new conversation; {reason}. {hint}")
    if options.workspace not in (None, entry.workspace):
        hint = "Leave --workspace out, or give another --id"
        where = entry.workspace or "none"
        raise UsageError(f"--workspace: {entry.id!r} works in {where!r}. {hint}")
    if options.model is not None:
        events = server.read(entry.id)
        models = [event.model for event in events if isinstance(event, ev.AgentConfigured)]
        if models and options.model.rpartition("/")[2] != models[0].rpartition("/")[2]:
            hint = "Leave --model out, or give another --id"
            raise UsageError(f"--model: {entry.id!r} has the model {models[0]!r}. {hint}")
    left_out = [flag(name) for name in _CREATION_OPTIONS if getattr(options, name) is not None]
    notes: list[str] = []
    if left_out:
        notes.append(f"{entry.id} keeps its agent: {', '.join(left_out)} has no effect.")
    if entry.started:
        notes.append("The server runs this conversation by itself; leaving does not stop it.")
    return _parts(make(entry.id, started=entry.started), notes)


def _new(
    options: Namespace,
    env: Mapping[str, str],
    server: ServerConversations,
    stream: bool,
    make: Callable[..., ServerSource],
) -> Parts:
    llm = _model(options, env, server, stream)
    settings, own = agent_settings(options), options.workspace is None
    id = options.id or secrets.token_hex(6)
    try:
        tools = server.workspace.tools
        policy = confirmation(options.confirm, [tool.name for tool in tools])
        settings["confirm"] = "never" if policy is None else policy.names
        asking = register_asking_tools() if options.ask else ()
        agent = agent_in("the current folder, on a server", llm, [*tools, *asking], settings)
    except BaseException:
        if own:
            forget_workspace(server)
        raise
    notes: list[str] = [] if options.id is None else [began(options.id)]
    notes.append(f"on {server.address}, in the workspace {server.workspace.id}")
    address = getattr(llm, "base_url", "")
    if address and is_loopback(address) and not is_loopback(server.address):
        notes.append(
            f"The server calls the model at {address}: that address is on the server's"
            " machine, not on this one."
        )
    source = make(id, agent, own=own, undo=not options.no_undo)
    parts = _parts(source, notes, llm.model)

    def new_model(name: str) -> tuple[Model, Callable[[str], str] | None]:
        new_options = Namespace(**{**vars(options), "model": name})
        return _model(new_options, env, server, stream), parts.go_on

    return parts._replace(new_model=new_model)


def _model(
    options: Namespace, env: Mapping[str, str], server: ServerConversations, stream: bool
) -> Model:
    """Return the model of `--model`: from the folder on this machine, from the server, or of a
    provider. Raises `UsageError`."""
    name = model_name(options.model, env)
    own = (options.base_url, options.api_key_env, options.model_key_name)
    if own == (None, None, None) and name not in model_files(models_path(options, env)):
        if name in (server_models := server.named_models()):
            return NamedModel(name)
        try:
            return model_of(options, env, stream)
        except UsageError as error:
            if not server_models:
                raise
            also = f"The models of {server.address} are: {', '.join(server_models)}"
            raise UsageError(f"{str(error).rstrip('.')}. {also}") from error
    return model_of(options, env, stream)


def _parts(source: ServerSource, notes: Sequence[str], model: str = "") -> Parts:
    words = source.server.words

    def go_on(id: str) -> str:
        return shlex.join(["holdfast", "chat", *words, "--id", id])

    return Parts(
        source,
        model,
        go_on=go_on,
        tell=["holdfast", "tell", *words],
        # The server decides which calls wait; this object remembers the tools allowed here.
        policy=ConfirmOption([]),
        notes=notes,
    )
