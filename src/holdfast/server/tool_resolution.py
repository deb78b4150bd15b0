"""Resolves a client's tools on the agent server: imports the modules that the client names,
under the server's `Policy`. Tools that the server cannot or may not import run in the client."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, cast

import msgspec

from holdfast.agent.serial_form import RUNTIME, ToolForm
from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError, ToolError
from holdfast.server.policy import Policy, check_agent, check_parts
from holdfast.server.shapes import Executor, ToolStanding
from holdfast.tools.context import ToolContext
from holdfast.tools.json_values import copy_json
from holdfast.tools.registry import ToolRegistry, declared_in
from holdfast.tools.schema import from_json_schema, map_schemas
from holdfast.tools.tool import Tool

_log = logging.getLogger("holdfast.server")

TOTAL_FACTOR = 1.5  # all modules of a request get this many times the timeout if some of them hang

_MAX_MODULES = 100  # of one request
_INSTEAD = {"client": " The client runs it.", "unavailable": " Calls of it will fail."}


class _DeclaredTool(Tool):
    """A tool that a client has declared and this process does not run."""

    tool_type = "custom"
    untrusted = True

    def __init__(self, form: ToolForm, **more: Any) -> None:
        super().__init__(
            form.name,
            form.description,
            None,
            form.input_schema,
            annotations=form.annotations,
            category=form.category,
            parallel=form.parallel,
            **more,
        )
        self.module_qualname = form.module


class ClientTool(_DeclaredTool):
    """A tool that runs in the client that declared it. The model sees the tool, and its calls
    are offered to the client."""

    executor = "client"

    def __init__(self, form: ToolForm) -> None:
        super().__init__(form, output_schema=form.output_schema, timeout=form.timeout)
        # Holdfast's own clients always send complete schemas.
        complete = "type" in form.input_schema and "properties" in form.input_schema
        self._declared_schema = form.input_schema if complete else super().input_schema
        self._check = from_json_schema(form.name, self._declared_schema, untrusted=True)

    @property
    def input_schema(self) -> dict[str, Any]:
        """The schema as the client declared it, with keys in the same order. A provider's prompt
        cache compares text, and the client's local runs use the same cache."""
        return copy_json(self._declared_schema)

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments, checked within bounds. Raises `ToolValidationError`."""
        return self._check(arguments)

    def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Raise `ToolError`. A client claims each call of this tool, so the server never makes
        one."""
        message = f"{self.name!r} runs in the client that declared it, not on the agent server."
        raise ToolError(message, retryable=False, max_retries=0)


class UnavailableTool(_DeclaredTool):
    """A tool that cannot run here. Each call of it fails with the reason; other tools are not
    affected."""

    def __init__(self, form: ToolForm, reason: str) -> None:
        super().__init__(form)
        self.reason = reason

    def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Raise `ToolError` with the reason."""
        message = f"{self.name!r} cannot run on the agent server: {self.reason}."
        raise ToolError(message, "not_found", retryable=False, max_retries=0)


class ResolvedTools(msgspec.Struct, frozen=True):
    """The resolved tools of one conversation, the place where each runs, both by name, and the
    warnings of these places for people."""

    tools: dict[str, Tool]
    standings: dict[str, ToolStanding]
    warnings: list[str]


def resolve_tools(
    tools: Sequence[ToolForm],
    modules: Mapping[str, str],
    builtins: Mapping[str, Tool],
    policy: Policy,
    client_tools: bool = True,
) -> ResolvedTools:
    """Resolve the tools that a client declared.

    `tools` are the declarations. `modules` maps names of tools to modules; a name that `tools`
    lacks is resolved by its module alone. A preset tool is the one of that name among `builtins`.
    Any other tool is taken from its module, if the policy allows the module and the import ends in
    time. A tool that cannot be had this way runs in the client, or is unavailable if `client_tools`
    is false.

    Blocks, so do not call it on an event loop's thread. Calls share nothing but Python's import
    system. Raises `ConfigurationError` for a declaration from which no tool can be made.
    """
    forms = _forms(tools, modules)
    module_names = dict.fromkeys(form.module for form in forms if form.module not in ("", RUNTIME))
    allowed = [module for module in module_names if policy.allows(module)]
    imported = _import(allowed, policy.import_timeout)
    declared = {form.name for form in tools}
    by_name: dict[str, Tool] = {}
    standings: dict[str, ToolStanding] = {}
    executor: Executor
    for form in forms:
        tool, reason = _resolve(form, builtins, policy, imported)
        if tool is not None:
            executor = "server"
            if form.name in declared and (what := _unlike(form, tool)):
                reason = (
                    "its schema differs from the one that the client declared, and the server's is"
                    f" used: {what}"
                )
        elif client_tools and form.name in declared:
            tool, executor = ClientTool(form), "client"
        else:
            executor = "unavailable"
            reason = reason or (
                "it exists only in the client's process, and this conversation does not let clients"
                " run tools"
            )
            tool = UnavailableTool(form, reason)
        by_name[form.name] = tool
        standings[form.name] = ToolStanding(form.name, executor, form.module, reason)
    warnings = [
        f"Tool {one.name!r}: {one.warning}.{_INSTEAD.get(one.executor, '')}"
        for one in standings.values()
        if one.warning
    ]
    for warning in warnings:
        _log.warning("%s", warning)
    return ResolvedTools(by_name, standings, warnings)


def import_parts(mapping: Mapping[str, Any], policy: Policy) -> None:
    """Import the modules that an agent's serial form names (see `check_agent`). Blocks. Raises
    `ConfigurationError` for modules that the policy refuses or that cannot be imported."""
    hash = policy.approved.hash(mapping, "imported")
    if hash in policy.approved:
        return
    modules = check_agent(mapping, policy)
    for name, outcome in _import(modules, policy.import_timeout, tools=False).items():
        if isinstance(outcome, str):
            raise ConfigurationError(f"agent: the module {name!r} {outcome}.")
    check_parts(mapping, policy)
    policy.approved.add(hash)


def _forms(tools: Sequence[ToolForm], modules: Mapping[str, str]) -> list[ToolForm]:
    forms: dict[str, ToolForm] = {}
    for form in tools:
        if form.name in forms:
            raise ConfigurationError(
                f"tools has two tools named {form.name!r}. Names must be unique within an agent."
            )
        forms[form.name] = msgspec.structs.replace(form, module=modules.get(form.name, form.module))
    for name, module in modules.items():
        if name not in forms:
            forms[name] = ToolForm(name=name, input_schema={"type": "object"}, module=module)
    module_names = {form.module for form in forms.values()}
    if len(module_names) > _MAX_MODULES:
        raise ConfigurationError(
            f"tools name {len(module_names)} modules; a request may name {_MAX_MODULES}."
        )
    return list(forms.values())


def _resolve(
    form: ToolForm, builtins: Mapping[str, Tool], policy: Policy, imported: Mapping[str, Imported]
) -> tuple[Tool | None, str]:
    """Return the tool, or the reason for its absence. A tool without a module has neither."""
    if form.module == RUNTIME:
        if (builtin := builtins.get(form.name)) is not None:
            return builtin, ""
        names = ", ".join(builtins) or "none"
        return None, f"the workspace has no tool {form.name!r}; it has: {names}"
    if not form.module:
        return None, ""
    outcome = imported.get(form.module)
    if outcome is None:
        return None, policy.refusal(form.module)
    if isinstance(outcome, str):
        return None, f"its module {form.module!r} {outcome}"
    if form.name not in outcome:
        return None, (
            f"its module {form.module!r} declares no tool of that name on the server; it declares:"
            f" {', '.join(outcome)}"
        )
    tool = outcome[form.name]
    return (tool, "") if tool.executor != "client" else (None, "")


# --- importing ---

Imported = dict[str, Tool] | str  # a module's tools by name, or the error of its import


class _Import(threading.Thread):
    """A thread that imports one module and creates its tools. A thread that hangs cannot be
    stopped, and is left running under the module's name."""

    def __init__(self, module: str, tools: bool) -> None:
        super().__init__(name=f"holdfast-import {module}", daemon=True)
        self.module = module
        self.late = False  # True once no caller waits for the import any more
        self.outcome: Imported | None = None
        self._tools = tools

    def run(self) -> None:
        try:
            if self._tools:
                self.outcome = _tools_of(self.module)
            else:
                import_module(self.module)
                self.outcome = {}
        except BaseException as error:  # a module's import may raise anything, even SystemExit
            self.outcome = _import_error(error)


def _import(modules: Sequence[str], timeout: float, tools: bool = True) -> dict[str, Imported]:
    """Import modules one after another, each in its own thread, within `timeout` seconds. After
    that each gets a tenth of it, until `TOTAL_FACTOR` times the timeout has passed. Not in
    parallel, because modules that import each other would see each other half initialised."""
    until, end = time.monotonic() + timeout, time.monotonic() + TOTAL_FACTOR * timeout
    results: dict[str, Imported] = {}
    for module in modules:
        imports = [one for one in threading.enumerate() if isinstance(one, _Import)]
        if any(one.late for one in imports if one.module == module):
            # A second thread would wait for the same import lock and hang as well.
            results[module] = "is still being imported for an earlier request; it hangs or is slow"
            continue
        if tools and (loaded := _loaded_tools(module)) is not None:
            results[module] = loaded
            continue
        if time.monotonic() >= end:
            results[module] = "was not imported, because other modules used up the time for imports"
            continue
        thread = _Import(module, tools)
        thread.start()
        thread.join(max(until - time.monotonic(), timeout / 10))
        if thread.outcome is None:
            thread.late = True
            results[module] = f"was not imported in time (within {timeout:g} seconds)"
        else:
            results[module] = thread.outcome
    return results


def _loaded_tools(module: str) -> dict[str, Tool] | None:
    """Return the tools of a module that is already imported and declares only functions, no
    factories. None of its code runs, and a thread would take ten times as long."""
    loaded = sys.modules.get(module)
    spec = getattr(loaded, "__spec__", None)
    # `_initializing`: another thread is importing the module right now.
    if loaded is None or spec is None or getattr(spec, "_initializing", False):
        return None
    registry = declared_in(loaded)
    plain = [tool for tool in registry.values() if isinstance(tool, Tool) and type(tool) is Tool]
    tools: dict[str, Tool] = {tool.name: tool for tool in plain}
    return tools if tools and len(tools) == len(registry) else None


def _tools_of(module: str) -> dict[str, Tool]:
    # One registry for each import, so that equally named tools of two clients do not collide.
    tools = ToolRegistry().import_module(module)
    for tool in tools:
        _ = tool.input_schema  # created on this thread, because the module's own code creates it
    return {tool.name: tool for tool in tools}


def _import_error(error: BaseException) -> str:
    why = str(error) if isinstance(error, ConfigurationError) else describe_error(error)
    line = " ".join(why.split()).rstrip(".")
    return f"cannot be used: {line if len(line) <= 300 else line[:300] + '...'}"


# --- schemas ---

_UNORDERED = ("required", "enum", "type")


def difference(declared: Mapping[str, Any] | None, actual: Mapping[str, Any] | None) -> str:
    """Return the differences between two JSON Schemas in one line, or "". Titles, descriptions, and
    the order of keys and of required or allowed values do not matter."""
    # After a round trip through JSON, so that both sides compare alike.
    one, other = [
        map_schemas(msgspec.json.decode(msgspec.json.encode(schema)), _comparable)
        for schema in (declared, actual)
    ]
    places = _differences(one, other, "")
    text = "; ".join(places[:3]) + (f"; and {len(places) - 3} more" if len(places) > 3 else "")
    return text if len(text) <= 500 else f"{text[:500]}..."


def _unlike(form: ToolForm, tool: Tool) -> str:
    what = difference(form.input_schema, tool.input_schema)
    if not what and (form.output_schema is not None or tool.output_schema is not None):
        what = difference(form.output_schema, tool.output_schema)
        what = what and f"of its output, {what}"
    return what


def _comparable(schema: dict[str, Any]) -> dict[str, Any]:
    bare = {key: one for key, one in schema.items() if key not in ("title", "description")}
    for key in _UNORDERED:
        if isinstance(bare.get(key), list):
            values = cast("list[Any]", bare[key])
            bare[key] = sorted(values, key=lambda one: msgspec.json.encode(one, order="sorted"))
    return bare


def _differences(declared: Any, actual: Any, path: str) -> list[str]:
    if isinstance(declared, dict) and isinstance(actual, dict):
        ours, theirs = cast("dict[str, Any]", actual), cast("dict[str, Any]", declared)
        differences: list[str] = []
        for key in (*theirs, *(key for key in ours if key not in theirs)):
            at = f"{path}.{key}" if path else key
            if key not in ours:
                differences.append(f"{at} was declared and is missing")
            elif key not in theirs:
                differences.append(f"{at} was not declared and is {_short(ours[key])}")
            else:
                differences += _differences(theirs[key], ours[key], at)
        return differences
    if isinstance(declared, list) and isinstance(actual, list):
        ours, theirs = cast("list[Any]", actual), cast("list[Any]", declared)
        if len(ours) == len(theirs):
            differences = []
            for index, (one, other) in enumerate(zip(theirs, ours, strict=True)):
                differences += _differences(one, other, f"{path}[{index}]")
            return differences
    # True is not 1.
    if declared == actual and isinstance(declared, bool) == isinstance(actual, bool):
        return []
    return [f"{path or 'the schema'} was declared as {_short(declared)} and is {_short(actual)}"]


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."
