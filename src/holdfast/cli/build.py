"""From the options of run and chat to the parts of a session."""

from __future__ import annotations

import argparse
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path

from holdfast.agent import Agent, Limits
from holdfast.agent.confirmation import Confirm
from holdfast.cli import settings
from holdfast.cli.confirm import confirmation
from holdfast.cli.exits import UsageError
from holdfast.cli.session import Parts
from holdfast.errors import ConfigurationError, StoreError
from holdfast.llm import LLM, Model
from holdfast.llm.address import locate
from holdfast.runtime import LocalRuntime
from holdfast.store import SQLiteStore


def build(options: argparse.Namespace, env: Mapping[str, str], stream: bool) -> Parts:
    """Everything that a session needs; `stream` asks the model for its answer piece by piece. Raises `UsageError`."""
    if options.id is not None and options.store is None:
        raise UsageError("--id names a conversation in a store; say which with --store FILE")
    llm = _llm(options, env, stream and not options.no_stream)
    prompt = _text(options.system_prompt_file)
    passed = settings.shell_environment(env, options.env)
    workdir = Path(options.workdir).expanduser()
    if not workdir.is_dir():
        raise UsageError(f"--workdir takes an existing folder; {options.workdir!r} {'is a file' if workdir.exists() else 'does not exist'}")
    runtime = LocalRuntime(workdir, allow_outside=options.allow_outside, env=passed)
    try:
        asking = confirmation(options.confirm, [tool.name for tool in runtime.tools])
        store = None if options.store is None else _store(Path(options.store).expanduser())
    except BaseException:
        runtime.close()
        raise
    id = options.id or secrets.token_hex(6)  # short enough to type, and unique enough for one file
    agent = agent_in(runtime, llm, Limits(steps=options.max_steps), prompt, asking or "never")
    if store is None:
        return Parts(agent, runtime, id=id, asking=asking)
    return Parts(agent, runtime, store, id, _go_on(options, id), shlex.join(["holdfast", "tell", str(options.store), str(id)]), asking)


def agent_in(runtime: LocalRuntime, llm: Model, limits: Limits = Limits(), prompt: str | None = None, confirm: Confirm = "never") -> Agent:
    """An agent with the tools of `runtime`, told where it is."""
    where = f"You work in the folder {runtime.workdir}. Paths are relative to it."
    return Agent(llm, runtime.tools, system_prompt=prompt, system_prompt_extensions=[where], limits=limits, confirm=confirm)


def _llm(options: argparse.Namespace, env: Mapping[str, str], stream: bool) -> LLM:
    model = settings.model_name(options.model, env)
    url = settings.base_url(options.base_url, env)
    try:
        llm = LLM(model, base_url=url, stream=stream, max_retries=options.retries)
        return llm.replace(api_key=settings.api_key(llm.base_url, options.api_key_env, env, locate(model, url).provider))
    except ConfigurationError as error:
        told = str(error).replace("LLM: base_url", "--base-url (or HOLDFAST_BASE_URL)").replace("LLM: api_key", "the API key")
        raise UsageError(told.removeprefix("LLM: ")) from error


def _text(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--system-prompt-file {path!r} cannot be read: {reason}") from error


def _store(path: Path) -> SQLiteStore:
    try:
        return SQLiteStore(path)
    except StoreError as error:
        raise UsageError(str(error)) from error


def _go_on(options: argparse.Namespace, id: str) -> str:
    """The command that goes on with this conversation: the same model in the same place."""
    words = ["holdfast", "chat", "--store", options.store, "--id", id]
    for name in ("model", "base_url", "api_key_env"):
        if getattr(options, name):
            words += [f"--{name.replace('_', '-')}", getattr(options, name)]
    if options.confirm != "never":
        words += ["--confirm", options.confirm]
    if options.workdir != ".":
        words += ["--workdir", options.workdir]
    return shlex.join(words)
