"""`holdfast serve keys`: manages the keys of an agent server, which stand beside its store."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path

from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.files import path_of
from holdfast.server.keys import Keys
from holdfast.server.records import Records
from holdfast.server.sealing import Seal


def serve_keys(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Add, list or remove keys. Raises `UsageError`, `HoldfastError`."""
    path = store_path(options)
    if options.action is None:
        raise UsageError("serve keys takes one of add, list, remove")
    if options.id is not None and options.action != "remove":
        raise UsageError(f"serve keys {options.action} takes no ID")
    if options.action != "add" and not beside(path, "db").exists():
        why = "there are no keys beside it. Name the store with --store FILE"
        raise UsageError(f"{str(path)!r} is not an agent server's store: {why}")
    with opened_records(path) as records:
        keys = Keys(records)
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


def _remove(options: Namespace, keys: Keys) -> None:
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


def store_path(options: Namespace) -> Path:
    """Return the absolute path of `--store`. Raises `UsageError` unless it can be written."""
    path = path_of(options.store).absolute()
    if not path.parent.is_dir():
        raise UsageError(f"--store: there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise UsageError(f"--store takes a file; {str(path)!r} is a folder")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(f"--store: {str(path)!r} cannot be written")
    return path


def beside(store: Path, kind: str) -> Path:
    """Return the server's file of a kind (db, key, lock), which stands beside its store."""
    return store.with_name(f"{store.name}.server.{kind}")


def opened_records(store: Path) -> AbstractContextManager[Records]:
    """Open the server's records beside its store."""
    return closing(Records(beside(store, "db"), Seal.of_file(beside(store, "key"))))
