"""`holdfast tools`: lists, describes, calls and checks an agent's tools."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
import warnings
from argparse import Namespace
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO, cast

import msgspec

from holdfast import content
from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.files import folder_of, importable, path_of
from holdfast.cli.sandbox import open_required
from holdfast.cli.text import (
    GAP,
    TextLine,
    clip,
    counted,
    duration,
    json_shown,
    one_line,
    safe,
    size,
    styled,
    table,
)
from holdfast.content import ToolCall, ToolResult
from holdfast.error_text import describe_error
from holdfast.errors import ToolNotFound
from holdfast.runtime.folder import FolderRuntime
from holdfast.tools import Tool, ToolContext, ToolManager
from holdfast.tools.document import load

_MENTIONED = re.compile(r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:-)|(?=\}))")
_MAX_LINES, _MAX_CHARS = 200, 20_000  # of a result on a terminal; a pipe gets all of it
_HEALTH_SECONDS = 10.0  # for a service's health check
_STOP_SECONDS = 2.0  # for a call to stop after Ctrl-C


def tools(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Run the chosen action. Raises `UsageError`, `HoldfastError`."""
    if (options.what in ("describe", "call")) != (options.name is not None):
        requirement = "takes the NAME of a tool: see `holdfast tools list`"
        raise UsageError(f"tools {options.what} {'takes no NAME' if options.name else requirement}")
    if options.words and options.what != "call":
        raise UsageError(f"tools {options.what} takes no ARGUMENT")
    with _reserve_stdout() as out:
        console, status = Console(env, out=out), Console(env, out=sys.stderr)
        try:
            # `check` prints the warnings; the other actions print those they need.
            with _collect_warnings() as collected, toolset(options, env) as config_tools:
                command = _Command(options, config_tools, console, status, collected)
                actions = {"list": command.list, "describe": command.describe, "call": command.call}
                code = actions.get(options.what, command.check)()
        finally:
            status.close()
            console.close()
        return console.loss if console.broken else code


class _Command(NamedTuple):
    """The actions of the command. `status` writes to stderr. `warnings` are the library's."""

    options: Namespace
    toolset: Toolset
    console: Console
    status: Console
    warnings: Iterable[str]

    def list(self) -> Exit:
        manager, console = self.toolset.manager, self.console
        self.status.status("asking services")
        manager.discover()
        self.status.status("")
        infos = [manager.get_tool_info(tool.name) for tool in manager.list_tools()]
        if self.options.json:
            self._json(infos)
        else:
            rows = [
                (
                    safe(info["name"]),
                    safe(info["service"] or "-"),
                    one_line(info["description"].strip().partition("\n")[0]),
                )
                for info in infos
            ]
            short = console.is_terminal and not self.options.full
            for line in table(rows):
                console.line(clip(line, console.width) if short else line)
        for id, state in manager.summary()["services"].items():
            if state == "not asked":
                self.status.notice(
                    f"{id} is lazy and was not asked; `holdfast tools describe {id}.TOOL` asks it,"
                    " `holdfast tools check` asks all services",
                    "dim",
                )
            elif isinstance(state, str):
                self.status.error(state)
        for name, change in manager.held.items():
            self.status.error(f"{name} is quarantined until it is approved: {change}")
        return Exit.FINISHED

    def describe(self) -> Exit:
        info = self.toolset.manager.get_tool_info(self._find().name)
        if self.options.json:
            self._json(info)
            return Exit.FINISHED
        schemas = {key: info.pop(key) for key in ("input_schema", "output_schema")}
        name, description = info.pop("name"), info.pop("description")
        lines = [TextLine("call", safe(name)), GAP]
        lines += [*(TextLine("plain", safe(line)) for line in description.splitlines()), GAP]
        required = set(schemas["input_schema"].get("required", ()))
        for name, schema in schemas["input_schema"].get("properties", {}).items():
            parameter_schema = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
            lines += _parameter(name, parameter_schema, name in required)
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
        self.console.show(lines)
        return Exit.FINISHED

    def call(self) -> Exit:
        tool, console = self._find(), self.console
        result = self._run(ToolCall("1", tool.name, _arguments(self.options.words, tool)))
        if result is None:
            return Exit.INTERRUPTED
        if self.options.json:
            console.line(result.to_json().decode())
        elif text := "\n".join(map(_block_text, result.content)):
            text = text.removesuffix("\n")
            if console.is_terminal:
                text = safe(text) if self.options.full else _bounded(safe(text))
            if result.is_error:
                self.status.line(text, "error")
            else:
                console.line(text)
        elif result.structured_content is not None:
            self._json(result.structured_content)
        return Exit.FAILED if result.is_error else Exit.FINISHED

    def check(self) -> Exit:
        """Ask every service and print the problems."""
        manager, console = self.toolset.manager, self.console
        self.status.status("asking services")
        manager.discover()
        manager.search("")  # asks all lazy services at once
        for id in manager.summary()["services"]:
            manager.discover(id)
        self.status.status("checking the health of services")
        health = manager.health(_HEALTH_SECONDS)
        self.status.status("")
        summary, errors = manager.summary(), manager.errors
        services: dict[str, Any] = summary["services"]
        # Without the warnings about services and quarantined tools, which are shown below.
        unusable = [
            text
            for text in dict.fromkeys(self.warnings)
            if text not in errors.values() and not any(repr(name) in text for name in manager.held)
        ]
        healthy = all(one.ok for one in health.values())
        sound = healthy and not (errors or summary["held"] or unusable)
        code = Exit.FINISHED if sound else Exit.FAILED
        if self.options.json:
            states = {
                id: {
                    "tools": state if isinstance(state, int) else 0,
                    "error": errors.get(id),
                    "health": msgspec.to_builtins(health.get(id)),
                }
                for id, state in services.items()
            }
            report = {"ok": sound, "tools": summary["tools"], "services": states}
            self._json({**report, "held": summary["held"], "warnings": unusable})
            return code
        for id, state in services.items():
            one = health.get(id)
            if id in errors:
                console.line(one_line(f"{id}: {errors[id]}"), "error")
            elif one is not None and not one.ok:
                unhealthy = f"{id}: {counted(state, 'tool')}, but unhealthy: {one.detail}"
                console.line(one_line(unhealthy), "error")
            else:
                took = "" if one is None else f", answers in {duration(one.seconds)}"
                console.line(one_line(f"{id}: {counted(state, 'tool')}{took}"))
        for name, change in summary["held"].items():
            console.line(one_line(f"{name}: quarantined until it is approved: {change}"), "error")
        for text in unusable:
            console.line(one_line(text), "error")
        tools = [manager.get_tool_info(tool.name) for tool in manager.list_tools()]
        local = summary["tools"] - sum(tool["service"] is not None for tool in tools)
        verdict = "no problems" if sound else "there are problems"
        console.line(f"{counted(summary['tools'], 'tool')}, {local:,} of them local: {verdict}.")
        return code

    def _json(self, value: Any) -> None:
        self.console.line(json_shown(json.dumps(value, ensure_ascii=False, indent=2)))

    def _find(self) -> Tool:
        """Return the named tool. Asks only the service that it names. Raises `UsageError`."""
        manager, name = self.toolset.manager, self.options.name
        if not manager.exists(name):
            id = name.partition(".")[0]
            is_service = id in manager.summary()["services"]
            self.status.status(f"asking {id}" if is_service else "asking services")
            manager.discover(id if is_service else None)
            self.status.status("")
        try:
            return manager.get(name)
        except ToolNotFound as error:
            raise UsageError(" ".join([str(error), *manager.errors.values()])) from error

    def _run(self, call: ToolCall) -> ToolResult | None:
        """Return the call's result, None if Ctrl-C interrupted it. The call runs on a thread."""
        status = self.status
        results: list[ToolResult] = []
        done = threading.Event()
        cleanups: dict[object, Any] = {}
        context = ToolContext(
            "shell",
            call.id,
            runtime=self.toolset.runtime,
            progress=lambda message: status.status(one_line(message)),
            on_close=cleanups.setdefault,
        )

        def work() -> None:
            try:
                results.append(self.toolset.manager.run(call, context))
            except BaseException as error:  # such as a tool that calls sys.exit
                text = f"{call.name!r} failed: {describe_error(error)}"
                results.append(ToolResult.failure(text))
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
                    "The call did not stop when asked to. It ends with this command; its effects"
                    " may have happened."
                )
            return None
        finally:
            context.cancelled.cancel()
            status.status("")
            for cleanup in reversed(cleanups.values()):
                cleanup()
        return results[0]


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


def _arguments(words: list[str], tool: Tool) -> dict[str, Any]:
    if not words:
        return {}
    if words[0] == "-" or words[0].lstrip().startswith("{"):
        if len(words) > 1:
            raise UsageError(
                "tools call takes its arguments as one JSON object or as key=value pairs, not both"
            )
        try:
            document: Any = json.loads(sys.stdin.read() if words[0] == "-" else words[0])
        except ValueError as error:
            raise UsageError(f"the arguments are not JSON: {error}") from None
        if not isinstance(document, dict):
            raise UsageError(f"the arguments must be a JSON object, not {type(document).__name__}")
        return cast("dict[str, Any]", document)
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
    """Convert a text to its parameter's type: as JSON, unless the parameter may be a string."""
    kinds = cast("dict[str, Any]", schema).get("type") if isinstance(schema, dict) else None
    looks_like_json = kinds is None and text.startswith(("{", "["))
    if (kinds is None or "string" in kinds) and not looks_like_json:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text  # the tool's own validation explains the problem better


def _block_text(block: Any) -> str:
    match block:
        case content.TextContent():
            return block.text
        case content.ImageContent() | content.AudioContent():
            return f"[{block.mime_type}, {size(len(block.data))}]"
        case content.FileContent():
            name = block.name or block.url or block.file_id
            length = f", {size(len(block.data))}" if block.data else ""
            return f"[{' '.join(filter(None, (block.mime_type or 'file', name)))}{length}]"
        case content.ResourceLink():
            return f"[{block.name or 'resource'}: {block.uri}]"
        case _:
            resource: dict[str, Any] = block.resource
            kind = resource.get("mimeType", "binary")
            return str(resource.get("text") or f"[{resource.get('uri', 'resource')}, {kind}]")


def _bounded(text: str) -> str:
    lines = text.split("\n")
    head = "\n".join(lines[:_MAX_LINES])[:_MAX_CHARS]
    if len(head) == len(text):
        return text
    left_out = size(len(text) - len(head))
    return f"{head}\n… {left_out} more; --full shows all of it, and a pipe gets all of it"


# --- the streams ---


@contextmanager
def _reserve_stdout() -> Generator[TextIO]:
    """Reserve standard output for the command; modules, tools and children write to stderr."""
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
def _collect_warnings() -> Generator[list[str]]:
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
            previous_hook = warnings.showwarning

            def show(message: Any, category: Any, filename: Any, *more: Any) -> None:
                # Only deprecated spellings in the config; those of other libraries do not concern
                # the user.
                if category is DeprecationWarning and "config" in str(filename) + str(message):
                    collected.append(str(message))
                elif category is not DeprecationWarning:
                    previous_hook(message, category, filename, *more)

            warnings.showwarning = show
            yield collected
    finally:
        logger.removeHandler(collector)


# --- the tools ---


class Toolset(NamedTuple):
    """A tool manager, and the runtime of its builtin tools."""

    manager: ToolManager
    runtime: FolderRuntime


@contextmanager
def toolset(options: Namespace, env: Mapping[str, str]) -> Generator[Toolset]:
    """Yield the tools of a config, or the builtin ones, and close them at the end, also when a
    signal ends the process. Raises `UsageError`, `ConfigurationError`."""
    config, folder = options.config, folder_of(options.workdir or ".")
    if options.sandbox == "require" and config is not None:
        _check_programs(path_of(config))
    with _end_on_signals(), open_required(options, env, folder) as runtime:
        if config is None:
            manager = ToolManager(runtime.tools)
        else:
            path = path_of(config)
            variables = config_variables(path, env)
            importable(os.getcwd(), str(path.resolve().parent))
            manager = ToolManager.from_config(
                path, runtime.tools, variables=variables, discover=False
            )
        with manager:
            yield Toolset(manager, runtime)


def _check_programs(path: Path) -> None:
    """Refuse a config with MCP servers that are programs: they would run outside of the sandbox."""
    document = load(path)[0]
    for section in ("mcp_servers", "mcpServers"):
        servers: object = document.get(section)
        for name, server in cast("dict[str, Any]", servers or {}).items():
            if not isinstance(server, dict) or "url" not in server:
                raise UsageError(
                    f"--sandbox require: the MCP server {name!r} of {str(path)!r} is a program,"
                    " which would run outside of the sandbox. Use a server with a url"
                )


def config_variables(path: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a config mentions as `${NAME}`. Raises `UsageError`."""
    variables: dict[str, str] = {}
    for text in _texts(load(path)[0]):
        for name, default in _MENTIONED.findall(text):
            if name in env:
                variables[name] = env[name]
            elif not default:
                raise UsageError(
                    f"the environment variable {name}, which {str(path)!r} mentions, is not set."
                    f" Set it, or write a default: ${{{name}:-...}}"
                )
    return variables


def _texts(document: Any) -> Generator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        yield from _texts([*cast("dict[str, Any]", document).values()])
    elif isinstance(document, list):
        for value in cast("list[Any]", document):
            yield from _texts(value)


@contextmanager
def _end_on_signals() -> Generator[None]:
    """Make SIGTERM and SIGHUP raise inside the context, so that started servers are ended."""
    codes = {signal.SIGTERM: Exit.TERMINATED, signal.SIGHUP: Exit.HUNG_UP}

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(int(codes[signal.Signals(number)]))

    before = {number: signal.signal(number, end) for number in codes}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
