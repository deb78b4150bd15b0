"""`holdfast models`: the named models and agents of a folder."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.agent.model_folder import FolderEntry, ModelFolder
from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.model_names import models_in, models_path
from holdfast.cli.named_models import with_key
from holdfast.cli.text import clip, counted, one_line, table
from holdfast.llm import LLM


class _Facts(NamedTuple):
    """The price, the context window and the standing of the key of a model. `key` is None for a
    model that needs none."""

    price: dict[str, float]
    window: int | None
    key: bool | None


def models(options: Namespace, env: Mapping[str, str]) -> Exit:
    """List the models and agents of the folder. Raises `UsageError`, `ConfigurationError`."""
    console = Console(env)
    folder = ModelFolder(models_path(options, env), env)
    entries = folder.entries()
    rows: list[tuple[str, ...]] = []
    for entry in entries:
        facts = _facts(entry, env)
        if options.json:
            console.line(json.dumps(_as_json(entry, facts), ensure_ascii=False))
        elif not entry.problem:
            rows.append(_row(entry, facts))
    for line in table(rows):
        console.line(clip(line, console.width) if console.is_terminal else line)
    for entry in entries:
        if entry.problem:
            console.error(one_line(f"left out: {entry.name}: {entry.problem}"))
    console.notice(f"{counted(len(entries), 'file')} in {one_line(str(folder.folder))}", "dim")
    return Exit.FAILED if any(entry.problem for entry in entries) else Exit.FINISHED


def _facts(entry: FolderEntry, env: Mapping[str, str]) -> _Facts:
    llms = list(models_in(entry.model))
    windows = [llm.info.context_window for llm in llms if llm.info and llm.info.context_window]
    price = _price(llms[0]) if len(llms) == 1 else {}
    keys = [_key(llm, env) for llm in llms]
    key = False if entry.missing or False in keys else True if True in keys else None
    return _Facts(price, min(windows) if windows and len(windows) == len(llms) else None, key)


def _price(llm: LLM) -> dict[str, float]:
    """Return the known prices of input and output in USD per million tokens."""
    prices = llm.arguments()["prices"]
    if prices is not None:
        return {kind: prices[kind] for kind in ("input", "output") if kind in prices}
    info = llm.info
    catalog_prices = (
        {} if info is None else {"input": info.input_price, "output": info.output_price}
    )
    return {kind: price for kind, price in catalog_prices.items() if price is not None}


def _key(llm: LLM, env: Mapping[str, str]) -> bool | None:
    try:
        arguments = with_key(llm, env).arguments()
    except UsageError:
        return False
    return True if arguments["api_key"] or arguments["headers"] else None


def _row(entry: FolderEntry, facts: _Facts) -> tuple[str, ...]:
    price = ", ".join(f"${price:g} {kind}" for kind, price in facts.price.items())
    window = "" if facts.window is None else f"{facts.window:,} tokens"
    missing = f": {', '.join(entry.missing)} not set" if entry.missing else ""
    key = {True: "key", False: f"no key{missing}", None: "needs no key"}[facts.key]
    return entry.name, _model(entry), price or "no price", window or "no window", key


def _model(entry: FolderEntry) -> str:
    name = one_line(str(getattr(entry.model, "model", "")))
    return f"agent of {name}" if entry.kind == "agent" else name


def _as_json(entry: FolderEntry, facts: _Facts) -> dict[str, Any]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "model": getattr(entry.model, "model", None),
        "price": facts.price,
        "contextWindow": facts.window,
        "key": facts.key,
        "missing": entry.missing,
        "path": str(entry.path),
        "problem": entry.problem,
    }
