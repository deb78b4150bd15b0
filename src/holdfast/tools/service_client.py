"""The common part of `MCPClient` and `A2AClient`: reading their configuration, and their tools."""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Generic, Self, TypeVar, cast

import msgspec

from holdfast.errors import ConfigurationError, ToolError
from holdfast.tools.arguments import is_number, wrong
from holdfast.tools.document import did_you_mean
from holdfast.tools.names import wire_name
from holdfast.tools.sources import SourceHealth
from holdfast.tools.tool import Tool

# No dot, because a dot separates service and tool in a tool's name.
_SERVICE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

Discovered = tuple[list[Tool], dict[str, str]]
"""The tools of a discovery, and the reasons of unusable tools by name."""


class ServiceSource(ABC):
    """One service of a client, as a `Source` whose discovery can be started without waiting."""

    label: str
    """The kind of service in errors, such as "MCP server"."""
    id: str

    @abstractmethod
    def begin_discovery(self) -> Future[Any]:
        """Start to ask the service. Raises `ToolError`."""

    @abstractmethod
    def discovered(self, future: Future[Any]) -> Discovered:
        """Wait for the answer. Raises `ToolError`."""

    @abstractmethod
    def begin_check(self) -> Future[str]:
        """Start to check that the service answers, with a description of it. Raises `ToolError`."""

    def discover(self) -> list[Tool]:
        """Connect if necessary, ask the service for its tools, and return them. An unusable tool is
        left out, with a warning in the log. Raises `ToolError`."""
        tools, unusable = self.discovered(self.begin_discovery())
        _warn(type(self).__module__, unusable)
        return tools

    def health(self, timeout: float) -> SourceHealth:
        """Check that the service answers within `timeout` seconds. Does not raise."""
        started, ok = time.monotonic(), False
        try:
            future = self.begin_check()
            try:
                detail, ok = future.result(timeout), True
            finally:
                future.cancel()
        except CancelledError:
            detail = f"{self.label} {self.id!r}: the client was closed before it answered."
        except Exception as error:
            detail = str(error) or f"{self.label} {self.id!r} did not answer within {timeout:g} s."
        return SourceHealth(self.id, ok, time.monotonic() - started, detail)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


SourceT = TypeVar("SourceT", bound=ServiceSource)


class ServiceClient(ABC, Generic[SourceT]):
    """A client of several services, whose kind is `label`. Thread-safe; usable again after
    `close`."""

    label: str

    def __init__(self, sources: Mapping[str, SourceT]) -> None:
        self._sources = dict(sources)
        self.errors: dict[str, str] = {}
        self._lock = threading.Lock()  # guards the two fields below
        self._tools: list[Tool] | None = None
        self._closes = 0  # tools that were discovered before a close are not kept after it
        self._discovery = threading.Lock()  # one thread discovers; the others wait for it

    def sources(self) -> list[SourceT]:
        """Return each service as a `Source` for a `ToolManager`, in the order of the config. Does
        not connect. The sources share this client's connections. Closing a source, or the client,
        closes its connection."""
        return list(self._sources.values())

    def tools(self) -> list[Tool]:
        """Return the tools of all reachable services, in order. The first use connects."""
        with self._discovery:
            with self._lock:
                tools, closes = self._tools, self._closes
            if tools is None:
                tools, errors = self._discover()
                _warn(type(self).__module__, errors)
                with self._lock:
                    self.errors = errors
                    if self._closes == closes:
                        self._tools = tools
            return list(tools)

    def _discover(self) -> Discovered:
        """Ask all services at once."""
        pending: dict[str, Callable[[], Discovered]] = {}
        tools: dict[str, Tool] = {}
        errors: dict[str, str] = {}
        for source in self._sources.values():
            try:
                pending[source.id] = partial(source.discovered, source.begin_discovery())
            except ToolError as error:  # the connection is closing
                errors[source.id] = str(error)
        for id, discovered in pending.items():
            try:
                usable, unusable = discovered()
            except ToolError as error:
                errors[id] = str(error)
                continue
            errors |= unusable
            errors |= add_distinct(tools, usable, f"{self.label} {id!r}")
        return list(tools.values()), errors

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools())

    @abstractmethod
    def _disconnect(self) -> None: ...

    def close(self) -> None:
        """Close all connections and server processes at the same time, within some seconds. A
        connection of a pool stays open while another client holds it. Idempotent; the next use
        connects again."""
        with self._lock:
            self._tools = None
            self._closes += 1
        self._disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._sources)})"


def _warn(module: str, reasons: Mapping[str, str]) -> None:
    for reason in reasons.values():
        logging.getLogger(module).warning("%s", reason)


def add_distinct(tools: dict[str, Tool], more: Iterable[Tool], what: str) -> dict[str, str]:
    """Add the tools of the service `what` by wire name. Returns the reasons of tools that are left
    out: an agent would refuse all tools because of one duplicate name."""
    return {
        tool.name: f"{what}: {tool.name!r} is left out: its name is taken by another tool."
        for tool in more
        if tools.setdefault(wire_name(tool.name), tool) is not tool
    }


# --- configuration ---


def check_service_id(what: str, name: Any) -> str:
    """Return a service's id. Raises `ConfigurationError` for an invalid one."""
    if not isinstance(name, str) or not _SERVICE_ID.fullmatch(name):
        raise ConfigurationError(
            f"{what} {name!r}: an id takes 1 to 64 letters, digits, '_' or '-'."
        )
    return name


def read_entry(
    what: str, entry: Mapping[Any, Any], kind: type[msgspec.Struct], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of one service over `defaults`, checked key by key against `kind`. Raises
    `ConfigurationError`, which names the service `what` and the wrong key."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values = dict(defaults)
    for key, value in entry.items():
        if key not in fields:
            hint = did_you_mean(str(key), fields)
            raise ConfigurationError(
                f"{what} has an unknown key {key!r}.{hint} It takes: {', '.join(fields)}."
            )
        if isinstance(value, os.PathLike):
            value = os.fspath(cast("os.PathLike[str]", value))
        try:
            values[key] = msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError as error:
            # The message names types and never shows the value, which may be secret.
            raise ConfigurationError(f"{what}: {key}: {error}.") from None
        if key in ("timeout", "call_timeout") and values[key] is not None:
            seconds(f"{what}: {key}", values[key])
    return values


def seconds(name: str, value: Any) -> float:
    """Return a number of seconds above 0. Raises `ConfigurationError` beginning with `name`."""
    if not is_number(value) or not 0 < value < math.inf:
        raise wrong(name, "a number of seconds above 0", value)
    return value
