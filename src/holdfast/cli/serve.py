"""`holdfast serve`: runs the agent server until a signal ends it."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import ssl
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.agent.load import load_agent
from holdfast.agent.model_files import model_files
from holdfast.agent.model_folder import ModelFolder
from holdfast.cli.console import Console, log_to_stderr
from holdfast.cli.environment import not_set
from holdfast.cli.exit_codes import SERVER_CODES, Exit, UsageError
from holdfast.cli.files import naming, path_of, read_key
from holdfast.cli.model_names import models_in, models_path
from holdfast.cli.named_models import named_model, usual_variables
from holdfast.cli.option_values import observers_of
from holdfast.cli.serve_store import ServerStore, server_store
from holdfast.runtime import LocalRuntime
from holdfast.serve import agui, responses_routes
from holdfast.serve.a2a_door import A2ADoor, CardKey
from holdfast.server.app import App, Door
from holdfast.server.deliveries import Sending
from holdfast.server.guard import Quota, host_names
from holdfast.server.host import Host
from holdfast.server.host_settings import HostSettings
from holdfast.server.keys import Keys, check_key, sign_in_link
from holdfast.server.limits import Bounds, checked_id
from holdfast.server.named_parts import OfferedModel, offer
from holdfast.server.openai import Published, publish
from holdfast.server.policy import Policy
from holdfast.server.runtimes import WorkspaceRuntimes
from holdfast.server.serve import AgentServer, tls_context
from holdfast.server.sockets import address, is_loopback, listen

_DOORS = (responses_routes.add, agui.add)  # of the protocols that need no option
_GRACE_SECONDS = 10.0  # for running work to end
_THREAD_SECONDS = 3.0  # for threads to end after that


class _Settings(NamedTuple):
    """The settings from options and environment, checked before anything is started."""

    address: tuple[str, int]
    tls: ssl.SSLContext | None
    key: str | None
    variables: Mapping[str, str]
    folder: Path  # of named models
    models: Mapping[str, OfferedModel]

    def __repr__(self) -> str:
        return f"_Settings({self.address!r})"  # key and variables are secrets


def serve(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Run the server. Raises `UsageError`, `HoldfastError`."""
    with naming("--listen", ""):
        place = address(options.listen)
    tls = _tls(options)
    if tls is None and not options.insecure and not is_loopback(place[0]):
        raise UsageError(
            f"--listen {options.listen}: without TLS, keys would cross the network unencrypted."
            " Give --tls-cert and --tls-key, or --insecure if a proxy provides TLS"
        )
    key = env.get("HOLDFAST_SERVER_KEY", "").strip() or None
    if options.key_file is not None:
        key = read_key(options.key_file, "--key-file:")
    if options.supervised:
        key = _supervisors_key(options)
    if key is not None:
        check_key(key)
    variables = _variables(options, env)
    folder = models_path(options, env)
    models, used = _models(options, folder, {**env, **variables})
    settings = _Settings(place, tls, key, variables, folder, models)
    store = server_store(options, env)
    _forget(
        "HOLDFAST_SERVER_KEY",
        "HOLDFAST_STORE",
        *used,
        *(text.rpartition(":")[2] for text in options.variable if "=" not in text),
    )
    log_to_stderr(env, "%(asctime)s holdfast: %(message)s")
    if options.access_log and not env.get("HOLDFAST_DEBUG"):
        logging.getLogger("holdfast.server.access").setLevel(logging.INFO)
    return _serve(options, Console(env, out=sys.stderr), store, settings)


def _serve(options: Namespace, console: Console, place: ServerStore, settings: _Settings) -> Exit:
    tenant = options.tenant or "default"
    host_settings = _host_settings(options, tenant, settings)
    agents = _agents(options, settings.folder, settings.variables)
    doors = [*_DOORS, *_doors(options)]
    with contextlib.ExitStack() as stack:  # no file is written before the options are checked
        stack.enter_context(place.exclusive())
        listening = stack.enter_context(contextlib.closing(listen(*settings.address)))
        root = place.root(options.root)
        if host_settings.runtimes.sandboxed:
            _check_private(options, {**place.files, "--root": root})
        store = place.journals()
        stack.callback(store.close)
        records = stack.enter_context(place.records())
        place.check_root(root, records)
        keys = Keys(records)
        first_key = ""
        if settings.key is not None:
            keys.add(tenant, settings.key, "given at the start")
        elif not keys.list():
            first_key = keys.create(tenant, "made at the first start")
            console.notice(f"The server's key, which is shown only this once: {first_key}")
        observers = observers_of(options, False, [settings.key] if settings.key else [], stack)
        host = Host(store, records, replace(host_settings, root=root, observer=observers))
        app = App(
            host,
            keys,
            quota=Quota(rate=options.rate, body=options.max_body),
            hosts=host_names(settings.address[0], options.allow_host),
            origins=options.cors_origin,
            agents=agents,
            doors=doors if agents else (),
        )
        server = AgentServer(app, listening, tls=settings.tls, grace=_GRACE_SECONDS)
        if options.supervised:
            _end_with_input(server)
        ready = f"Serving agents at {server.url}. Ctrl-C ends it."
        if first_key:  # a browser sends no fragment, and the page removes it from the address
            ready = f"To sign in, open {sign_in_link(server.url, first_key)}\n{ready}"
        number = server.run(lambda: console.notice(ready))
    _end_with_threads(SERVER_CODES[number])
    return SERVER_CODES[number]


def _host_settings(options: Namespace, tenant: str, settings: _Settings) -> HostSettings:
    """Return the settings of the host without its root and its observers."""
    policy = Policy(
        options.allow_tools,
        programs=options.sandbox != "require",
        hook_commands=options.allow_hook_commands,
    )
    runtimes = _runtimes(options)
    folders = {(tenant, id): folder for id, folder in _workspaces(options).items()}
    with naming("--webhook-allow"):
        give_up = options.webhook_days * 86_400.0
        sending = Sending(allow=tuple(options.webhook_allow), give_up=give_up)
    # An open conversation takes a process, or a few KB.
    most = 2 * options.max_running
    return HostSettings(
        policy=policy,
        folders=folders,
        runtimes=runtimes,
        variables=settings.variables,
        models=settings.models,
        max_running=options.max_running,
        bounds=Bounds(open=most if options.isolation == "process" else max(1000, most)),
        isolation=options.isolation,
        worker_memory=options.worker_memory,
        sending=sending,
        drives=not options.no_drive,
    )


def _end_with_threads(code: Exit) -> None:
    """End the process at once if threads are left. A tool that cannot be stopped must not keep the
    process alive; the journal shows that its call started."""
    if remaining := _threads():
        text = "%d threads did not end in time; the process ends without waiting for them"
        logging.getLogger("holdfast.server").warning(text, len(remaining))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code))


def _threads() -> list[threading.Thread]:
    """Return the threads that would keep the process alive, after a short wait for their end."""
    deadline = time.monotonic() + _THREAD_SECONDS
    others = set(threading.enumerate()) - {threading.current_thread()}
    threads = [thread for thread in others if not thread.daemon]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread for thread in threads if thread.is_alive()]


def _workspaces(options: Namespace) -> dict[str, Path]:
    workspaces: dict[str, Path] = {}
    for text in options.workspace:
        id, equals, folder = text.partition("=")
        if not equals or not folder:
            raise UsageError(f"--workspace takes ID=DIR, not {text!r}")
        if id in workspaces:
            raise UsageError(f"--workspace: {id!r} is given twice")
        path = path_of(folder).absolute()
        if not path.is_dir():
            raise UsageError(f"--workspace {id}: there is no folder {str(path)!r}")
        with naming("--workspace"):
            workspaces[checked_id(id, "workspace")] = path
    return workspaces


def _check_private(options: Namespace, files: Mapping[str, Path | None]) -> None:
    """Refuse workspaces with files of the server's own in them, which sandboxes would show."""
    private = {name: file for name, file in files.items() if file is not None}
    for name in ("key_file", "tls_cert", "tls_key"):
        if (option := getattr(options, name)) is not None:
            private[f"--{name.replace('_', '-')}"] = path_of(option)
    for id, folder in _workspaces(options).items():
        for name, path in private.items():
            if path.resolve().is_relative_to(folder.resolve()):
                raise UsageError(
                    f"--workspace {id}: the sandboxes of its conversations would show {name},"
                    f" {str(path)!r}, which is in {str(folder)!r}. Move it out of there"
                )
        with naming(f"--workspace {id}"):
            WorkspaceRuntimes(True).open(folder).close()


def _runtimes(options: Namespace) -> WorkspaceRuntimes:
    if options.network and options.sandbox != "require":
        raise UsageError("--network is for the sandbox; add --sandbox require")
    runtimes = WorkspaceRuntimes(options.sandbox == "require", tuple(options.network))
    with naming("--sandbox require" if runtimes.sandboxed else "--sandbox"):
        runtimes.check()
    return runtimes


def _supervisors_key(options: Namespace) -> str:
    if options.key_file is not None:
        raise UsageError("--supervised and --key-file both give a key; leave one of them out")
    key = sys.stdin.readline().strip()
    if not key:
        raise UsageError("--supervised: the first line of standard input has no key")
    return key


def _end_with_input(server: AgentServer) -> None:
    """Stop the server when standard input ends, which the end of the other process causes."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 65536):
                pass
        server.stop()

    threading.Thread(target=watch, name="holdfast-supervised", daemon=True).start()


def _tls(options: Namespace) -> ssl.SSLContext | None:
    if options.tls_cert is None:
        if options.tls_key is not None:
            raise UsageError("--tls-key needs --tls-cert, which is missing")
        return None
    with naming("--tls-cert", ""):
        key = None if options.tls_key is None else str(path_of(options.tls_key))
        return tls_context(str(path_of(options.tls_cert)), key)


def _variables(options: Namespace, env: Mapping[str, str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for text in options.variable:
        place, equals, value = text.partition("=")
        provider, colon, name = place.rpartition(":")
        if not name.isidentifier() or (colon and not re.fullmatch(r"[a-z0-9.-]+", provider)):
            raise UsageError(f"--variable takes NAME, NAME=VALUE or PROVIDER:NAME, not {place!r}")
        if not equals and name not in env:
            raise not_set(name, "--variable")
        variables[name] = variables[place] = value if equals else env[name]
    return variables


def _models(
    options: Namespace, place: Path, env: Mapping[str, str]
) -> tuple[dict[str, OfferedModel], list[str]]:
    """Return the models of the folder that clients may name, and the variables with their keys.
    Without --model all models of --models are offered, and none of the default folder. Raises
    `UsageError`, `ConfigurationError`."""
    if not options.model and options.models is None:
        return {}, []
    folder = ModelFolder(place, env)
    entries = {name: folder.entry(name) for name in options.model}
    if not entries:
        entries = {one.name: one for one in folder.entries() if one.kind == "model"}
    models: dict[str, OfferedModel] = {}
    used: list[str] = []
    for name, entry in entries.items():
        model = named_model(folder.folder, name, env)
        with naming(f"--model {name}"):
            models[name] = offer(name, model)
        used += entry.variables
        used += [variable for llm in models_in(entry.model) for variable in usual_variables(llm)]
    return models, used


def _agents(options: Namespace, folder: Path, variables: Mapping[str, str]) -> dict[str, Published]:
    agents: dict[str, Published] = {}
    names = [text.partition("=")[0] for text in options.agent]
    specs = [*options.agent, *(text for text in options.a2a if text not in names)]
    if not specs:
        return agents
    model_paths = model_files(folder)
    # Only for the names of its tools. The tools run in the workspace of each conversation.
    with LocalRuntime() as runtime:
        for text in specs:
            name, equals, file = text.partition("=")
            if not equals and name in model_paths:
                file = str(model_paths[name])
            elif not equals or not name or not file:
                where = f"a name of the folder {str(folder)!r}"
                option = "--agent" if text in options.agent else "--a2a"
                raise UsageError(f"{option} takes NAME=FILE, or {where}, not {text!r}")
            if name in agents:
                raise UsageError(f"--agent: {name!r} is given twice")
            path, builtins = path_of(file), {tool.name: tool for tool in runtime.tools}
            with naming(f"--agent {name}"):
                agent = load_agent(path, variables=variables, builtins=builtins)
                agents[name] = publish(name, agent)
    return agents


def _doors(options: Namespace) -> list[Door]:
    if not options.a2a:
        if options.a2a_url or options.a2a_sign:
            raise UsageError("--a2a-url and --a2a-sign are for --a2a, which is missing")
        return []
    key = None
    with naming("--a2a-sign", ""):
        if options.a2a_sign is not None:
            key = CardKey.of_pem(path_of(options.a2a_sign).read_bytes())
    names = [text.partition("=")[0] for text in options.a2a]
    return [A2ADoor(names, url=options.a2a_url or "", key=key)]


def _forget(*names: str) -> None:
    """Remove variables from the environment and /proc/PID/environ, which commands could read."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    for name in names:
        if name in os.environ:
            if place := getenv(os.fsencode(name)):
                ctypes.memset(place, ord("x"), len(ctypes.string_at(place)))
            del os.environ[name]
