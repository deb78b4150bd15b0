"""The parts of an agent that options name: limits, model, system prompt and output schema."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from holdfast.agent import Limits
from holdfast.agent.output import Output
from holdfast.cli import settings
from holdfast.cli.exits import UsageError
from holdfast.errors import ConfigurationError
from holdfast.llm import LLM
from holdfast.llm.address import locate


def limits_of(options: argparse.Namespace) -> Limits:
    """Return the limits that `--max-steps` sets."""
    return Limits(steps=500 if options.max_steps is None else options.max_steps)


def model_of(options: argparse.Namespace, env: Mapping[str, str], stream: bool) -> LLM:
    """Return the model that the options and the environment name, with its key.
    `--model-key-name` refers to a variable of the server instead. Raises `UsageError`."""
    model = settings.model_name(options.model, env)
    url = settings.base_url(options.base_url, env)
    try:
        llm = LLM(
            model,
            base_url=url,
            stream=stream,
            max_retries=5 if options.retries is None else options.retries,
        )
        if options.model_key_name is not None:
            return llm.replace(api_key=f"${{{options.model_key_name}}}")
        return llm.replace(
            api_key=settings.api_key(
                llm.base_url, options.api_key_env, env, locate(model, url).provider
            )
        )
    except ConfigurationError as error:
        message = (
            str(error)
            .replace("LLM: base_url", "--base-url (or HOLDFAST_BASE_URL)")
            .replace("LLM: api_key", "the API key")
        )
        raise UsageError(message.removeprefix("LLM: ")) from error


def prompt_text(path: str | None) -> str | None:
    """Return the text of `--system-prompt-file`. Raises `UsageError`."""
    if path is None:
        return None
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--system-prompt-file {path!r} cannot be read: {reason}") from error


def output_schema(path: str | None) -> dict[str, Any] | None:
    """Return the JSON Schema of `--output-schema`. Raises `UsageError`."""
    if path is None:
        return None
    try:
        found = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = (
            error.strerror
            if isinstance(error, OSError)
            else "it is not UTF-8"
            if isinstance(error, UnicodeDecodeError)
            else str(error)
        )
        raise UsageError(f"--output-schema {path!r} cannot be read: {reason}") from error
    try:
        return (
            cast("dict[str, Any]", Output(found).type)
            if isinstance(found, dict)
            else _no_schema(path)
        )
    except ConfigurationError as error:
        raise UsageError(
            f"--output-schema {path!r}:"
            f" {str(error).removeprefix('Agent: output_type ').rstrip('.')}"
        ) from error


def _no_schema(path: str) -> NoReturn:
    raise UsageError(f"--output-schema {path!r} is not a JSON Schema: it contains no JSON object")
