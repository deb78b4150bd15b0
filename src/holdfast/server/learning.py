"""How the agent server learns a client's tools: by the modules that the client names, under its `Policy`; what it cannot or may not import, the
client runs itself.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.agent.form import RUNTIME, ToolForm
from holdfast.errors import ConfigurationError, ToolError
from holdfast.server.policy import Policy, check_agent, check_parts
from holdfast.tools.context import ToolContext
from holdfast.tools.json_values import copied
from holdfast.tools.registry import ToolRegistry, declared_in
from holdfast.tools.schema import from_json_schema
from holdfast.tools.tool import Tool

__all__ = ["ClientTool", "Learned", "Policy", "UnavailableTool", "check_agent", "difference", "import_parts", "learn"]

_log = logging.getLogger("holdfast.server")

TOTAL = 1.5  # times the timeout that all modules of a request get together, where some of them hang

_MODULES = 100  # of one request


class ClientTool(Tool):
    """A tool that the client runs which declared it: the model is told of it here, and its calls are offered to the client."""

    tool_type = "custom"
    executor = "client"
    untrusted = True

    def __init__(self, form: ToolForm) -> None:
        super().__init__(
            form.name, form.description, None, form.input_schema, form.output_schema, form.annotations, form.category, form.timeout,
            parallel=form.parallel,
        )  # fmt: skip
        self.module_qualname = form.module
        whole = "type" in form.input_schema and "properties" in form.input_schema  # as of every client of ours
        self._schema_there = form.input_schema if whole else super().input_schema
        self._check = from_json_schema(form.name, self._schema_there, untrusted=True)

    @property
    def input_schema(self) -> dict[str, Any]:
        """As the client declared it, keys in the same order: a provider's prompt cache goes by the letter, and it knows local runs too."""
        return copied(self._schema_there)

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments, checked within bounds. Raises `ToolValidationError`."""
        return self._check(arguments)

    def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Never asked: an offered call is claimed by a client. Raises `ToolError`."""
        raise ToolError(f"{self.name!r} is run by the client that declared it, not by the agent server.", retryable=False, max_retries=0)


class UnavailableTool(Tool):
    """A tool that nobody can run here: each call of it fails with the reason, and nothing else does."""

    tool_type = "custom"
    untrusted = True

    def __init__(self, form: ToolForm, reason: str) -> None:
        super().__init__(
            form.name, form.description, None, form.input_schema, None, form.annotations, form.category, parallel=form.parallel
        )
        self.module_qualname = form.module
        self.reason = reason

    def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Raises `ToolError` with the reason."""
        raise ToolError(f"{self.name!r} cannot be run on the agent server: {self.reason}.", "not_found", retryable=False, max_retries=0)


class Learned(msgspec.Struct, frozen=True):
    """The tools of one conversation by name. `executors` says who runs each (`server`, `client`, `unavailable`), `modules` by which module
    it was found, `reasons` why a tool stands where it does or what is to be known of it, `warnings` the same for a person to read."""

    tools: dict[str, Tool]
    executors: dict[str, str]
    modules: dict[str, str]
    reasons: dict[str, str]
    warnings: list[str]


def learn(
    tools: Sequence[ToolForm],
    modules: Mapping[str, str],
    builtins: Mapping[str, Tool],
    policy: Policy,
    client_tools: bool = True,
    *,
    import_timeout: float | None = None,
) -> Learned:
    """The tools that a client declared: `tools`, and `modules`, the module of each by name (a name that `tools` lacks is learned by its module alone).

    A preset tool is the one of that name among `builtins`, any other its module's own, if the policy allows the module and it can be imported
    within `import_timeout` seconds (None: the policy's). What cannot be had so is the client's to run, or unavailable if `client_tools` is false.

    Blocking: not for an event loop's thread. Nothing is shared between calls but what Python's own import keeps. Raises `ConfigurationError`
    for a declaration that no tool can be made of.
    """
    forms = _forms(tools, modules)
    found: dict[str, Tool] = {}
    executors: dict[str, str] = {}
    reasons: dict[str, str] = {}
    wanted = dict.fromkeys(form.module for form in forms if form.module not in ("", RUNTIME) and policy.allows(form.module))
    imported = _import(list(wanted), policy.import_timeout if import_timeout is None else import_timeout)
    declared = {form.name for form in tools}
    for form in forms:
        tool, reason = _resolve(form, builtins, policy, imported)
        if tool is not None:
            if form.name in declared and (what := _unlike(form, tool)):
                reason = f"its schema is not the one that the client declared, and the server's is used: {what}"
            executors[form.name] = "server"
        elif client_tools and form.name in declared:
            tool = ClientTool(form)
            executors[form.name] = "client"
        else:
            own = "it runs in the client's process alone, and this conversation lets no client run tools"
            tool = UnavailableTool(form, reason or own)
            reason = reason or own
            executors[form.name] = "unavailable"
        found[form.name] = tool
        if reason:
            reasons[form.name] = reason
    warnings = [_warning(name, executors[name], reason) for name, reason in reasons.items()]
    for warning in warnings:
        _log.warning("%s", warning)
    return Learned(found, executors, {form.name: form.module for form in forms}, reasons, warnings)


def import_parts(mapping: Mapping[str, Any], policy: Policy) -> None:
    """Import what an agent's serial form names as code (`check_agent`), as `learn` does, so that `load_agent` finds it. Blocking. Raises
    `ConfigurationError` for what the policy refuses or what cannot be imported."""
    modules = check_agent(mapping, policy)
    for name, outcome in _import(modules, policy.import_timeout, tools=False).items():
        if isinstance(outcome, str):
            raise ConfigurationError(f"agent: the module {name!r} {outcome}.")
    check_parts(mapping, policy)


def _forms(tools: Sequence[ToolForm], modules: Mapping[str, str]) -> list[ToolForm]:
    found: dict[str, ToolForm] = {}
    for form in tools:
        if form.name in found:
            raise ConfigurationError(f"tools has two tools named {form.name!r}. Names are unique within an agent.")
        found[form.name] = msgspec.structs.replace(form, module=modules.get(form.name, form.module))
    for name, module in modules.items():
        if name not in found:
            found[name] = ToolForm(name=name, input_schema={"type": "object"}, module=module)
    named = {form.module for form in found.values()}
    if len(named) > _MODULES:
        raise ConfigurationError(f"tools are of {len(named)} modules; a request may name {_MODULES}.")
    return list(found.values())


def _resolve(form: ToolForm, builtins: Mapping[str, Tool], policy: Policy, imported: Mapping[str, Imported]) -> tuple[Tool | None, str]:
    """The tool, or why there is none; neither for one that has no module."""
    if form.module == RUNTIME:
        known = builtins.get(form.name)
        return (
            (known, "")
            if known is not None
            else (None, f"the workspace has no tool {form.name!r}; it has: {', '.join(builtins) or 'none'}")
        )
    if not form.module:
        return None, ""
    outcome = imported.get(form.module)
    if outcome is None:
        return None, policy.refusal(form.module)
    if isinstance(outcome, str):
        return None, f"its module {form.module!r} {outcome}"
    if form.name not in outcome:
        return None, f"its module {form.module!r} declares no tool of that name here; it declares: {', '.join(outcome)}"
    tool = outcome[form.name]
    return (tool, "") if tool.executor != "client" else (None, "")


def _warning(name: str, executor: str, reason: str) -> str:
    instead = {"client": " The client runs it.", "unavailable": " Calls of it will fail.", "server": ""}[executor]
    return f"Tool {name!r}: {reason}.{instead}"


# --- importing -----------------------------------------------------------------------------------

Imported = dict[str, Tool] | str  # a module's tools by name, or what is wrong with it


class _Import(threading.Thread):
    """Imports one module and has its tools made. It cannot be ended: one that hangs is left behind, under its name."""

    def __init__(self, module: str, tools: bool) -> None:
        super().__init__(name=f"holdfast-import {module}", daemon=True)
        self.module = module
        self.late = False  # nobody waits for it any more
        self.outcome: Imported | None = None
        self._tools = tools

    def run(self) -> None:
        try:
            self.outcome = _tools_of(self.module) if self._tools else _imported(self.module)
        except BaseException as error:  # whatever a module does when it is imported, it does it to itself alone
            self.outcome = _said(error)


def _import(modules: Sequence[str], timeout: float, tools: bool = True) -> dict[str, Imported]:
    """Import modules one after another, each in a thread of its own, within `timeout` seconds in all.

    After one that took them each gets a tenth of that, until `TOTAL` is used up. Not at once: modules that import each other would see
    halves of each other.
    """
    until, end = time.monotonic() + timeout, time.monotonic() + TOTAL * timeout
    found: dict[str, Imported] = {}
    for module in modules:
        stuck = next((thread for thread in threading.enumerate() if isinstance(thread, _Import) and thread.module == module), None)
        if stuck is not None and stuck.late:
            # A second thread would wait for the same lock of Python's, and be left behind too.
            found[module] = "is still being imported for an earlier request; it hangs or is slow"
            continue
        if tools and (here := _here(module)) is not None:
            found[module] = here
            continue
        if time.monotonic() >= end:
            found[module] = "was not tried, because other modules took all the time for imports"
            continue
        thread = _Import(module, tools)
        thread.start()
        thread.join(max(until - time.monotonic(), timeout / 10))
        if thread.outcome is None:
            thread.late = True
            found[module] = f"was not imported in time (within {timeout:g} seconds)"
        else:
            found[module] = thread.outcome
    return found


def _here(module: str) -> dict[str, Tool] | None:
    """The tools of a module that is imported already and declares functions alone, no factories: none of its code is run to have them, and a thread
    would take ten times as long."""
    found = sys.modules.get(module)
    spec = getattr(found, "__spec__", None)
    if found is None or spec is None or getattr(spec, "_initializing", False):  # another thread imports it right now
        return None
    made = declared_in(found)
    tools: dict[str, Tool] = {tool.name: tool for tool in made.values() if isinstance(tool, Tool) and type(tool) is Tool}
    return tools if tools and len(tools) == len(made) else None


def _tools_of(module: str) -> dict[str, Tool]:
    made = ToolRegistry().import_module(module)  # one registry for each import: two clients with tools of one name do not meet
    for tool in made:
        _ = tool.input_schema  # made now, on this thread: it is the module's own code that makes it
    return {tool.name: tool for tool in made}


def _imported(module: str) -> Imported:
    import importlib

    importlib.import_module(module)
    return {}


def _said(error: BaseException) -> str:
    text = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
    line = " ".join(text.split()).rstrip(".")
    return f"cannot be used: {line if len(line) <= 300 else line[:300] + '...'}"


# --- schemas -------------------------------------------------------------------------------------

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # schemas by name
_DATA = ("default", "const", "enum", "examples")  # values, which may have keys called title
_UNORDERED = ("required", "enum", "type")


def difference(declared: Mapping[str, Any] | None, found: Mapping[str, Any] | None) -> str:
    """What differs between two JSON Schemas but titles and descriptions, in one line; "" if nothing does.

    The order of keys, of definitions, and of what is required or allowed does not count.
    """
    places = _differences(_bare(_plain(declared)), _bare(_plain(found)), "")
    shown = "; ".join(places[:3]) + (f"; and {len(places) - 3} more" if len(places) > 3 else "")
    return shown if len(shown) <= 500 else f"{shown[:500]}..."


def _unlike(form: ToolForm, tool: Tool) -> str:
    what = difference(form.input_schema, tool.input_schema)
    if not what and (form.output_schema is not None or tool.output_schema is not None):
        what = difference(form.output_schema, tool.output_schema)
        what = what and f"of its output, {what}"
    return what


def _plain(schema: Mapping[str, Any] | None) -> Any:
    """As it comes out of JSON, as the other one did."""
    return msgspec.json.decode(msgspec.json.encode(schema))


def _bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bare(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key in _NAMED and isinstance(value, dict):
            found[key] = {name: _bare(item) for name, item in cast("dict[str, Any]", value).items()}
        elif key in _DATA:
            found[key] = value
        elif key not in ("title", "description"):
            found[key] = _bare(value)
    for key in _UNORDERED:
        if isinstance(found.get(key), list):
            found[key] = sorted(cast("list[Any]", found[key]), key=lambda item: msgspec.json.encode(item, order="sorted"))
    return found


def _differences(declared: Any, found: Any, path: str) -> list[str]:
    if isinstance(declared, dict) and isinstance(found, dict):
        ours, theirs = cast("dict[str, Any]", found), cast("dict[str, Any]", declared)
        places: list[str] = []
        for key in (*theirs, *(key for key in ours if key not in theirs)):
            at = f"{path}.{key}" if path else key
            if key not in ours:
                places.append(f"{at} was declared and is not there")
            elif key not in theirs:
                places.append(f"{at} was not declared and is {_short(ours[key])}")
            else:
                places += _differences(theirs[key], ours[key], at)
        return places
    if isinstance(declared, list) and isinstance(found, list) and len(cast("list[Any]", declared)) == len(cast("list[Any]", found)):
        pairs = enumerate(zip(cast("list[Any]", declared), cast("list[Any]", found), strict=True))
        return [place for index, (one, other) in pairs for place in _differences(one, other, f"{path}[{index}]")]
    if declared == found and isinstance(declared, bool) == isinstance(found, bool):  # True is not 1
        return []
    return [f"{path or 'the schema'} was declared as {_short(declared)} and is {_short(found)}"]


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."
