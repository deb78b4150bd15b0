"""`holdfast tools`: lists, describes, calls and checks an agent's tools."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.text import GAP, TextLine, clip, json_shown, one_line, safe, size, styled
from holdfast.cli.tool_options import Toolset, toolset
from holdfast.cli.tools_check import check
from holdfast.content import (
    AudioContent,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolCall,
    ToolResult,
)
from holdfast.errors import ToolNotFound
from holdfast.tools import Tool, ToolContext

if TYPE_CHECKING:
    from holdfast.tools import ToolManager

_MAX_LINES, _MAX_CHARS = 200, 20_000  # of a result on a terminal; a pipe gets all of it
_STOP_SECONDS = 2.0  # for a call to stop after Ctrl-C


def tools(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """Run the chosen action. Raises `UsageError`, `HoldfastError`."""
    if (options.what in ("describe", "call")) != (options.name is not None):
        wanted = (
            "takes no NAME"
            if options.name
            else "takes the NAME of a tool: see `holdfast tools list`"
        )
        raise UsageError(f"tools {options.what} {wanted}")
    if options.words and options.what != "call":
        raise UsageError(f"tools {options.what} takes no ARGUMENT")
    with _reserved_stdout() as out:
        console, status = Console(env, out=out), Console(env, out=sys.stderr)
        try:
            # `check` prints the collected warnings; the other actions print those they need.
            with _collected() as collected, toolset(options.config, options.workdir, env) as found:
                match options.what:
                    case "list":
                        code = _list(options, found.manager, console, status)
                    case "describe":
                        code = _describe(options, found.manager, console, status)
                    case "call":
                        code = _call(options, found, console, status)
                    case _:
                        code = check(options, found.manager, console, status, collected)
        finally:
            status.close()
            console.close()
        return console.loss if console.broken else code


@contextmanager
def _reserved_stdout() -> Generator[TextIO]:
    """Reserve standard output for the command's own output inside the context. Output of
    modules, tools and their child processes goes to stderr."""
    sys.stdout.flush()
    try:
        ours = os.dup(1)
    except OSError:  # standard output is closed
        yield sys.stdout
        return
    out = open(ours, "w", encoding=sys.stdout.encoding, errors="replace")  # noqa: SIM115
    with contextlib.suppress(OSError):  # stderr is closed
        os.dup2(2, 1)
    try:
        yield out
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os.dup2(ours, 1)
        with contextlib.suppress(OSError):  # the screen has reported the failed write
            out.close()


@contextmanager
def _collected() -> Generator[list[str]]:
    """Collect the library's warnings inside the context."""
    collected: list[str] = []

    class _Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            collected.append(record.getMessage())

    collector = _Collector(logging.WARNING)
    logger = logging.getLogger("holdfast")
    logger.addHandler(collector)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", DeprecationWarning)
            shown = warnings.showwarning

            def show(message: Any, category: Any, filename: Any, *more: Any) -> None:
                # Only deprecated spellings in the config; those of other libraries do not concern
                # the user.
                if category is DeprecationWarning and "config" in str(filename) + str(message):
                    collected.append(str(message))
                elif category is not DeprecationWarning:
                    shown(message, category, filename, *more)

            warnings.showwarning = show
            yield collected
    finally:
        logger.removeHandler(collector)


def _json(console: Console, value: Any) -> None:
    console.line(json_shown(json.dumps(value, ensure_ascii=False, indent=2)))


# --- list ---


def _list(
    options: argparse.Namespace, manager: ToolManager, console: Console, status: Console
) -> Exit:
    status.status("asking services")
    manager.discover()
    status.status("")
    infos = [manager.get_tool_info(tool.name) for tool in manager.list_tools()]
    if options.json:
        _json(console, infos)
    elif infos:
        names = max(len(info["name"]) for info in infos)
        services = max(len(info["service"] or "-") for info in infos)
        for info in infos:
            about = one_line(info["description"].strip().partition("\n")[0])
            service = info["service"] or "-"
            text = safe(f"{info['name']:<{names}}  {service:<{services}}  {about}").rstrip()
            short = console.is_terminal and not options.full
            console.line(clip(text, console.width) if short else text)
    for id, state in manager.summary()["services"].items():
        if state == "not asked":
            status.notice(
                f"{id} is lazy and was not asked; `holdfast tools describe {id}.TOOL` asks it,"
                " `holdfast tools check` asks all services",
                "dim",
            )
        elif isinstance(state, str):
            status.error(state)
    for name, change in manager.held.items():
        status.error(f"{name} is quarantined until it is approved: {change}")
    return Exit.FINISHED


# --- describe ---


def _find(manager: ToolManager, name: str, status: Console) -> Tool:
    """Return a tool. Asks only the service that the name points to. Raises `UsageError`."""
    if not manager.exists(name):
        services = manager.summary()["services"]
        id = name.partition(".")[0]
        status.status(f"asking {id}" if id in services else "asking services")
        manager.discover(id if id in services else None)
        status.status("")
    try:
        return manager.get(name)
    except ToolNotFound as error:
        raise UsageError(" ".join([str(error), *manager.errors.values()])) from error


def _describe(
    options: argparse.Namespace, manager: ToolManager, console: Console, status: Console
) -> Exit:
    info = manager.get_tool_info(_find(manager, options.name, status).name)
    if options.json:
        _json(console, info)
        return Exit.FINISHED
    schemas = {key: info.pop(key) for key in ("input_schema", "output_schema")}
    head = {key: info.pop(key) for key in ("name", "description")}
    lines = [TextLine("call", safe(head["name"])), GAP]
    lines += [TextLine("plain", safe(line)) for line in head["description"].splitlines()]
    lines.append(GAP)
    required = set(schemas["input_schema"].get("required", ()))
    for name, schema in schemas["input_schema"].get("properties", {}).items():
        known = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
        lines += _parameter(name, known, name in required)
    lines.append(GAP)
    for key, value in info.items():
        if isinstance(value, dict):
            pairs = cast("dict[str, Any]", value).items()
            value = ", ".join(f"{name}={item}" for name, item in pairs) or None
        if value is not None:
            lines.append(TextLine("dim", one_line(f"{key.replace('_', ' ')}: {value}")))
    for key, schema in schemas.items():
        if schema is not None:
            lines += [GAP, TextLine("dim", f"{key.replace('_', ' ')}:")]
            lines += styled("plain", safe(json.dumps(schema, ensure_ascii=False, indent=2)))
    console.show(lines)
    return Exit.FINISHED


def _parameter(name: str, schema: dict[str, Any], required: bool) -> list[TextLine]:
    kind = schema.get("type") or "any"
    kind = " or ".join(cast("list[str]", kind)) if isinstance(kind, list) else str(kind)
    if "enum" in schema:
        kind = " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    more = ", required" if required else ""
    if "default" in schema and not required:
        more = f", {json.dumps(schema['default'], ensure_ascii=False)} if not given"
    about = [line.strip() for line in str(schema.get("description", "")).splitlines()]
    return [
        TextLine("plain", "  " + one_line(f"{name} ({kind}{more})")),
        *[TextLine("dim", safe(f"      {line}")) for line in about],
    ]


# --- call ---


def _call(options: argparse.Namespace, found: Toolset, console: Console, status: Console) -> Exit:
    tool = _find(found.manager, options.name, status)
    arguments = _arguments(options.words, tool)
    result = _run(found, ToolCall("1", tool.name, arguments), status)
    if result is None:
        return Exit.INTERRUPTED
    if options.json:
        console.line(result.to_json().decode())
    elif shown := "\n".join(map(_shown, result.content)):
        shown = shown.removesuffix("\n")
        if console.is_terminal:
            shown = safe(shown) if options.full else _bounded(safe(shown))
        (status if result.is_error else console).show(
            [TextLine("error" if result.is_error else "plain", shown)]
        )
    elif result.structured_content is not None:
        _json(console, result.structured_content)
    return Exit.FAILED if result.is_error else Exit.FINISHED


def _arguments(words: list[str], tool: Tool) -> dict[str, Any]:
    if not words:
        return {}
    if words[0] == "-" or words[0].lstrip().startswith("{"):
        if len(words) > 1:
            raise UsageError(
                "tools call takes its arguments as one JSON object or as key=value pairs, not both"
            )
        try:
            found: Any = json.loads(sys.stdin.read() if words[0] == "-" else words[0])
        except ValueError as error:
            raise UsageError(f"the arguments are not JSON: {error}") from None
        if not isinstance(found, dict):
            raise UsageError(f"the arguments must be a JSON object, not {type(found).__name__}")
        return cast("dict[str, Any]", found)
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(
                f"{word!r} is neither a JSON object nor a key=value pair, such as path=README.md"
            )
        if name in arguments:
            raise UsageError(f"the argument {name!r} is given twice")
        arguments[name] = _value(value, tool.input_schema.get("properties", {}).get(name))
    return arguments


def _value(text: str, schema: Any) -> Any:
    """Convert a text to its parameter's type: unchanged if the parameter may be a string, else
    as JSON."""
    kinds = cast("dict[str, Any]", schema).get("type") if isinstance(schema, dict) else None
    looks_like_json = kinds is None and text.startswith(("{", "["))
    if (kinds is None or "string" in kinds) and not looks_like_json:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text  # the tool's own validation explains the problem better


def _run(found: Toolset, call: ToolCall, status: Console) -> ToolResult | None:
    """Return the call's result, None if it was interrupted. The call runs on a thread, so that
    Ctrl-C can ask it to stop."""
    results: list[ToolResult | BaseException] = []
    done = threading.Event()
    cleanups: dict[object, Any] = {}
    context = ToolContext(
        "shell",
        call.id,
        runtime=found.runtime,
        progress=lambda message: status.status(one_line(message)),
        on_close=cleanups.setdefault,
    )

    def work() -> None:
        try:
            results.append(found.manager.run(call, context))
        except BaseException as error:  # such as a tool that calls sys.exit
            results.append(error)
        done.set()

    status.status(f"calling {call.name}")
    try:
        # Within `try`: Ctrl-C can come while `start` waits for a call that runs already.
        threading.Thread(target=work, name="holdfast-call", daemon=True).start()
        done.wait()
    except KeyboardInterrupt:
        context.cancelled.cancel()
        if not done.wait(_STOP_SECONDS):
            status.notice(
                "The call did not stop when asked to. It ends with this command; its effects may"
                " have happened."
            )
        return None
    finally:
        context.cancelled.cancel()
        status.status("")
        for cleanup in cleanups.values():
            cleanup()
    outcome = results[0]
    if isinstance(outcome, BaseException):
        return ToolResult.failure(f"{call.name!r} failed: {type(outcome).__name__}: {outcome}")
    return outcome


def _shown(block: Any) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.mime_type}, {size(len(block.data))}]"
        case ResourceLink():
            return f"[{block.name or 'resource'}: {block.uri}]"
        case _:
            resource: dict[str, Any] = block.resource
            return str(
                resource.get("text")
                or f"[{resource.get('uri', 'resource')}, {resource.get('mimeType', 'binary')}]"
            )


def _bounded(text: str) -> str:
    lines = text.split("\n")
    kept = "\n".join(lines[:_MAX_LINES])[:_MAX_CHARS]
    if len(kept) == len(text):
        return text
    left_out = size(len(text) - len(kept))
    return f"{kept}\n… {left_out} more; --full shows all of it, and a pipe gets all of it"
