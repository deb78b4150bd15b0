"""`holdfast serve keys`: manages the keys of an agent server, which are in its records."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping

from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.serve_store import server_store
from holdfast.server.keys import Keys, sign_in_link


def serve_keys(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Add, list or remove keys. Raises `UsageError`, `HoldfastError`."""
    store = server_store(options, env)
    if options.action is None:
        raise UsageError("serve keys takes one of add, list, remove")
    if options.id is not None and options.action != "remove":
        raise UsageError(f"serve keys {options.action} takes no ID")
    if options.action != "add" and not store.has_keys:
        why = "there are no keys beside it. Name the store with --store FILE"
        raise UsageError(f"{store!r} is not an agent server's store: {why}")
    with store.records() as records:
        keys = Keys(records)
        match options.action:
            case "add":
                key = keys.create(options.tenant or "default", options.label)
                print(key)
                if sys.stderr.isatty():
                    link = sign_in_link("http://127.0.0.1:8765", key)
                    print(f"To sign in at the page of a server there, open {link}", file=sys.stderr)
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
    ids = [
        key.id
        for key in keys.list()
        if options.id in (None, key.id) and options.tenant in (None, key.tenant)
    ]
    if not ids:
        key_id = f" {options.id}" if options.id else ""
        tenant = f" of tenant {options.tenant}" if options.tenant else ""
        raise UsageError(f"there is no key{key_id}{tenant}")
    for id in ids:
        keys.revoke(id)
