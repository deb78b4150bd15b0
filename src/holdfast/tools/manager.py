"""`ToolManager`, the action space of one agent: tools by name, their definitions for models, and
their calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from holdfast.content import ToolCall, ToolResult
from holdfast.errors import ConfigurationError, ToolCancelled, ToolError, ToolNotFound
from holdfast.events import ToolDefinition
from holdfast.tools import styles
from holdfast.tools.caps import Caps
from holdfast.tools.catalogue import Catalogue, definition
from holdfast.tools.context import ToolContext
from holdfast.tools.finding import best, find_tools
from holdfast.tools.json_values import copied
from holdfast.tools.names import wire_name
from holdfast.tools.running import (
    StartThread,
    attempt,
    checked,
    error_result,
    start_thread,
    wait_before_retry,
)
from holdfast.tools.sources import Rooted
from holdfast.tools.tool import Callback, Tool

if TYPE_CHECKING:
    from holdfast.tools.discovery import Discovery
    from holdfast.tools.hooks import Hook, Hooks
    from holdfast.tools.loop import LoopThread
    from holdfast.tools.overflow import Overflow
    from holdfast.tools.pins import Pins
    from holdfast.tools.sources import Health, Source

ToolLike = Tool | Callback

_CONSTRUCTOR_DISCOVERY_SECONDS = 10.0  # for all services together


class Rules(NamedTuple):
    """The rules of a manager's calls: hooks, limits by patterns of names, and whether
    definitions are pinned."""

    hooks: tuple[Hook, ...]
    concurrency: dict[str, int]
    result_limit: dict[str, int]
    pinned: bool


class ToolManager:
    """The tools of one agent. Thread-safe: tools may be registered while conversations run and are
    visible at the next model call.

    `tools` are tools or plain functions (as `Tool.from_function`). `sources` are remote services
    (`MCPClient(...).sources()`). Their tools are named `{id}.{tool}` and never shadow a local one.
    The order is that of the configuration: local tools, then the tools of each service.

    With `discover` (the default) the constructor asks all services that are not lazy for their
    tools, in parallel, and waits at most 10 s. A failure is listed in `errors` and raises nothing.
    The next `discover()` waits for a slower service. Without `discover`, services are asked by
    `discover()` or `get_llm_definitions()`; an agent's first conversation calls one of them. A lazy
    service is asked by `discover(id)`, by a call or `get` of one of its tools, or by the builtin
    `find_tools`. A failed service is asked again only with `force`.

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

    Raises `ConfigurationError` for two tools of one name, and naming the argument that is
    invalid.
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
            from holdfast.tools.pins import Pins

            pins = Pins(pins)
        elif pins is not None and not callable(getattr(pins, "check", None)):
            raise ConfigurationError(
                f"ToolManager: pins takes Pins(...) or the path of a file of pins, not {pins!r}."
            )
        self._catalogue = Catalogue(pins)
        self._discovery: Discovery | None = None  # set with the first service
        self._lock = threading.Lock()  # guards the attributes below
        self._styled_definitions: dict[str, tuple[object, list[dict[str, Any]]]] = {}
        self._loop: LoopThread | None = None
        self._conversations = 0
        self._folders: list[str] = []  # one entry for each open conversation
        self._calls = 0  # direct calls under way; the last one closes if no conversation is open
        self._close_pending = False
        self._hooks: Hooks | None = None
        self._caps: Caps | None = None
        self._overflow: Overflow | None = None
        if hooks:
            from holdfast.tools.hooks import Hooks

            self._hooks = Hooks(tuple(hooks))
        if concurrency:
            self._caps = Caps(_patterns("concurrency", concurrency))
        if result_limit:
            from holdfast.tools.overflow import Overflow

            self._overflow = Overflow(_patterns("result_limit", result_limit), result_dir)
        self._has_no_rules = self._hooks is None and self._caps is None and self._overflow is None
        if isinstance(tools, str | Tool) or not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                f"tools takes a list of Tool objects or functions, not {tools!r}."
            )
        for tool in tools:
            self.register(tool)
        for source in sources:
            self.add_source(source)
        if discover:
            self._discover_within(_CONSTRUCTOR_DISCOVERY_SECONDS)

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

        See `tools.config`, and `tools.config.SCHEMA` for the JSON Schema.

        Args:
            config: The mapping, or the path of the file.
            builtins: The preset tools that the config may name.
            variables: The values of `${NAME}` in the config; the environment is never read.
            base: The folder of relative paths; None: the folder of the file.
            discover: As for a manager.

        Raises `ConfigurationError` naming the place in the configuration.
        """
        from holdfast.tools.config import build, read

        return cls(
            **build(read(config, variables=variables, base=base), builtins).arguments(),
            discover=discover,
        )

    # --- the set ---

    def register(self, tool: ToolLike) -> Tool:
        """Add a tool.

        With `pins`, a tool of an MCP server or A2A agent is held back until it is approved, like
        those of services. Raises `ConfigurationError` if its name is taken (`unregister` the
        other first to replace it) or if it cannot be described to a model.
        """
        added = _as_tool(tool)
        # Made now: a signature that has no schema fails here, not in a run.
        _ = added.input_schema
        self._catalogue.add(added)
        return added

    def unregister(self, name: str) -> Tool:
        """Remove a tool and return it. Raises `ToolNotFound`.

        A tool that a service offers stays out until `discover(id, force=True)` names its
        service, or until a tool with its name is registered.
        """
        return self._catalogue.remove(name)

    def replace(self, old: Iterable[str], new: Iterable[ToolLike]) -> list[Tool]:
        """Replace the registered tools `old` by `new` in one step.

        Names in `old` that are not registered are ignored. No call sees a state in between. A
        tool whose name is in both keeps its place. Raises `ConfigurationError` as `register`
        does; then nothing has changed.
        """
        tools = [_as_tool(tool) for tool in new]
        for tool in tools:
            _ = tool.input_schema
        self._catalogue.swap(old, tools)
        return tools

    def list_tools(self, category: str | None = None, tool_type: str | None = None) -> list[Tool]:
        """Return the current tools in the configuration's order, filtered by category or type if
        given. Asks no service."""
        return [
            tool
            for tool in self._catalogue.tools.values()
            if (category is None or tool.category == category)
            and (tool_type is None or tool.tool_type == tool_type)
        ]

    def get(self, name: str) -> Tool:
        """Return the tool with this canonical or wire name. Asks the lazy service that the name
        belongs to.

        Raises `ToolNotFound`, which names the nearest tool, and `ToolError` for a tool that is
        held back.
        """
        tool = self._catalogue.find(name) or self._fetch(name)
        if tool is None:
            raise self._catalogue.not_found(name)
        return tool

    def exists(self, name: str) -> bool:
        """Return True if there is a tool with this canonical name now. Asks no service."""
        return name in self._catalogue.tools

    @property
    def rules(self) -> Rules:
        """The rules of calls as they were configured."""
        return Rules(
            () if self._hooks is None else self._hooks.given,
            {} if self._caps is None else dict(self._caps.given),
            {} if self._overflow is None else dict(self._overflow.given),
            self._catalogue.pinned,
        )

    # --- services ---

    def add_source(self, source: Source, *more: Source) -> None:
        """Add one service, or several (all or none). Their tools are available from their discovery
        on.

        Raises `ConfigurationError` for an id that is taken.
        """
        if self._discovery is None:
            from holdfast.tools.discovery import Discovery

            with self._lock:
                self._discovery = self._discovery or Discovery(self._catalogue.offer)
        self._discovery.add((source, *more))
        self._catalogue.place([added.id for added in (source, *more)])
        for added in (source, *more):
            if isinstance(added, Rooted):
                added.use_folders(self.folders)
        if any(added.lazy for added in (source, *more)) and not self.exists("find_tools"):
            self.register(find_tools(self))

    def _discover_within(self, seconds: float) -> None:
        discovery = self._discovery
        if discovery is not None:
            discovery.ask(
                [id for id, source in discovery.sources.items() if not source.lazy], within=seconds
            )

    def discover(self, id: str | None = None, force: bool = False) -> list[Tool]:
        """Ask services for their tools, in parallel, and return their current tools. Without `id`:
        all services that are not lazy.

        A service is asked once. `force` asks again, and with `id` restores tools that were
        unregistered. A failing service raises nothing: see `errors`. Raises `ToolNotFound` for
        an unknown id, and `ToolError` if a service's discovery discovers that service itself.
        """
        discovery = self._discovery
        sources = {} if discovery is None else discovery.sources
        if id is not None and id not in sources:
            raise ToolNotFound(
                f"There is no service {id!r}. This agent has: {', '.join(sources) or 'none'}."
            )
        if discovery is None:
            return []
        wanted = self._catalogue.wanted_services
        ids = (
            [one for one, source in sources.items() if not source.lazy or one in wanted]
            if id is None
            else [id]
        )
        if id is not None:
            self._catalogue.want([id])
            if force:
                self._catalogue.restore(id)
        discovery.ask(ids, force)
        if id is not None:  # an earlier discovery may have left out tools that are wanted now
            self._offer_again(discovery, ids)
        return [
            tool
            for name, tool in self._catalogue.tools.items()
            if self._catalogue.origins.get(name) in ids
        ]

    def want(self, names: Iterable[str]) -> None:
        """Run `discover()`, and add these tools of lazy services as `search` would.

        A resumed conversation thus keeps the tools that it had. All services are asked in
        parallel. A failing service or an unknown name raises nothing.
        """
        missing = [name for name in names if not self.exists(name)]
        discovery = self._discovery
        if discovery is None or not missing:
            self.discover()
            return
        sources, wanted = discovery.sources, self._catalogue.wanted_services
        of = {name: name.partition(".")[0] for name in missing}
        lazy = {id for id in of.values() if id in sources and sources[id].lazy and id not in wanted}
        self._catalogue.want(tools=[name for name, id in of.items() if id in lazy])
        discovery.ask(
            [id for id, source in sources.items() if not source.lazy or id in wanted or id in lazy]
        )
        self._offer_again(discovery, lazy)

    def search(self, words: str, limit: int = 10) -> list[Tool]:
        """Return the tools of lazy services that match `words`, the best first, and add them to
        this manager.

        Services that were not asked yet are asked. The builtin `find_tools` does the same for a
        model.
        """
        discovery = self._discovery
        if discovery is None:
            return []
        lazy = [id for id, source in discovery.sources.items() if source.lazy]
        discovery.ask(lazy)
        out = {**self._catalogue.removed, **self._catalogue.held}
        lists = [offer[0] for id in lazy if (offer := discovery.offered(id)) is not None]
        matches = best(
            words, [tool for tools in lists for tool in tools if tool.name not in out], limit
        )
        self._catalogue.want(tools=[tool.name for tool in matches])
        self._offer_again(discovery, lazy)
        return [tool for tool in matches if tool.name in self._catalogue.tools]

    def _offer_again(self, discovery: Discovery, ids: Iterable[str]) -> None:
        """Repeat the latest offers of services after more of their tools became wanted or
        approved."""
        for id in ids:
            offer = discovery.offered(id)
            if offer is not None:
                self._catalogue.offer(discovery.sources[id], *offer)

    @property
    def errors(self) -> dict[str, str]:
        """Discovery errors by service id."""
        return {} if self._discovery is None else self._discovery.errors

    @property
    def held(self) -> dict[str, str]:
        """Remote tools that are held back because their definition is not the approved one: the
        change by name."""
        return {name: held.change for name, held in self._catalogue.held.items()}

    def approve(self, name: str, change: str | None = None) -> Tool:
        """Approve a tool that is held back, in its current version, and add it.

        `change` is the text that `held` showed when the tool was reviewed. If the service has
        changed the tool since, nothing is approved. Raises `ToolNotFound`, `ConfigurationError`
        for another `change`, `StoreError` for a file that cannot be written.
        """
        held = self._catalogue.approve(name, change)
        if self._discovery is not None and held.origin is not None:
            self._offer_again(self._discovery, [held.origin])
        return held.tool

    def _fetch(self, name: str) -> Tool | None:
        """Return a tool of a lazy service that was not asked yet, or of which only other tools were
        wanted; None if there is none.

        Raises `ToolError` for a tool that is held back, and `ToolNotFound` if its service failed
        or was not asked.
        """
        self._refuse_held(name)
        if self._discovery is None:
            return None
        sources = self._discovery.sources
        # A canonical name has one service; for a wire name the longest matching id comes first.
        ids = [id for id in sources if name.startswith(f"{id}.")]
        ids += sorted([id for id in sources if name.startswith(f"{id}__")], key=len, reverse=True)
        for id in ids:
            if (self._discovery.offered(id) is None and id not in self.errors) or (
                sources[id].lazy and id not in self._catalogue.wanted_services
            ):
                self.discover(id)
                self._refuse_held(name)
                tool = self._catalogue.find(name)
                if tool is not None:
                    return tool
        for id in ids:
            if id in self.errors:
                raise self._catalogue.not_found(
                    name, f"Its service {id!r} could not be asked: {self.errors[id].rstrip('.')}."
                )
            if self._discovery.offered(id) is None:
                raise self._catalogue.not_found(
                    name, f"Its service {id!r} was not asked for its tools yet."
                )
        return None

    def _refuse_held(self, name: str) -> None:
        held = self._catalogue.find_held(name)
        if held is not None:
            raise ToolError(
                f"{held.tool.name!r} is held back until somebody approves its new definition:"
                f" {held.change}.",
                "authentication",
            )

    def canonical(self, name: str) -> str:
        """Return the canonical name for a canonical or wire name. Also resolves tools of lazy
        services that are not added yet. Asks no service."""
        tool = self._catalogue.find(name)
        if tool is not None:
            return tool.name
        sources = {} if self._discovery is None else self._discovery.sources
        ids = [id for id in sources if name.startswith(f"{id}__")]
        return (
            name
            if not ids or "." in name
            else f"{max(ids, key=len)}.{name[len(max(ids, key=len)) + 2 :]}"
        )

    # --- definitions for models ---

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Return the definitions for models. The result is the same object until the set of
        tools changes."""
        return self._catalogue.definitions()

    def get_schema(self, name: str) -> dict[str, Any]:
        """Return a copy of a tool's input schema. Raises `ToolNotFound`."""
        return self.get(name).input_schema

    def get_llm_definitions(
        self, names: Iterable[str] | None = None, style: str = "openai_chat"
    ) -> list[dict[str, Any]]:
        """Return the definitions of all tools, or of those in `names`, in the style of a model API;
        a copy.

        Styles are `openai_chat`, `openai_responses`, `anthropic`, `gemini` (each a
        `functionDeclarations` entry) and `mcp`. Without `names` the services are asked first, as by
        `discover()`.

        Raises `ToolNotFound`, and `ConfigurationError` naming the known styles.
        """
        if names is None and self._discovery is not None:
            self.discover()
        if names is not None:
            return copied([styles.definition(definition(self.get(name)), style) for name in names])
        definitions = self.definitions()
        cached = self._styled_definitions.get(style)
        if cached is None or cached[0] is not definitions:
            cached = self._styled_definitions[style] = (
                definitions,
                [styles.definition(tool, style) for tool in definitions],
            )
        return copied(cached[1])

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
        """Return the number of tools by type and category, and each service's state: `not
        asked`, its number of tools, or its error."""
        types: dict[str, int] = {}
        categories: dict[str, int] = {}
        for tool in self._catalogue.tools.values():
            types[tool.tool_type] = types.get(tool.tool_type, 0) + 1
            categories[tool.category] = categories.get(tool.category, 0) + 1
        offered = {} if self._discovery is None else self._discovery.summary()
        services = {
            id: offer - self._catalogue.left_out(id) if isinstance(offer, int) else offer
            for id, offer in offered.items()
        }
        return {
            "tools": len(self._catalogue.tools),
            "types": types,
            "categories": categories,
            "services": services,
            "held": self.held,
        }

    def health(self, timeout: float = 5.0) -> dict[str, Health]:
        """Return the health of each service, all checked in parallel, within `timeout` seconds
        and one."""
        return {} if self._discovery is None else self._discovery.health(timeout)

    # --- calls ---

    def call(
        self, name: str, arguments: dict[str, Any] | None = None, context: ToolContext | None = None
    ) -> ToolResult:
        """Run a tool once and return its result, even if that reports a failure. Raises
        `ToolError` if there is no result."""
        tool = self.get(name)
        call = ToolCall("" if context is None else context.call_id, tool.name, arguments or {})
        with self._lock:
            self._calls += 1
        try:
            return self._direct(tool, call, context)
        finally:
            with self._lock:
                self._calls -= 1
                due = self._close_pending and not self._calls and not self._conversations
            if due:
                self.close()

    def _direct(self, tool: Tool, call: ToolCall, context: ToolContext | None) -> ToolResult:
        return self._guarded(
            tool,
            call,
            context or ToolContext(),
            lambda tool, arguments, context: self._attempt_once(
                tool, arguments, context, start_thread
            ),
            self._hooks,
        )

    async def acall(
        self, name: str, arguments: dict[str, Any] | None = None, context: ToolContext | None = None
    ) -> ToolResult:
        """Run `call` on a thread of its own, for async hosts. Cancelling the task cancels the
        call."""
        import asyncio

        context = context or ToolContext()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[ToolResult] = loop.create_future()

        def settle(result: ToolResult | None, error: BaseException | None) -> None:
            if not done.done():
                if error is not None:
                    done.set_exception(error)
                elif result is not None:
                    done.set_result(result)

        # Not asyncio.to_thread: nested calls would use up its few threads.
        def work() -> None:
            result, failure = None, None
            try:
                result = self.call(name, arguments, context)
            except BaseException as error:
                failure = error
            try:
                loop.call_soon_threadsafe(settle, result, failure)
            except RuntimeError:
                pass  # the host's loop is gone

        start_thread(work, f"holdfast-call-{name}")
        try:
            return await done
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
        context = context if context is not None else ToolContext(call_id=call.id)

        def attempts(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
            while True:
                try:
                    return self._attempt_once(tool, arguments, context, start_thread)
                except ToolError as error:
                    wait = wait_before_retry(tool, error, context.attempt)
                    if wait is None or context.cancelled:
                        raise
                    if context.cancelled.wait(wait):
                        raise ToolCancelled(
                            f"{call.name!r} was cancelled while waiting to be tried again after:"
                            f" {error}"
                        ) from error
                context.attempt += 1
                if before_attempt is not None:
                    try:
                        before_attempt(context.attempt)
                    except Exception as error:
                        raise _Unannounced(error) from error

        try:
            if call.invalid:
                raise ToolError(f"{call.name!r} was not run: {call.invalid}", "validation")
            tool = self._catalogue.tools.get(call.name) or self._fetch(call.name)
            if tool is None:
                raise self._catalogue.not_found(call.name)
            if tool.name != call.name:  # called by the wire name; hooks match the canonical one
                call = msgspec.structs.replace(call, name=tool.name)
            return self._guarded(tool, call, context, attempts, hooks or self._hooks)
        except ToolError as error:
            return self._failed(error, hooks)
        except _Unannounced as stop:
            raise stop.error.with_traceback(stop.error.__traceback__) from None

    def _guarded(
        self,
        tool: Tool,
        call: ToolCall,
        context: ToolContext,
        attempts: Callable[[Tool, dict[str, Any], ToolContext], ToolResult],
        hooks: Hooks | None,
    ) -> ToolResult:
        """Apply hooks, caps and limits around the attempts of a call. Raises `ToolError`."""
        if self._has_no_rules and hooks is None:
            return attempts(tool, call.arguments, context)
        changed = call
        added: list[str] = []
        if hooks is not None:
            answer = hooks.before(call, context, added)
            if isinstance(answer, ToolResult):
                return hooks.with_context(answer, added) if added else answer
            changed = answer
        taken = [] if self._caps is None else self._caps.enter(call.name, context.cancelled)
        try:
            result = attempts(tool, changed.arguments, context)
        except ToolError as error:
            if hooks is None:
                raise
            result = error_result(error)
        finally:
            for cap in taken:
                cap.leave()
        if hooks is not None:
            if changed is not call:
                result = hooks.with_arguments(result, changed)
            result = hooks.after(changed, result, context)
        if self._overflow is not None:
            result = self._overflow.shown(call.name, call.id, result)
        return hooks.with_context(result, added) if hooks is not None and added else result

    def _failed(self, error: ToolError, hooks: Hooks | None) -> ToolResult:
        """Return the result for an error, marked with the hook that caused it."""
        hooks = hooks or self._hooks
        return error_result(error) if hooks is None else hooks.marked(error_result(error), error)

    def refused(
        self, call: ToolCall, context: ToolContext, hooks: Hooks | None = None
    ) -> ToolResult | None:
        """Return the immediate answer to a call that another process would run, None if the call
        may run.

        The answer is a validation error of the arguments or a hook's answer. The tool need not
        exist here. `hooks` as in `run`.
        """
        hooks = hooks or self._hooks
        try:
            if call.invalid:
                raise ToolError(f"{call.name!r} was not run: {call.invalid}", "validation")
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
            tool = self._catalogue.find(call.name)
            if tool is not None:
                checked(tool, call.arguments)
        except ToolError as error:
            return self._failed(error, hooks)
        return None

    def told(
        self, call: ToolCall, result: ToolResult, context: ToolContext, hooks: Hooks | None = None
    ) -> ToolResult:
        """Apply hooks and limits to a result that did not come from a call here, such as that of
        a tool's `reconcile`. `hooks` as in `run`."""
        hooks = hooks or self._hooks
        if hooks is None and self._overflow is None:
            return result
        try:
            if hooks is not None:
                result = hooks.after(call, result, context)
        except ToolError as error:
            return self._failed(error, hooks)
        return (
            result if self._overflow is None else self._overflow.shown(call.name, call.id, result)
        )

    def _attempt_once(
        self, tool: Tool, arguments: dict[str, Any], context: ToolContext, start: StartThread
    ) -> ToolResult:
        context.cancelled.raise_if_set()  # a hook or a wait may have taken long
        if tool.is_async:
            context.loop = self._submit
        return attempt(tool, checked(tool, arguments), context, start)

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a callback's coroutine on the loop thread, which lives until `close`."""
        with self._lock:
            if self._loop is None:
                from holdfast.tools.loop import LoopThread

                self._loop = LoopThread("holdfast-async")
            if not self._loop.inside():
                return self._loop.submit(work)
        work.close()
        raise ToolError(
            "An async tool called another one without await, and would wait for itself: use `await"
            " manager.acall(...)`.",
            retryable=False,
        )

    def __enter__(self) -> ToolManager:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def opened(self, runtime: object | None = None) -> None:
        """Register a conversation that uses these tools with this runtime. Several agents may
        share a manager."""
        with self._lock:
            self._conversations += 1
        self._use_folder(runtime, True)

    def closed(self, runtime: object | None = None) -> None:
        """Unregister a conversation. The last one closes all connections."""
        with self._lock:
            self._conversations -= 1
            last = not self._conversations
            self._close_pending = last and bool(self._calls)
            due = self._close_pending
        self._use_folder(runtime, False)
        if last and not due:
            self.close()

    def folders(self) -> tuple[str, ...]:
        """Return the working folders of the open conversations' runtimes, without duplicates.
        Services receive them as their roots."""
        return tuple(dict.fromkeys(self._folders))

    def _use_folder(self, runtime: object | None, opened: bool) -> None:
        workdir: object = getattr(runtime, "workdir", None)
        if not isinstance(workdir, str | PathLike):
            return
        folder = os.fspath(cast("str | PathLike[str]", workdir))
        before = self.folders()
        with self._lock:
            if opened:
                self._folders.append(folder)
            elif folder in self._folders:
                self._folders.remove(folder)
        if self._discovery is not None and before != self.folders():
            for source in self._discovery.sources.values():
                if isinstance(source, Rooted):
                    source.folders_changed()

    def close(self) -> None:
        """Close all connections and end the processes behind them. Idempotent; the next use
        connects again."""
        with self._lock:
            self._close_pending = False
            loop, self._loop = self._loop, None
        if self._discovery is not None:
            self._discovery.close()
        if loop is not None:
            loop.close()


def _patterns(argument: str, limit: Any) -> Mapping[str, int]:
    if isinstance(limit, Mapping):
        return cast("Mapping[str, int]", limit)
    if isinstance(limit, int) and not isinstance(limit, bool):
        return {"*": limit}
    raise ConfigurationError(
        f"ToolManager: {argument} takes a number, or a mapping of name patterns to numbers, not"
        f" {limit!r}."
    )


class _Unannounced(Exception):
    """A failure of the journal to announce an attempt; `error` does not concern the tool."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _as_tool(tool: Any) -> Tool:
    if isinstance(tool, Tool):
        return tool
    langchain = callable(getattr(tool, "invoke", None)) and isinstance(
        getattr(tool, "name", None), str
    )
    if callable(tool) and not langchain:
        return Tool.from_function(tool)
    hint = ""
    if langchain:
        hint = " It looks like a LangChain tool: give Tool.from_langchain(it)."
    elif hasattr(tool, "get_tools"):
        hint = " Give its tools, as in tools=[*runtime.tools]."
    elif hasattr(tool, "__iter__") and not isinstance(tool, str | bytes | dict):
        hint = " Give its members, as in tools=[*these, *those]."
    raise ConfigurationError(f"tools takes Tool objects or functions, not {tool!r}.{hint}")
