"""`ToolManager`: one agent's action space. It knows its tools by name, wherever they live, tells models of them, and runs their calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.content import ToolCall, ToolResult
from holdfast.errors import ConfigurationError, ToolCancelled, ToolError, ToolNotFound
from holdfast.events import ToolDefinition
from holdfast.tools.catalogue import Catalogue, definition
from holdfast.tools.context import ToolContext
from holdfast.tools.names import wire_name
from holdfast.tools.running import StartThread, attempt, checked, failed, start_thread, wait_before_retry
from holdfast.tools.tool import Callback, Tool

if TYPE_CHECKING:
    from holdfast.tools.discovery import Discovery
    from holdfast.tools.hooks import Caps, Hook, Hooks
    from holdfast.tools.loop import LoopThread
    from holdfast.tools.overflow import Overflow
    from holdfast.tools.pins import Pins
    from holdfast.tools.sources import Health, Source

ToolLike = Tool | Callback


class ToolManager:
    """The tools of one agent. Thread-safe: tools may be registered while conversations run and are seen at the next model call.

    `tools` are tools or plain functions (as `Tool.from_function`), `sources` remote services (`MCPClient(...).sources()`), whose tools are named
    `{id}.{tool}` and never shadow a local one. Services are asked for their tools by `discover`, which an agent's first conversation
    calls; a lazy one when `discover(id)`, a call or `get` of one of its tools, or the builtin `find_tools` names it. A failure is
    remembered, in `errors`, and not tried again but with `force`.

    `hooks` stand around calls (`Hook`). `concurrency` caps how many calls run at once, by patterns of names (`{"srv.*": 2}`); a tool that calls
    tools under its own cap waits for itself. `result_limit` (characters, by patterns) sends longer texts to files in `result_dir`. With `pins`
    a remote tool whose definition has changed is held back (`held`) until `approve`.

    Raises `ConfigurationError` for two tools of one name, and naming the argument that does not fit.
    """

    def __init__(
        self,
        tools: Iterable[ToolLike] = (),
        sources: Iterable[Source] = (),
        *,
        hooks: Sequence[Hook] = (),
        concurrency: Mapping[str, int] | None = None,
        result_limit: Mapping[str, int] | None = None,
        result_dir: str | Path | None = None,
        pins: Pins | None = None,
    ) -> None:
        self._catalogue = Catalogue(pins)
        self._discovery: Discovery | None = None  # only with services: most agents have none
        self._lock = threading.Lock()  # for the rest
        self._styled: dict[str, tuple[object, list[dict[str, Any]]]] = {}
        self._loop: LoopThread | None = None
        self._users = 0
        self._hooks: Hooks | None = None
        self._caps: Caps | None = None
        self._overflow: Overflow | None = None
        if hooks:
            from holdfast.tools.hooks import Hooks

            self._hooks = Hooks(tuple(hooks))
        if concurrency:
            from holdfast.tools.hooks import Caps

            self._caps = Caps(concurrency)
        if result_limit:
            from holdfast.tools.overflow import Overflow

            self._overflow = Overflow(result_limit, result_dir)
        self._plain = self._hooks is None and self._caps is None and self._overflow is None
        if isinstance(tools, str | Tool) or not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"tools takes a list of Tool objects or functions, not {tools!r}.")
        for tool in tools:
            self.register(tool)
        for source in sources:
            self.add_source(source)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any] | str | Path,
        builtins: Mapping[str, Any] | Iterable[Tool] | None = None,
        *,
        variables: Mapping[str, str] | None = None,
        base: str | Path | None = None,
    ) -> ToolManager:
        """A manager by a mapping or a YAML file: local functions, MCP servers, A2A agents, skills, hooks, limits; see `tools.config`, and
        `tools.config.SCHEMA` for its JSON Schema.

        `builtins` are the preset tools that it may name, `variables` what `${NAME}` in it stands for (never the environment), `base` the folder
        of relative paths (None: the file's). Raises `ConfigurationError` naming the place in the configuration.
        """
        from holdfast.tools.config import build, read

        return cls(**build(read(config, variables=variables, base=base), builtins).arguments())

    # --- the set ---

    def register(self, tool: ToolLike) -> Tool:
        """Add a tool. Raises `ConfigurationError` if its name is taken (`unregister` first to replace one) or it cannot be
        described to a model."""
        found = _as_tool(tool)
        _ = found.input_schema  # made now: a signature that cannot be described is the caller's to hear of, not a run's
        self._catalogue.add(found)
        return found

    def unregister(self, name: str) -> Tool:
        """Take a tool out and return it. Raises `ToolNotFound`."""
        return self._catalogue.remove(name)

    def list_tools(self, category: str | None = None, tool_type: str | None = None) -> list[Tool]:
        """The tools, in the order of their registration; of one category or type if given."""
        return [
            tool
            for tool in self._catalogue.tools.values()
            if (category is None or tool.category == category) and (tool_type is None or tool.tool_type == tool_type)
        ]

    def get(self, name: str) -> Tool:
        """The tool of that canonical (or wire) name; asks a lazy service whose tool it would be. Raises `ToolNotFound`, which names the
        nearest one, `ToolError` for one that is held back."""
        found = self._catalogue.find(name) or self._fetch(name)
        if found is None:
            raise self._catalogue.not_found(name)
        return found

    def exists(self, name: str) -> bool:
        """Whether there is a tool of that canonical name now. Asks nobody."""
        return name in self._catalogue.tools

    # --- services ---

    def add_source(self, source: Source) -> None:
        """Have the tools of one service more, from its discovery on. Raises `ConfigurationError` for an id that is taken."""
        if self._discovery is None:
            from holdfast.tools.discovery import Discovery

            with self._lock:
                self._discovery = self._discovery or Discovery(self._catalogue.offer)
        self._discovery.add(source)
        if source.lazy and not self.exists("find_tools"):
            from holdfast.tools.finding import find_tools

            self.register(find_tools(self))

    def discover(self, id: str | None = None, force: bool = False) -> list[Tool]:
        """Ask services for their tools, all at once, and return those that are in now. Without `id`: all that are not lazy. A service is asked
        once; `force` asks again. Does not raise for a service that fails: see `errors`. Raises `ToolNotFound` for an id that is none."""
        sources = {} if self._discovery is None else self._discovery.sources
        if id is None:
            ids = [one for one, source in sources.items() if not source.lazy or one in self._catalogue.wanted]
        elif id in sources:
            ids = [id]
            self._catalogue.want(id)
        else:
            raise ToolNotFound(f"There is no service {id!r}. This agent has: {', '.join(sources) or 'none'}.")
        if self._discovery is None:
            return []
        self._discovery.ask(ids, force)
        if id is not None:  # it may have been asked before, when not all of it was wanted
            self._catalogue.offer(sources[id], self._discovery.tools(id))
        return [tool for name, tool in self._catalogue.tools.items() if self._catalogue.origins.get(name) in ids]

    def search(self, words: str, limit: int = 10) -> list[Tool]:
        """The tools of lazy services whose names or descriptions fit, the best first; asks those that were not asked yet, and brings in what
        it finds. Equivalent to what the builtin `find_tools` does for a model."""
        from holdfast.tools.finding import best

        discovery = self._discovery
        if discovery is None:
            return []
        lazy = {id: source for id, source in discovery.sources.items() if source.lazy}
        discovery.ask(lazy)
        found = best(words, [tool for id in lazy for tool in discovery.tools(id)], limit)
        self._catalogue.want(*[tool.name for tool in found])
        for id, source in lazy.items():
            self._catalogue.offer(source, discovery.tools(id))
        return [tool for tool in found if tool.name in self._catalogue.tools]

    @property
    def errors(self) -> dict[str, str]:
        """Why services could not be asked for their tools, by id."""
        return {} if self._discovery is None else self._discovery.errors

    @property
    def held(self) -> dict[str, str]:
        """Remote tools that are held back, since their definition is not the one that was approved: what changed, by name."""
        return {name: change for name, (_, change) in self._catalogue.held.items()}

    def approve(self, name: str) -> Tool:
        """Let a tool in that is held back, as it is now. Raises `ToolNotFound`."""
        found = self._catalogue.approve(name)
        if self._discovery is not None:
            source = self._discovery.sources[name.partition(".")[0]]
            self._catalogue.offer(source, self._discovery.tools(source.id))
        return found

    def _fetch(self, name: str) -> Tool | None:
        """A tool that is not in: of a lazy service that was not asked yet, or whose other tools alone were wanted. None if there is none."""
        if self._discovery is None:
            return None
        held = self._catalogue.held.get(name)
        if held is not None:
            raise ToolError(f"{name!r} is held back until somebody approves its new definition: {held[1]}.", "authentication")
        for id, source in self._discovery.sources.items():
            if source.lazy and id not in self._catalogue.wanted and name.startswith((f"{id}.", f"{id}__")):
                self.discover(id)
                return self._catalogue.find(name)
        return None

    # --- what is told of them ---

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What a model is told: made once, and the same object until the set changes."""
        return self._catalogue.definitions()

    def get_schema(self, name: str) -> dict[str, Any]:
        """The input schema of a tool. Raises `ToolNotFound`."""
        return self.get(name).input_schema

    def get_llm_definitions(self, names: Iterable[str] | None = None, style: str = "openai_chat") -> list[dict[str, Any]]:
        """Definitions as a model API takes them, of all tools or of those named: `openai_chat`, `openai_responses`, `anthropic`, `gemini` (one of its
        `functionDeclarations` each) or `mcp`. Those of all tools are made once until the set changes, and are not to be changed.

        Raises `ToolNotFound`, and `ConfigurationError` naming the styles there are.
        """
        from holdfast.tools import styles

        if names is not None:
            return [styles.definition(definition(self.get(name)), style) for name in names]
        definitions = self.definitions()
        known = self._styled.get(style)
        if known is None or known[0] is not definitions:
            known = self._styled[style] = (definitions, [styles.definition(found, style) for found in definitions])
        return known[1]

    def get_tool_info(self, name: str) -> dict[str, Any]:
        """All that is known of a tool, as JSON values. Raises `ToolNotFound`."""
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
        """How many tools there are, by type and category, and where the services stand (`not asked`, how many tools, or why there are none)."""
        types: dict[str, int] = {}
        categories: dict[str, int] = {}
        for tool in self._catalogue.tools.values():
            types[tool.tool_type] = types.get(tool.tool_type, 0) + 1
            categories[tool.category] = categories.get(tool.category, 0) + 1
        services = {} if self._discovery is None else self._discovery.summary()
        return {"tools": len(self._catalogue.tools), "types": types, "categories": categories, "services": services, "held": self.held}

    def health(self, timeout: float = 5.0) -> dict[str, Health]:
        """How each service answers now, all asked at once, within `timeout` seconds and one."""
        return {} if self._discovery is None else self._discovery.health(timeout)

    # --- calls ---

    def call(self, name: str, arguments: dict[str, Any] | None = None, context: ToolContext | None = None) -> ToolResult:
        """Run a tool once and return its result, also one that says it failed. Raises `ToolError` if there is none."""
        tool = self.get(name)
        given = ToolCall("" if context is None else context.call_id, tool.name, arguments or {})
        return self._guarded(
            tool, given, context or ToolContext(), lambda tool, arguments, context: self._once(tool, arguments, context, start_thread)
        )

    async def acall(self, name: str, arguments: dict[str, Any] | None = None, context: ToolContext | None = None) -> ToolResult:
        """`call` for async hosts: the same on a thread. A cancelled task cancels the call."""
        import asyncio

        context = context or ToolContext()
        try:
            return await asyncio.to_thread(self.call, name, arguments, context)
        except asyncio.CancelledError:
            context.cancelled.cancel()
            raise

    def run(
        self,
        call: ToolCall,
        context: ToolContext | None = None,
        before_attempt: Callable[[int], None] | None = None,
        start_thread: StartThread = start_thread,
    ) -> ToolResult:
        """Run a model's call to a result: never raises for what the tool or the model did wrong, but tells the model.

        A failure is tried again as the tool's `retry` says, or by the error's own policy if the tool is `read_only` or `idempotent`.
        `before_attempt(n)` is called before the second and every further attempt; what it raises ends the call.
        """
        context = context if context is not None else ToolContext(call_id=call.id)
        announcing: list[BaseException] = []

        def attempts(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
            while True:
                try:
                    return self._once(tool, arguments, context, start_thread)
                except ToolError as error:
                    wait = wait_before_retry(tool, error, context.attempt)
                    if wait is None or context.cancelled:
                        raise
                    if context.cancelled.wait(wait):
                        raise ToolCancelled(f"{call.name!r} was cancelled while waiting to be tried again after: {error}") from error
                context.attempt += 1
                if before_attempt is not None:
                    try:
                        before_attempt(context.attempt)
                    except BaseException as error:
                        announcing.append(error)
                        raise

        try:
            if call.invalid:
                raise ToolError(f"{call.name!r} was not run: {call.invalid}", "validation")
            tool = self._catalogue.tools.get(call.name) or self._fetch(call.name)
            if tool is None:
                raise self._catalogue.not_found(call.name)
            return self._guarded(tool, call, context, attempts)
        except ToolError as error:
            if announcing:  # the journal's own, not the tool's
                raise
            return failed(error)

    def _guarded(
        self, tool: Tool, call: ToolCall, context: ToolContext, attempts: Callable[[Tool, dict[str, Any], ToolContext], ToolResult]
    ) -> ToolResult:
        """Hooks, caps and limits around the attempts of a call. Raises `ToolError`."""
        if self._plain:
            return attempts(tool, call.arguments, context)
        changed = call
        if self._hooks is not None:
            found = self._hooks.before(call, context)
            if isinstance(found, ToolResult):
                return found
            changed = found
        taken = [] if self._caps is None else self._caps.enter(call.name, context.cancelled)
        try:
            result = attempts(tool, changed.arguments, context)
        except ToolError as error:
            if self._hooks is None:
                raise
            result = failed(error)
        finally:
            for cap in taken:
                cap.leave()
        if changed is not call:
            from holdfast.tools.hooks import ARGUMENTS

            result = msgspec.structs.replace(result, meta={**result.meta, ARGUMENTS: changed.arguments})
        if self._hooks is not None:
            result = self._hooks.after(changed, result, context)
        return result if self._overflow is None else self._overflow.shown(call.name, call.id, result)

    def _once(self, tool: Tool, arguments: dict[str, Any], context: ToolContext, start: StartThread) -> ToolResult:
        if tool.is_async:
            context.loop = self._submit
        return attempt(tool, checked(tool, arguments), context, start)

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a callback's coroutine on the loop thread, which lives until `close`."""
        with self._lock:
            if self._loop is None:
                from holdfast.tools.loop import LoopThread

                self._loop = LoopThread("holdfast-async")
            return self._loop.submit(work)

    def __enter__(self) -> ToolManager:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def opened(self) -> None:
        """A conversation begins to use these tools. Several agents may have one manager."""
        with self._lock:
            self._users += 1

    def closed(self) -> None:
        """A conversation is done with them; the last one closes what is open."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self.close()

    def close(self) -> None:
        """Let go of all connections, and end the processes behind them. Idempotent; the next use connects again."""
        with self._lock:
            loop, self._loop = self._loop, None
        if self._discovery is not None:
            self._discovery.close()
        if loop is not None:
            loop.close()


def _as_tool(tool: Any) -> Tool:
    if isinstance(tool, Tool):
        return tool
    if callable(tool):
        return Tool.from_function(tool)
    raise ConfigurationError(f"tools takes Tool objects or functions, not {tool!r}.")
