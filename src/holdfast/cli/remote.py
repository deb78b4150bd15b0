"""run and chat with `--server`: the parts of a session whose conversation is on an agent server."""

from __future__ import annotations

import argparse
import secrets
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from holdfast import events as ev
from holdfast.agent import Agent
from holdfast.agent.condensers import LLMCondenser
from holdfast.cli.agent_options import limits_of, model_of, output_schema, prompt_text
from holdfast.cli.confirm import Asking, confirmation
from holdfast.cli.exits import UsageError
from holdfast.cli.ids import already_there, began, not_empty
from holdfast.cli.screen import Screen
from holdfast.cli.server import Entry, Server, is_id, server_of
from holdfast.cli.session import Parts
from holdfast.errors import HoldfastError
from holdfast.llm.completion import Delta
from holdfast.remote import RemoteConversation
from holdfast.tools.preset.asking import register_asking_tools

if TYPE_CHECKING:
    from holdfast.conversation.questions import OnQuestion

_LOCAL_OPTIONS = {
    "workdir": (
        "--workdir cannot be combined with --server: it is a folder of this machine. The agent"
        " works in a folder of the server; --workspace W names it"
    ),
    "store": (
        "--store cannot be combined with --server: it is a file of this machine. The server keeps"
        " the conversation; --id names it"
    ),
    "allow_outside": (
        "--allow-outside cannot be combined with --server: the file tools there work in the"
        " workspace only"
    ),
    "env": (
        "--env cannot be combined with --server: it passes on a variable of this machine. The"
        " agent's commands have the server's environment"
    ),
}
# Options that have no effect on an existing conversation.
_CREATION_OPTIONS = ("base_url", "api_key_env", "model_key_name", "retries", "max_steps")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class There:
    """A session's conversation on its server.

    `known` is the server's entry of a conversation that existed before. `own` is True if this
    session made the workspace.
    """

    def __init__(self, server: Server, known: Entry | None, notes: list[str], own: bool) -> None:
        self._server = server
        self._known = known
        self._notes = notes
        self._own = own
        self._conversation: RemoteConversation | None = None
        self._stack = ExitStack()
        self.gone: Callable[[], bool] = bool  # True while the server cannot be reached

    def open(
        self,
        parts: Parts,
        screen: Screen,
        on_delta: Callable[[Delta], object],
        on_question: OnQuestion,
    ) -> RemoteConversation:
        """Open or create the conversation and return it. Prints its location to `screen`, and a
        notice when the server cannot be reached."""
        streams = parts.agent is None or getattr(parts.agent.llm, "stream", False)

        try:
            with self._server.understood():
                self._conversation = RemoteConversation(
                    parts.agent,
                    self._server.workspace,
                    parts.id,
                    on_delta=on_delta if streams else None,
                    on_question=on_question,
                )
        except HoldfastError as error:
            self.forget_workspace()
            if "api_key: the variable" in str(error):
                raise UsageError(
                    "--model-key-name: the server has no such variable; `holdfast serve --variable"
                    " NAME` gives it one"
                ) from error
            raise
        for note in self._notes:
            screen.notice(note, "dim")
        self.gone = self._stack.enter_context(
            self._server.watched(lambda text: screen.notice(text, "dim"))
        )
        return self._conversation

    def start(self) -> None:
        """Make the server drive the conversation, also if another client has stopped it
        meanwhile."""
        if self._conversation is not None:
            self._server.start(self._conversation.id)

    def leave(self) -> None:
        """Stop the conversation, unless it ran before this session, or the server cannot be
        reached and will continue it. Idempotent."""
        if self._conversation is None:
            return
        if self.gone():
            self._conversation.detach(timeout=0.5)
        elif self._known is not None and self._known.started:
            self._conversation.detach()
        else:
            self._conversation.close()

    def forget_workspace(self) -> None:
        """Remove the workspace of a conversation that could not be created."""
        id = self._server.workspace.id
        if self._own and id is not None:
            with suppress(HoldfastError):
                self._server.workspace.link.request(
                    "DELETE", f"/api/workspaces/{quote(id, safe='')}", timeout=2.0
                )

    def close(self) -> None:
        """Close the connections to the server."""
        self._stack.close()
        self._server.close()


def build_remote(options: argparse.Namespace, env: Mapping[str, str], stream: bool) -> Parts:
    """Return all parts of a session on a server. Raises `UsageError`, `HoldfastError`."""
    for name, message in _LOCAL_OPTIONS.items():
        if getattr(options, name):
            raise UsageError(message)
    if options.id is not None and not is_id(not_empty(options.id)):
        raise UsageError(f"--id takes up to 128 letters, digits and any of ._-, not {options.id!r}")
    if options.model_key_name is not None and not options.model_key_name.isidentifier():
        raise UsageError(
            f"--model-key-name takes the name of a variable, not {options.model_key_name!r}"
        )
    server = server_of(options, env, options.server, options.workspace)
    try:
        if options.id is None:
            return _new(options, env, server, stream)
        known = server.entry(options.id) if options.new else server.matching(options.id)
        if known is None:
            return _new(options, env, server, stream)
        if options.new:
            raise already_there(known.id)
        return _existing(options, server, known)
    except BaseException:
        server.close()
        raise


def _existing(options: argparse.Namespace, server: Server, known: Entry) -> Parts:
    made_with = (
        ("confirm", options.confirm != "never"),
        ("plan", options.plan),
        ("ask", options.ask),
        ("system-prompt-file", options.system_prompt_file),
    )
    for name, value in made_with:
        if value:
            raise UsageError(
                f"--{name} is for a new conversation; {known.id!r} keeps its own setting. Leave"
                f" --{name} out, or give another --id"
            )
    if options.workspace not in (None, known.workspace):
        raise UsageError(
            f"--workspace: {known.id!r} works in {known.workspace or 'none'!r}. Leave --workspace"
            " out, or give another --id"
        )
    if options.model is not None:
        model = next(
            (event.model for event in server.read(known.id) if isinstance(event, ev.Agent)), None
        )
        if model is not None and options.model.rpartition("/")[2] != model.rpartition("/")[2]:
            raise UsageError(
                f"--model: {known.id!r} has the model {model!r}. Leave --model out, or give another"
                " --id"
            )
    left_out = [
        f"--{name.replace('_', '-')}"
        for name in _CREATION_OPTIONS
        if getattr(options, name) is not None
    ]
    notes = (
        [f"{known.id} keeps its agent: {', '.join(left_out)} has no effect."] if left_out else []
    )
    if known.started:
        notes.append("The server runs this conversation by itself; leaving does not stop it.")
    return _parts(None, server, known.id, There(server, known, notes, own=False))


def _new(
    options: argparse.Namespace, env: Mapping[str, str], server: Server, stream: bool
) -> Parts:
    llm = model_of(options, env, stream and not options.no_stream)
    prompt = prompt_text(options.system_prompt_file)
    own = options.workspace is None
    notes: list[str] = [] if options.id is None else [began(options.id)]
    there = There(server, None, notes, own)
    try:
        tools = server.workspace.tools
        asking = confirmation(options.confirm, [tool.name for tool in tools])
        agent = Agent(
            llm,
            [*tools, *(register_asking_tools() if options.ask else ())],
            system_prompt=prompt,
            limits=limits_of(options),
            system_prompt_extensions=[
                "You work in the current folder, on a server. Paths are relative to it."
            ],
            confirm="never" if asking is None else asking.names,
            condenser=LLMCondenser(),
            planning=options.plan,
            output_type=output_schema(options.output_schema),
        )
    except BaseException:
        there.forget_workspace()
        raise
    notes.append(f"on {server.address}, in the workspace {server.workspace.id}")
    if (
        urlsplit(llm.base_url).hostname in _LOOPBACK
        and urlsplit(server.address).hostname not in _LOOPBACK
    ):
        notes.append(
            f"The server calls the model at {llm.base_url}: that address is on the server's"
            " machine, not on this one."
        )
    return _parts(agent, server, options.id or secrets.token_hex(6), there)


def _parts(agent: Agent | None, server: Server, id: str, there: There) -> Parts:
    return Parts(
        agent,
        server.workspace,
        id=id,
        go_on=shlex.join(["holdfast", "chat", *server.words, "--id", id]),
        tell=shlex.join(["holdfast", "tell", *server.words, id]),
        # The server decides which calls wait; this object remembers the tools allowed here.
        asking=Asking(frozenset()),
        there=there,
    )
