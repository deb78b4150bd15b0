"""Builds the parts of a session from the options of run and chat."""

from __future__ import annotations

import argparse
import secrets
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from holdfast.agent import Agent, Limits
from holdfast.agent.agents_files import SubAgent
from holdfast.agent.condensers import LLMCondenser
from holdfast.agent.confirmation import Confirm
from holdfast.agent.planning import Planning
from holdfast.cli import settings
from holdfast.cli.agent_options import limits_of, model_of, output_schema, prompt_text
from holdfast.cli.children import agents_of
from holdfast.cli.confirm import confirmation
from holdfast.cli.exits import UsageError
from holdfast.cli.ids import already_there, began, matching, not_empty
from holdfast.cli.observing import observing
from holdfast.cli.session import Parts
from holdfast.errors import StoreError
from holdfast.llm import Model
from holdfast.runtime import LocalRuntime
from holdfast.store import SQLiteStore


def build(options: argparse.Namespace, env: Mapping[str, str], stream: bool) -> Parts:
    """Return all parts of a session. `stream` requests the model's answers piece by piece.
    Raises `UsageError`."""
    if options.server is not None:
        if options.agents is not None:
            raise UsageError(
                "--agents cannot be combined with --server: only an agent on this machine can"
                " delegate to them"
            )
        if options.log is not None or options.trace:
            raise UsageError(
                "--log and --trace cannot be combined with --server; give them to `holdfast serve`"
            )
        from holdfast.cli.remote import build_remote  # most sessions are local

        return build_remote(options, env, stream)
    for name, value in (
        ("--workspace", options.workspace),
        ("--model-key-name", options.model_key_name),
        ("--server-key-file", options.server_key_file),
    ):
        if value is not None:
            raise UsageError(f"{name} is for an agent server; name the server with --server URL")
    if options.id is not None and options.store is None:
        raise UsageError(
            "--id names a conversation in a store or on a server; say which with --store FILE or"
            " --server URL"
        )
    model = model_of(options, env, stream and not options.no_stream)
    prompt, schema = prompt_text(options.system_prompt_file), output_schema(options.output_schema)
    passed = settings.shell_environment(env, options.env)
    workdir = Path("." if options.workdir is None else options.workdir).expanduser()
    if not workdir.is_dir():
        raise UsageError(
            f"--workdir takes an existing folder; {options.workdir!r}"
            f" {'is a file' if workdir.exists() else 'does not exist'}"
        )
    runtime = LocalRuntime(workdir, allow_outside=options.allow_outside, env=passed)
    with ExitStack() as undo:
        undo.callback(runtime.close)
        asking = confirmation(options.confirm, [tool.name for tool in runtime.tools])
        delegates = agents_of(options.agents)
        key, watching = model.arguments()["api_key"], undo.enter_context(ExitStack())
        observers = observing(options, True, [key] if key else [], watching)
        store = None if options.store is None else _store(Path(options.store).expanduser())
        if store is not None:
            undo.callback(store.close)
        id, new = _id_in(store, options)
        undo.pop_all()
    known = None if options.no_instructions else runtime.workdir
    agent = agent_in(
        runtime,
        model,
        limits_of(options),
        prompt,
        asking or "never",
        options.plan,
        schema,
        known,
        delegates,
    )
    if options.ask:
        from holdfast.tools.preset.asking import register_asking_tools

        for tool in register_asking_tools():
            agent.tools.register(tool)
    if store is None:
        return Parts(
            agent, runtime, id=id, asking=asking, observers=observers, leave=watching.close
        )
    notes = (began(id),) if new else ()
    tell = shlex.join(["holdfast", "tell", str(options.store), str(id)])
    return Parts(
        agent,
        runtime,
        store,
        id,
        _continue_command(options, id),
        tell,
        asking,
        observers=observers,
        leave=watching.close,
        notes=notes,
    )


def agent_in(
    runtime: LocalRuntime,
    llm: Model,
    limits: Limits = Limits(),
    prompt: str | None = None,
    confirm: Confirm = "never",
    planning: Planning = None,
    output_type: dict[str, Any] | None = None,
    instructions: Path | None = None,
    delegates: Mapping[str, SubAgent] | None = None,
) -> Agent:
    """Return an agent with the tools of `runtime`. Its prompt names the working folder, and the
    contents of the `AGENTS.md` files of `instructions`."""
    where = f"You work in the folder {runtime.workdir}. Paths are relative to it."
    return Agent(
        llm,
        runtime.tools,
        system_prompt=prompt,
        system_prompt_extensions=[where],
        limits=limits,
        confirm=confirm,
        planning=planning,
        condenser=LLMCondenser(),
        output_type=output_type,
        instructions=instructions,
        delegates=delegates,
    )


def _store(path: Path) -> SQLiteStore:
    try:
        return SQLiteStore(path)
    except StoreError as error:
        raise UsageError(str(error)) from error


def _id_in(store: SQLiteStore | None, options: argparse.Namespace) -> tuple[str, bool]:
    """Return the id of the conversation to continue or to begin, and True if `--id` names a new
    one. Raises `UsageError`."""
    if store is None or options.id is None:
        return secrets.token_hex(6), False  # short to type, and unique within one file
    exact = store.list([not_empty(options.id)])
    if options.new:
        if exact:
            raise already_there(options.id)
        return options.id, True
    found = matching(exact or store.list(), options.id)
    return (options.id, True) if found is None else (found.id, False)


def _continue_command(options: argparse.Namespace, id: str) -> str:
    """Return the command that continues this conversation with the same model in the same place."""
    words = ["holdfast", "chat", "--store", options.store, "--id", id]
    for name in ("model", "base_url", "api_key_env"):
        if getattr(options, name):
            words += [f"--{name.replace('_', '-')}", getattr(options, name)]
    if options.confirm != "never":
        words += ["--confirm", options.confirm]
    if options.ask:
        words.append("--ask")
    if options.plan is not None:
        words += ["--plan", options.plan]
    if options.agents is not None:
        words += ["--agents", options.agents]
    if options.workdir is not None:
        words += ["--workdir", options.workdir]
    return shlex.join(words)
