"""`holdfast acp`: an agent for editors, over standard input and output."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from holdfast.agent.agent import Agent
from holdfast.agent.confirmation import Strictest
from holdfast.cli.call_prompt import confirmation
from holdfast.cli.console import Console, log_to_stderr
from holdfast.cli.environment import secrets_of, shell_environment
from holdfast.cli.exit_codes import SERVER_CODES, Exit, UsageError
from holdfast.cli.files import importable, path_of
from holdfast.cli.named_models import agent_of_file
from holdfast.cli.option_values import agent_in, agent_settings, model_of, sub_agents
from holdfast.cli.places import open_store
from holdfast.cli.sandbox import open_workplace
from holdfast.cli.tools import config_variables
from holdfast.errors import ConfigurationError
from holdfast.runtime import LocalRuntime
from holdfast.runtime.files import TextFiles
from holdfast.runtime.folder import FolderRuntime
from holdfast.runtime.paths import home_folder
from holdfast.serve.acp_session import SessionPlace
from holdfast.serve.acp_stdio import over_stdio
from holdfast.serve.stdio import claimed
from holdfast.tools.preset.asking import register_asking_tools


def acp(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Serve one editor. Raises `UsageError`, `HoldfastError`."""
    log_to_stderr(env, "holdfast: %(message)s")
    if sys.stdin.isatty():
        text = "Serving ACP on standard input and output, for an editor that starts this command."
        Console(env, out=sys.stderr).notice(f"{text} Ctrl-D ends it.", "dim")
    if options.agent is None:
        model_of(options, env, True)  # reports a missing model or key at once
    elif not path_of(options.agent).is_file():
        raise UsageError(f"--agent: there is no file {options.agent!r}")
    hidden = secrets_of(env, options.secret)
    passed = shell_environment(env, options.env)

    def open_at(folder: Path, texts: TextFiles | None) -> SessionPlace:
        try:
            place = open_workplace(options, env, folder, passed, True, texts)
            agent = _agent(options, env, place.runtime, place.prompt)
            if place.asks:  # there is no sandbox: commands wait in each mode
                commands = confirmation("never", [], commands=True)
                agent = agent.replace(confirm=Strictest([agent.confirm or "never", commands]))
        except UsageError as error:
            raise ConfigurationError(str(error)) from error
        plain = isinstance(place.runtime, LocalRuntime)
        return SessionPlace(agent, place.runtime, {"secrets": hidden}, client_terminals=plain)

    # Claimed before an agent's modules are imported: their output must not get onto the wire.
    with claimed() as wire, open_store(_store(options, env), create=True) as store:
        return SERVER_CODES[over_stdio(open_at, store, wire, options.mode)]


def _store(options: Namespace, env: Mapping[str, str]) -> str:
    """Return the file of the conversations; its folder is made."""
    if options.store is not None:
        return options.store
    home = env.get("XDG_STATE_HOME") or f"{env.get('HOME') or home_folder() or '/tmp'}/.local/state"
    folder = Path(home) / "holdfast"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{str(folder)!r} cannot be made: {error.strerror}; use --store"
        ) from error
    return str(folder / "acp.db")


def _agent(
    options: Namespace, env: Mapping[str, str], runtime: FolderRuntime, sandbox: str
) -> Agent:
    if options.agent is not None:
        path = path_of(options.agent)
        importable(str(path.resolve().parent))
        try:
            return agent_of_file(path, config_variables(path, env), runtime)
        except OSError as error:
            raise UsageError(f"--agent: {error}") from error
    settings = agent_settings(options) | {
        "delegates": sub_agents(options.agents),
        "instructions": None if options.no_instructions else runtime.workdir,
    }
    tools = [*runtime.tools, *register_asking_tools()]
    model = model_of(options, env, True)
    return agent_in(f"the folder {runtime.workdir}", model, tools, settings, sandbox)
