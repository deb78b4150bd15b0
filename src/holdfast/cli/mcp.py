"""`holdfast mcp`: offers tools to MCP clients until the client or a signal ends it."""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Generator, Mapping

from holdfast.agent.load import load_agent
from holdfast.cli.console import Console, log_to_stderr
from holdfast.cli.environment import not_set
from holdfast.cli.exit_codes import SERVER_CODES, Exit, UsageError, flag
from holdfast.cli.files import folder_of, naming, path_of
from holdfast.cli.sandbox import open_required
from holdfast.cli.tools import Toolset, toolset
from holdfast.errors import ConfigurationError
from holdfast.serve import mcp as serve
from holdfast.serve.agent_tasks import AgentTasks
from holdfast.serve.door import LocalDoor
from holdfast.serve.http import check
from holdfast.serve.serving import over_stdio
from holdfast.serve.stdio import claimed
from holdfast.serve.tool_server import ToolServer
from holdfast.server.sockets import address
from holdfast.store import MemoryStore, SQLiteStore, Store
from holdfast.tools.manager import ToolManager


def mcp(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Serve tools over MCP. Raises `UsageError`, `HoldfastError`."""
    if options.agent is not None and options.config is not None:
        raise UsageError("--agent and --config are two offers; give one of them")
    if options.agent is None and options.store is not None:
        raise UsageError("--store is for --agent, which is missing")
    if options.config is None and options.workdir is None and options.agent is None:
        raise UsageError(
            "no tools were given. Name a tool config with --config FILE, or a folder for the"
            " builtin tools with --workdir DIR"
        )
    token = _token(options, env)
    log_to_stderr(env, "holdfast: %(message)s")
    console = Console(env, out=sys.stderr)
    if options.http is None:
        return _over_stdio(options, env, console)
    return _over_http(options, env, console, token)


def _token(options: Namespace, env: Mapping[str, str]) -> str | None:
    for name in ("token_env", "allow_host"):
        if options.http is None and getattr(options, name):
            why = "over standard input and output there is only one client"
            raise UsageError(f"{flag(name)} is for --http; {why}")
    if options.token_env is None:
        return None
    if not env.get(options.token_env):
        raise not_set(options.token_env, "--token-env")
    return env[options.token_env].strip()


def _over_stdio(options: Namespace, env: Mapping[str, str], console: Console) -> Exit:
    if sys.stdin.isatty():
        text = "Serving MCP on standard input and output, for a client that starts this command."
        console.notice(f"{text} Ctrl-D ends it.", "dim")
    # Claimed before the config is read: output of its modules must not get onto the wire either.
    with claimed() as wire, _offer(options, env) as (tools, tasks):
        offer = ToolServer(tools.manager, _name(options), None, 32, tools.runtime, tasks)
        number = over_stdio(offer, wire)
    return SERVER_CODES[number]


def _over_http(
    options: Namespace, env: Mapping[str, str], console: Console, token: str | None
) -> Exit:
    try:  # before modules are imported and anything is started
        check(address(options.http)[0], token)
    except ConfigurationError as error:
        option = "Give a token, with --token-env NAME,"
        raise UsageError(f"--http: {str(error).replace('Give a token', option)}") from error
    with _offer(options, env) as (tools, tasks):
        number = serve(
            tools.manager,
            http=options.http,
            token=token,
            allowed_hosts=options.allow_host,
            name=_name(options),
            runtime=tools.runtime,
            tasks=tasks,
            on_ready=lambda url: console.notice(f"Serving MCP at {url}. Ctrl-C ends it."),
        )
    return SERVER_CODES[number]


def _name(options: Namespace) -> str:
    if options.name is not None or options.agent is None:
        return options.name or "holdfast"
    return path_of(options.agent).stem


@contextlib.contextmanager
def _offer(
    options: Namespace, env: Mapping[str, str]
) -> Generator[tuple[Toolset, AgentTasks | None]]:
    """Yield the tools of a config, or the tool that asks an agent, with its tasks."""
    if options.agent is None:
        with toolset(options, env) as tools:
            yield tools, None
        return
    path = path_of(options.agent)
    with contextlib.ExitStack() as stack:
        folder = folder_of(options.workdir or ".")
        runtime = stack.enter_context(open_required(options, env, folder))
        with naming("--agent"):
            agent = load_agent(path, variables=env, runtime=runtime)
        store: Store = MemoryStore()
        if options.store is not None:
            store = SQLiteStore(path_of(options.store))
            stack.callback(store.close)
        door = LocalDoor(agent, store, runtime=runtime)
        stack.callback(door.close)
        tasks = AgentTasks(door, _name(options), agent.description)
        manager = stack.enter_context(ToolManager([tasks.tool]))
        yield Toolset(manager, runtime), tasks
