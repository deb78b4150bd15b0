"""`ToolManager`: the tools of an agent by name, their definitions for models, their calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.content import ToolCall, ToolResult
from holdfast.errors import ToolError, ToolNotFound, ToolValidationError
from holdfast.events import ToolDefinition
from holdfast.tools import running, styles
from holdfast.tools.arguments import wrong
from holdfast.tools.call_rules import CallRules, RuledCalls, failed_result
from holdfast.tools.catalogue import Catalogue, ToolSet, definition, unknown_tool_error
from holdfast.tools.context import ToolContext
from holdfast.tools.hooks import Hook, Hooks
from holdfast.tools.json_values import copy_json
from holdfast.tools.names import wire_name
from holdfast.tools.pins import Pins
from holdfast.tools.running import StartThread, run_attempts, start_thread
from holdfast.tools.services import ServiceSet
from holdfast.tools.sources import Rooted, Source, SourceHealth
from holdfast.tools.tool import Callback, Tool
from holdfast.tools.tool_search import best_matches, find_tools

ToolLike = Tool | Callback

_CONSTRUCTOR_DISCOVERY_SECONDS = 10.0  # for all services together


class ToolManager:
    """The tools of one agent. Thread-safe: tools may be registered while conversations run and are
    visible at the next model call.

    `tools` are tools or plain functions (as `Tool.from_function`). `sources` are remote services
    (`MCPClient(...).sources()`). Their tools are named `{id}.{tool}` and never shadow a local one.
    The order is that of the configuration: local tools, then the tools of each service.

    With `discover` (the default) the constructor asks all services that are not lazy for their
    tools, in parallel, and waits at most 10 s. A failure is listed in `errors` and raises nothing.
    The next `discover()` waits for a slower service.

    Without `discover`, services are asked by `discover()` or `get_llm_definitions()`; an agent's
    first conversation calls one of them. A lazy service is asked by `discover(id)`, by a call or
    `get` of one of its tools, or by the builtin `find_tools`. A failed service is asked again only
    with `force`.

    Args:
        hooks: The hooks around calls (`Hook`).
        concurrency: The number of concurrent calls, in all or by patterns of names (`{"srv.*":
            2}`). A tool that calls tools under its own cap waits for itself.
        result_limit: Characters, in all or by patterns of names. Longer texts go to files in
            `result_dir`.
        result_dir: The folder for texts over `result_limit`.
        pins: A `holdfast.tools.pins.Pins` or the path of its file. A remote tool whose
            definition has changed is held back (`held`) until `approve`.
        discover: Ask the services in the constructor.

    Raises `ConfigurationError` for two tools of one name, or an invalid argument, which the message
    names.
    """

    def __init__(
        self,
        tools: Iterable[ToolLike] = (),
        sources: Iterable[Source] = (),
        *,
        hooks: Sequence[Hook] = (),
        concurrency: Mapping[str, int] | int | None = None,
        result_limit: Mapping[str, int] | int | None = None,
        result_dir: str | Path | None = None,
        pins: Pins | str | Path | None = None,
        discover: bool = True,
    ) -> None:
        if isinstance(pins, str | Path):
            pins = Pins(pins)
        elif pins is not None and not callable(getattr(pins, "check", None)):
            raise wrong("ToolManager: pins", "Pins(...) or the path of a file of pins", pins)
        self._pins = pins
        self._catalogue = Catalogue(pins)
        self._services = ServiceSet(self._catalogue.offer)
        self._tools = ToolSet(self._catalogue)
        self._shared: ToolManager | None = None  # the manager that this one extends
        self._styled_definitions: dict[str, tuple[object, bytes]] = {}
        self._calls = RuledCalls(hooks, concurrency, result_limit, result_dir, pins is not None)
        if isinstance(tools, str | Tool) or not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise wrong("tools", "a list of Tool objects or functions", tools)
        for tool in tools:
            self.register(tool)
        for source in sources:
            self.add_source(source)
        if discover and (discovery := self._services.discovery) is not None:
            eager = [id for id, source in discovery.sources.items() if not source.lazy]
            discovery.ask(eager, within=_CONSTRUCTOR_DISCOVERY_SECONDS)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any] | str | Path,
        builtins: Mapping[str, Any] | Iterable[Tool] | None = None,
        *,
        variables: Mapping[str, str] | None = None,
        base: str | Path | None = None,
        discover: bool = True,
    ) -> ToolManager:
        """Return a manager for a mapping or a YAML file: local functions, MCP servers, A2A agents,
        skills, hooks, limits.

        Modules beside the file are found. See `tools.config`, and `tools.config.SCHEMA` for the
        JSON Schema.

        Args:
            config: The mapping, or the path of the file.
            builtins: The preset tools that the config may name.
            variables: The values of `${NAME}` in the config; the environment is never read.
            base: The folder of relative paths; None: the folder of the file.
            discover: As for a manager.

        Raises `ConfigurationError` naming the place in the configuration.
        """
        from holdfast.tools.config import build, read  # few programs read a file

        parts = build(read(config, variables=variables, base=base), builtins)
        return cls(**parts.arguments(), discover=discover)

    # --- the set ---

    def with_own_tools(self, tools: Iterable[Tool]) -> ToolManager:
        """Return a manager of these tools and more, which come with the parts of one agent.
        Everything else is shared: registrations, services, connections, hooks and limits. Returns
        the manager itself if there is nothing to add. Raises `ConfigurationError` if another tool
        has the same name."""
        tool_set = ToolSet(self._catalogue, [*self._tools.own, *tools])
        if not tool_set:
            return self
        extended = copy(self)
        extended._tools, extended._shared, extended._styled_definitions = tool_set, self.shared, {}
        return extended

    def with_other_tools(self, tools: Iterable[Tool]) -> ToolManager:
        """Return a manager of these tools instead, without services, under the same hooks, limits
        and pins. Raises `ConfigurationError` as `register` does."""
        other = ToolManager(pins=self._pins)
        other._calls = self._calls
        other.replace((), tools)
        return other

    @property
    def shared(self) -> ToolManager:
        """The manager without the tools of one agent's parts."""
        return self._shared or self

    def register(self, tool: ToolLike) -> Tool:
        """Add a tool. With `pins`, a tool of an MCP server or A2A agent is held back until it is
        approved, like those of services. Raises `ConfigurationError` if its name is taken
        (`unregister` the other first to replace it) or if it cannot be described to a model."""
        return self.replace((), (tool,))[0]

    def unregister(self, name: str) -> Tool:
        """Remove a tool and return it. Raises `ToolNotFound`. A tool that a service offers stays
        out until `discover(id, force=True)` names its service, or until a tool with its name is
        registered."""
        return self._tools.remove(name)

    def replace(self, old: Iterable[str], new: Iterable[ToolLike]) -> list[Tool]:
        """Replace the registered tools `old` by `new` in one step. Names in `old` that are not
        registered are ignored. No call sees a state in between. A tool whose name is in both keeps
        its place. Raises `ConfigurationError` as `register` does; then nothing has changed."""
        tools = [_as_tool(tool) for tool in new]
        for tool in tools:
            # The schema is made now, so that a signature without one fails here, not in a run. A
            # runtime's tools are known to have a schema; it is made for the first request, so that
            # a terminal does not wait for pydantic.
            if tool.runtime is None:
                _ = tool.input_schema
        self._tools.swap(old, tools)
        return tools

    def list_tools(self, category: str | None = None, tool_type: str | None = None) -> list[Tool]:
        """Return the current tools in order, filtered if asked for. Asks no service."""
        return [
            tool
            for tool in self._tools.tools.values()
            if category in (None, tool.category) and tool_type in (None, tool.tool_type)
        ]

    def get(self, name: str) -> Tool:
        """Return the tool with this canonical or wire name. Asks the lazy service that the name
        belongs to. Raises `ToolNotFound`, which names the nearest tool, and `ToolError` for a tool
        that is held back."""
        tool = self._tools.find(name) or self._fetch(name)
        if tool is None:
            raise unknown_tool_error(self._tools.tools, name)
        return tool

    def exists(self, name: str) -> bool:
        """Return True if there is a tool with this canonical name now. Asks no service."""
        return name in self._tools.tools

    @property
    def rules(self) -> CallRules:
        """The rules of calls as they were configured."""
        rules = self._calls.rules
        calls, lengths = dict(rules.concurrency), dict(rules.result_limit)
        return rules._replace(concurrency=calls, result_limit=lengths)

    # --- services ---

    def add_source(self, source: Source, *more: Source) -> None:
        """Add one service, or several (all or none). Their tools are available from their discovery
        on. Raises `ConfigurationError` for an id that is taken."""
        sources = (source, *more)
        self._services.add(sources)
        self._catalogue.place([added.id for added in sources])
        for added in sources:
            if isinstance(added, Rooted):
                added.use_folders(self._services.folders)
        if any(added.lazy for added in sources) and not self.exists("find_tools"):
            self.register(find_tools(self))

    def discover(self, id: str | None = None, force: bool = False) -> list[Tool]:
        """Ask services for their tools, in parallel, and return their current tools. Without `id`:
        all services that are not lazy.

        A service is asked once. `force` asks again, and with `id` restores tools that were
        unregistered. A failing service raises nothing: see `errors`. Raises `ToolNotFound` for
        an unknown id, and `ToolError` if a service's discovery discovers that service itself.
        """
        discovery = self._services.discovery
        sources = {} if discovery is None else discovery.sources
        if id is not None and id not in sources:
            raise ToolNotFound(
                f"There is no service {id!r}. This agent has: {', '.join(sources) or 'none'}."
            )
        if discovery is None:
            return []
        if id is None:
            services = self._catalogue.wanted_services
            ids = [one for one, source in sources.items() if not source.lazy or one in services]
        else:
            ids = [id]
            if force:
                self._catalogue.restore(id)
            self._catalogue.want(ids)
        discovery.ask(ids, force)
        origins = self._catalogue.origins
        return [tool for name, tool in self._tools.tools.items() if origins.get(name) in ids]

    def want(self, names: Iterable[str]) -> None:
        """Run `discover()`, and add these tools of lazy services as `search` would. A resumed
        conversation thus keeps the tools that it had. All services are asked in parallel. A failing
        service or an unknown name raises nothing."""
        missing = [name for name in names if not self.exists(name)]
        discovery = self._services.discovery
        if discovery is None or not missing:
            self.discover()
            return
        sources, services = discovery.sources, self._catalogue.wanted_services
        of = {name: name.partition(".")[0] for name in missing}
        lazy = {
            id for id in of.values() if id in sources and sources[id].lazy and id not in services
        }
        self._catalogue.want(tools=[name for name, id in of.items() if id in lazy])
        discovery.ask(
            [
                id
                for id, source in sources.items()
                if not source.lazy or id in services or id in lazy
            ]
        )

    def search(self, words: str, limit: int = 10) -> list[Tool]:
        """Return the tools of lazy services that match `words`, the best first, and add them to
        this manager. Services that were not asked yet are asked. The builtin `find_tools` does the
        same for a model."""
        discovery = self._services.discovery
        if discovery is None:
            return []
        lazy = [id for id, source in discovery.sources.items() if source.lazy]
        discovery.ask(lazy)
        candidates = self._catalogue.searchable(filter(discovery.has_offer, lazy))
        matches = best_matches(words, candidates, limit)
        self._catalogue.want(tools=[tool.name for tool in matches])
        return [tool for tool in matches if tool.name in self._catalogue.tools]

    @property
    def errors(self) -> dict[str, str]:
        """Discovery errors by service id."""
        discovery = self._services.discovery
        return {} if discovery is None else discovery.errors

    @property
    def held(self) -> dict[str, str]:
        """Remote tools held back because their definition changed: the change by name."""
        return {name: entry.change for name, entry in self._catalogue.held_tools.items()}

    def approve(self, name: str, change: str | None = None) -> Tool:
        """Approve a tool that is held back, in its current version, and add it. `change` is the
        text that `held` showed when the tool was reviewed. If the service has changed the tool
        since, nothing is approved. Raises `ToolNotFound`, `ConfigurationError` for another
        `change`, `StoreError` for a file that cannot be written."""
        return self._catalogue.approve(name, change).tool

    def _fetch(self, name: str) -> Tool | None:
        """Return a tool of a lazy service that was not asked yet, or was asked for other tools
        only; None if there is none. Raises `ToolError` for a tool that is held back, and
        `ToolNotFound` if its service failed or was not asked."""
        self._refuse_held(name)
        discovery = self._services.discovery
        if discovery is None:
            return None
        sources = discovery.sources
        # A canonical name has one service; for a wire name the longest matching id comes first.
        ids = [id for id in sources if name.startswith(f"{id}.")]
        ids += sorted([id for id in sources if name.startswith(f"{id}__")], key=len, reverse=True)
        for id in ids:
            if (not discovery.has_offer(id) and id not in self.errors) or (
                sources[id].lazy and id not in self._catalogue.wanted_services
            ):
                self.discover(id)
                self._refuse_held(name)
                tool = self._tools.find(name)
                if tool is not None:
                    return tool
        for id in ids:
            error = self.errors.get(id)
            if error is not None or not discovery.has_offer(id):
                why = "was not asked for its tools yet"
                if error is not None:
                    why = f"could not be asked: {error.rstrip('.')}"
                raise unknown_tool_error(self._tools.tools, name, f"Its service {id!r} {why}.")
        return None

    def _refuse_held(self, name: str) -> None:
        entry = self._catalogue.find_held(name)
        if entry is not None:
            raise ToolError(
                f"{entry.tool.name!r} is held back until somebody approves its new definition:"
                f" {entry.change}.",
                "authentication",
            )

    def canonical(self, name: str) -> str:
        """Return the canonical name for a canonical or wire name. Also resolves tools of lazy
        services that are not added yet. Asks no service."""
        tool = self._tools.find(name)
        if tool is not None:
            return tool.name
        discovery = self._services.discovery
        if discovery is None or "." in name:
            return name
        ids = [id for id in discovery.sources if name.startswith(f"{id}__")]
        id = max(ids, key=len, default="")
        return f"{id}.{name[len(id) + 2 :]}" if id else name

    def with_canonical_names(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """Return a model's calls under canonical names, by which hooks and rules know them. A
        model may use the wire name of an earlier request."""
        tools = self._tools.tools
        names = [one.name if one.name in tools else self.canonical(one.name) for one in calls]
        return tuple(
            [
                call if name == call.name else msgspec.structs.replace(call, name=name)
                for call, name in zip(calls, names, strict=True)
            ]
        )

    # --- definitions for models ---

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Return the definitions for models: the same object until the set changes."""
        return self._tools.definitions()

    def get_schema(self, name: str) -> dict[str, Any]:
        """Return a copy of a tool's input schema. Raises `ToolNotFound`."""
        return self.get(name).input_schema

    def get_llm_definitions(
        self, names: Iterable[str] | None = None, style: str = "openai_chat"
    ) -> list[dict[str, Any]]:
        """Return the definitions of all tools, or of those in `names`, in the style of a model API;
        a copy.

        Styles are `openai_chat` (also `openai`), `openai_responses`, `anthropic`, `gemini` (each a
        `functionDeclarations` entry) and `mcp`. Without `names` the services are asked first, as by
        `discover()`.

        Raises `ToolNotFound`, and `ConfigurationError` naming the known styles.
        """
        if names is not None:
            chosen = [definition(self.get(name)) for name in names]
            return copy_json([styles.definition(tool, style) for tool in chosen])
        self.discover()
        definitions = self.definitions()
        cached = self._styled_definitions.get(style)
        if cached is None or cached[0] is not definitions:
            data = msgspec.json.encode([styles.definition(tool, style) for tool in definitions])
            cached = self._styled_definitions[style] = (definitions, data)
        return msgspec.json.decode(cached[1])

    def get_tool_info(self, name: str) -> dict[str, Any]:
        """Return everything known about a tool, as JSON values. Raises `ToolNotFound`."""
        tool = self.get(name)
        return {
            "name": tool.name,
            "wire_name": wire_name(tool.name),
            "description": tool.description,
            "tool_type": tool.tool_type,
            "category": tool.category,
            "service": self._catalogue.origins.get(tool.name),
            "module": tool.module_qualname,
            "annotations": msgspec.to_builtins(tool.annotations),
            "timeout": tool.timeout,
            "retry": msgspec.to_builtins(tool.retry),
            "input_schema": tool.input_schema,
            "output_schema": tool.output_schema,
        }

    def summary(self) -> dict[str, Any]:
        """Return the number of tools by type and category, and the state of each service."""
        tools = self._tools.tools.values()
        discovery = self._services.discovery
        offered = {} if discovery is None else discovery.summary()
        return {
            "tools": len(tools),
            "types": dict(Counter(tool.tool_type for tool in tools)),
            "categories": dict(Counter(tool.category for tool in tools)),
            "services": {
                id: offer - self._catalogue.left_out(id) if isinstance(offer, int) else offer
                for id, offer in offered.items()
            },
            "held": self.held,
        }

    def health(self, timeout: float = 5.0) -> dict[str, SourceHealth]:
        """Return the health of each service, all checked in parallel, within `timeout` + 1 s."""
        discovery = self._services.discovery
        return {} if discovery is None else discovery.health(timeout)

    # --- calls ---

    def call(
        self, name: str, arguments: dict[str, Any] | None = None, context: ToolContext | None = None
    ) -> ToolResult:
        """Run a tool once and return its result. Raises `ToolError` if there is no result."""
        tool, context = self.get(name), context or ToolContext()
        call = ToolCall(context.call_id, tool.name, arguments or {})
        if tool.is_async:
            context.loop = self._services.submit
        with self._services.direct_call():
            return self._calls.make(tool, call, context, running.run_once, self._calls.hooks)

    async def acall(
        self, name: str, arguments: dict[str, Any] | None = None, context: ToolContext | None = None
    ) -> ToolResult:
        """Run `call` on a thread, for async hosts. Cancelling the task cancels the call."""
        import asyncio

        context = context or ToolContext()
        future: Future[ToolResult] = Future()
        future.set_running_or_notify_cancel()  # a cancel reaches the call through its context

        def work() -> None:
            try:
                future.set_result(self.call(name, arguments, context))
            except BaseException as error:
                future.set_exception(error)

        # Not asyncio.to_thread: nested calls would use up its few threads.
        start_thread(work, f"holdfast-call-{name}")
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            context.cancelled.cancel()
            raise

    def run(
        self,
        call: ToolCall,
        context: ToolContext | None = None,
        before_attempt: Callable[[int], None] | None = None,
        start_thread: StartThread = start_thread,
        hooks: Hooks | None = None,
    ) -> ToolResult:
        """Run a model's call to a result. Errors of the tool or the model are returned as results
        and never raised.

        A failure is retried according to the tool's `retry`, or to the error's own policy if the
        tool is `read_only` or `idempotent`. `before_attempt(n)` is called before the second and
        every further attempt; an exception from it ends the call. `hooks` replace the manager's
        own.
        """
        if context is None:
            context = ToolContext(call_id=call.id)
        hooks = hooks or self._calls.hooks
        try:
            if call.invalid:
                raise _invalid(call)
            tool = self._tools.tools.get(call.name) or self.get(call.name)
            if tool.name != call.name:  # called by the wire name; hooks match the canonical one
                call = msgspec.structs.replace(call, name=tool.name)
            if hooks is None and not self._calls.is_limited and not tool.is_async:
                return run_attempts(tool, call.arguments, context, start_thread, before_attempt)
            if tool.is_async:
                context.loop = self._services.submit
            attempts = partial(run_attempts, start=start_thread, before_attempt=before_attempt)
            return self._calls.make(tool, call, context, attempts, hooks)
        except ToolError as error:
            return failed_result(error, hooks)

    def refused(
        self, call: ToolCall, context: ToolContext, hooks: Hooks | None = None
    ) -> ToolResult | None:
        """Return the immediate answer to a call that another process would run, None if the call
        may run. The answer is a validation error of the arguments or a hook's answer. The tool need
        not exist here. `hooks` as in `run`."""
        hooks = hooks or self._calls.hooks
        try:
            if call.invalid:
                raise _invalid(call)
            if hooks is not None:
                answer = hooks.before(call, context, [])
                if isinstance(answer, ToolResult):
                    return answer
                if answer is not call:
                    raise ToolError(
                        f"{call.name!r} was not run: a hook changed its arguments, which is not"
                        " possible for a call in another process.",
                        retryable=False,
                    )
            tool = self._tools.find(call.name)
            if tool is not None:
                running.checked_arguments(tool, call.arguments)
        except ToolError as error:
            return failed_result(error, hooks)
        return None

    def finish(
        self, call: ToolCall, result: ToolResult, context: ToolContext, hooks: Hooks | None = None
    ) -> ToolResult:
        """Apply hooks and limits to a result from elsewhere, such as from a tool's `reconcile`.
        `hooks` as in `run`."""
        hooks = hooks or self._calls.hooks
        if hooks is not None:
            try:
                result = hooks.after(call, result, context)
            except ToolError as error:
                return failed_result(error, hooks)
        return self._calls.limit_result(call, result)

    def __enter__(self) -> ToolManager:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def opened(self, runtime: object | None = None) -> None:
        """Register a conversation that uses these tools with this runtime."""
        self._services.opened(runtime)

    def closed(self, runtime: object | None = None) -> None:
        """Unregister a conversation. The last one closes all connections."""
        self._services.closed(runtime)

    def close(self) -> None:
        """Close all connections and their processes. Idempotent; the next use connects again."""
        self._services.close()


def _invalid(call: ToolCall) -> ToolError:
    return ToolValidationError(f"{call.name!r} was not run: {call.invalid}")


def _as_tool(tool: Any) -> Tool:
    if isinstance(tool, Tool):
        return tool
    has_name = isinstance(getattr(tool, "name", None), str)
    langchain = has_name and callable(getattr(tool, "invoke", None))
    if callable(tool) and not langchain:
        return Tool.from_function(tool)
    hint = ""
    if langchain:
        hint = " It looks like a LangChain tool: give Tool.from_langchain(it)."
    elif hasattr(tool, "prompt_parts"):
        hint = " An agent is a delegate: Agent(llm, delegates={'name': agent})."
    elif hasattr(tool, "get_tools"):
        hint = " Give its tools, as in tools=[*runtime.tools]."
    elif hasattr(tool, "__iter__") and not isinstance(tool, str | bytes | dict):
        hint = " Give its members, as in tools=[*these, *those]."
    elif isinstance(tool, str):
        hint = " Tools of a runtime have such names: give runtime.tools, or some of them."
    elif isinstance(tool, dict):
        hint = " Give Tool(name, description, callback, input_schema)."
    raise wrong("tools", "Tool objects or functions", cast("Any", tool), hint)
