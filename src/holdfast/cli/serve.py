"""`holdfast serve`: runs the agent server until a signal ends it, and manages its keys."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Generator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.exits import Exit, UsageError
from holdfast.cli.observing import observing
from holdfast.cli.screen import Screen
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

    from holdfast.server.deliveries import Sending
    from holdfast.server.keys import Keys
    from holdfast.server.openai import Published
    from holdfast.server.records import Records

_CODES = {0: Exit.FINISHED, signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED}
_GRACE_SECONDS = 10.0  # for running work to end
_THREAD_SECONDS = 3.0  # for threads to end after that


def serve(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """Run the server, or manage its keys. Raises `UsageError`, `HoldfastError`."""
    if options.what == "keys":
        return _keys(options, env)
    with _server_dependencies():
        import_module("holdfast.server.app")
        from holdfast.server.sockets import address, is_loopback

    try:
        host, port = address(options.listen)
    except ConfigurationError as error:
        raise UsageError(f"--listen: {error}") from None
    tls = _tls(options)
    if tls is None and not options.insecure and not is_loopback(host):
        raise UsageError(
            f"--listen {options.listen}: without TLS, keys would cross the network unencrypted."
            " Give --tls-cert and --tls-key, or --insecure if a proxy provides TLS"
        )
    given = _given_key(options, env)
    variables = _variables(options, env)
    _forget(
        "HOLDFAST_SERVER_KEY",
        *(text.rpartition(":")[2] for text in options.variable if "=" not in text),
    )
    _log_to_stderr(env, options.access_log)
    store = _store_path(options)
    with _exclusive(store):
        return _serve(
            options, env, Screen(env, out=sys.stderr), store, (host, port), tls, given, variables
        )


def _serve(
    options: argparse.Namespace,
    env: Mapping[str, str],
    screen: Screen,
    path: Path,
    place: tuple[str, int],
    tls: ssl.SSLContext | None,
    given: str | None,
    variables: Mapping[str, str],
) -> Exit:
    from holdfast.server.app import App
    from holdfast.server.guard import Quota, host_names
    from holdfast.server.host import Host
    from holdfast.server.limits import Bounds
    from holdfast.server.policy import Policy
    from holdfast.server.serve import AgentServer
    from holdfast.server.sockets import listen
    from holdfast.store import SQLiteStore

    policy = Policy(options.allow_tools)
    root = _root(options, path)
    agents = _agents(options, variables)
    sending = _sending(options)
    for file in (path, _records_path(path)):
        # Readable by its owner only. SQLite gives its -wal and -shm the same permissions.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    listening = listen(*place)
    with contextlib.closing(listening), _records(path) as (records, keys):
        _add_first_key(keys, given, options.tenant or "default", screen)
        with contextlib.closing(SQLiteStore(path)) as store, contextlib.ExitStack() as watching:
            observers = observing(options, False, [given] if given else [], watching)
            # An open conversation takes a process, or a few KB.
            most = 2 * options.max_running
            bounds = Bounds(open=most if options.isolation == "process" else max(1000, most))
            host = Host(
                store,
                records,
                policy=policy,
                root=root,
                variables=variables,
                max_running=options.max_running,
                bounds=bounds,
                isolation=options.isolation,
                worker_memory=options.worker_memory,
                observer=observers,
                sending=sending,
            )
            app = App(
                host,
                keys,
                quota=Quota(rate=options.rate, body=options.max_body),
                hosts=host_names(place[0], options.allow_host),
                origins=options.cors_origin,
                agents=agents,
            )
            server = AgentServer(app, listening, tls=tls, grace=_GRACE_SECONDS)
            number = server.run(
                lambda: screen.notice(f"Serving agents at {server.url}. Ctrl-C ends it.")
            )
    # A tool that cannot be stopped must not keep the process alive. The journal shows that its call
    # started.
    if left := _threads():
        logging.getLogger("holdfast.server").warning(
            "%d threads did not end in time; the process ends without waiting for them", len(left)
        )
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(_CODES[number]))
    return _CODES[number]


def _threads() -> list[threading.Thread]:
    """Return the threads that would keep the process alive, after a short wait for those that
    are ending."""
    deadline = time.monotonic() + _THREAD_SECONDS
    left = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.daemon
    ]
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread for thread in left if thread.is_alive()]


# --- keys ---


def _keys(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    path = _store_path(options)
    if options.action is None:
        raise UsageError("serve keys takes one of add, list, remove")
    if options.id is not None and options.action != "remove":
        raise UsageError(f"serve keys {options.action} takes no ID")
    if options.action != "add" and not _records_path(path).exists():
        raise UsageError(
            f"{str(path)!r} is not an agent server's store: there are no keys beside it. Name the"
            " store with --store FILE"
        )
    with _records(path) as (_, keys):
        match options.action:
            case "add":
                print(keys.create(options.tenant or "default", options.label))
            case "list":
                for key in keys.list():
                    if options.tenant in (None, key.tenant):
                        created = f"{key.created:%Y-%m-%d %H:%M}"
                        print(f"{key.id}  {created}  {key.tenant}  {key.label}".rstrip())
            case _:
                _remove(options, keys)
    return Exit.FINISHED


def _remove(options: argparse.Namespace, keys: Keys) -> None:
    if options.id is None and options.tenant is None:
        raise UsageError(
            "serve keys remove takes the ID that `serve keys list` shows, or --tenant T for all"
            " keys of T"
        )
    found = [
        key.id
        for key in keys.list()
        if options.id in (None, key.id) and options.tenant in (None, key.tenant)
    ]
    if not found:
        key_id = f" {options.id}" if options.id else ""
        tenant = f" of tenant {options.tenant}" if options.tenant else ""
        raise UsageError(f"there is no key{key_id}{tenant}")
    for id in found:
        keys.revoke(id)


def _given_key(options: argparse.Namespace, env: Mapping[str, str]) -> str | None:
    if options.key_file is None:
        return env.get("HOLDFAST_SERVER_KEY", "").strip() or None
    path = Path(options.key_file).expanduser()
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--key-file: {str(path)!r} cannot be read:"
            f" {getattr(error, 'strerror', None) or 'it is not text'}"
        ) from None
    if not key:
        raise UsageError(f"--key-file: {str(path)!r} is empty")
    return key


def _add_first_key(keys: Keys, given: str | None, tenant: str, screen: Screen) -> None:
    if given is not None:
        keys.add(tenant, given, "given at the start")
    elif not keys.list():
        key = keys.create(tenant, "made at the first start")
        screen.notice(f"The server's key, which is shown only this once: {key}")


# --- files ---


def _store_path(options: argparse.Namespace) -> Path:
    path = Path(options.store).expanduser().absolute()
    if not path.parent.is_dir():
        raise UsageError(f"--store: there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise UsageError(f"--store takes a file; {str(path)!r} is a folder")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(f"--store: {str(path)!r} cannot be written")
    return path


def _records_path(store: Path) -> Path:
    return store.with_name(f"{store.name}.server.db")


def _root(options: argparse.Namespace, store: Path) -> Path:
    root = (
        store.with_name(f"{store.name}.workspaces")
        if options.root is None
        else Path(options.root).expanduser().absolute()
    )
    try:
        root.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--root: {str(root)!r} cannot be made: {error.strerror}") from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise UsageError(f"--root: the folder {str(root)!r} cannot be written")
    return root


@contextlib.contextmanager
def _records(store: Path) -> Generator[tuple[Records, Keys]]:
    from holdfast.server.keys import Keys
    from holdfast.server.records import Records
    from holdfast.server.sealing import Seal

    with contextlib.closing(
        Records(_records_path(store), Seal.of_file(store.with_name(f"{store.name}.server.key")))
    ) as records:
        yield records, Keys(records)


@contextlib.contextmanager
def _exclusive(store: Path) -> Generator[None]:
    """Lock the store against other servers inside the context. Two servers would compete for its
    conversations, and both would fail."""
    path = store.with_name(f"{store.name}.server.lock")
    try:
        file = open(path, "a+")  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"--store: {str(path)!r} cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise UsageError(
                f"--store: another server (process {file.read(20).strip() or 'unknown'}) uses"
                f" {str(store)!r}"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


# --- options ---


def _tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    if options.tls_cert is None:
        if options.tls_key is not None:
            raise UsageError("--tls-key needs --tls-cert, which is missing")
        return None
    from holdfast.server.serve import tls_context

    try:
        return tls_context(options.tls_cert, options.tls_key)
    except ConfigurationError as error:
        raise UsageError(f"--tls-cert: {error}") from None


def _variables(options: argparse.Namespace, env: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in options.variable:
        place, given, value = text.partition("=")
        provider, colon, name = place.rpartition(":")
        if not name.isidentifier() or (colon and not re.fullmatch(r"[a-z0-9.-]+", provider)):
            raise UsageError(f"--variable takes NAME, NAME=VALUE or PROVIDER:NAME, not {place!r}")
        if not given and name not in env:
            raise UsageError(f"the environment variable {name}, named by --variable, is not set")
        found[name] = found[place] = value if given else env[name]
    return found


def _sending(options: argparse.Namespace) -> Sending:
    from holdfast.server.deliveries import Sending

    try:
        return Sending(allow=tuple(options.webhook_allow), give_up=options.webhook_days * 86_400.0)
    except ConfigurationError as error:
        raise UsageError(f"--webhook-allow: {str(error).removesuffix('.')}") from None


def _agents(options: argparse.Namespace, variables: Mapping[str, str]) -> dict[str, Published]:
    from holdfast.agent.load import load_agent
    from holdfast.runtime import LocalRuntime
    from holdfast.server.openai import publish

    found: dict[str, Published] = {}
    if not options.agent:
        return found
    # Only for the names of its tools. The tools run in the workspace of each conversation.
    with LocalRuntime() as runtime:
        for text in options.agent:
            name, given, file = text.partition("=")
            if not given or not name or not file:
                raise UsageError(f"--agent takes NAME=FILE, not {text!r}")
            if name in found:
                raise UsageError(f"--agent: {name!r} is given twice")
            path = Path(file).expanduser()
            try:
                agent = load_agent(
                    path, variables=variables, builtins={tool.name: tool for tool in runtime.tools}
                )
                found[name] = publish(name, agent)
            except (ConfigurationError, OSError) as error:
                raise UsageError(f"--agent {name}: {str(error).removesuffix('.')}") from None
    return found


def _forget(*names: str) -> None:
    """Remove variables from the environment, also from /proc/PID/environ: commands run as the
    same user and could read them there."""
    import ctypes

    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    for name in names:
        if name in os.environ:
            if place := getenv(os.fsencode(name)):
                ctypes.memset(place, ord("x"), len(ctypes.string_at(place)))
            del os.environ[name]


@contextlib.contextmanager
def _server_dependencies() -> Generator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in (
            "fastapi",
            "starlette",
            "uvicorn",
            "anyio",
        ):
            raise
        raise UsageError(
            f"holdfast serve needs {error.name}, which is not installed: pip install"
            " 'holdfast[server]'"
        ) from None


def _log_to_stderr(env: Mapping[str, str], access: bool) -> None:
    """Log warnings to stderr, where the operator keeps the log."""
    if env.get("HOLDFAST_DEBUG"):
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s holdfast: %(message)s"))
    log = logging.getLogger("holdfast")
    log.addHandler(handler)
    log.setLevel(logging.WARNING)
    if access:
        logging.getLogger("holdfast.server.access").setLevel(logging.INFO)
