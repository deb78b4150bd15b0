"""`RemoteWorkspace`: a working directory on an agent server, like a `LocalRuntime`."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from holdfast.content import ToolResult
from holdfast.conversation.observer import Observing, observers
from holdfast.errors import (
    Cancelled,
    ConfigurationError,
    Conflict,
    HoldfastError,
    RuntimeFault,
    ToolCancelled,
)
from holdfast.llm.http import Response
from holdfast.remote.failures import as_fault
from holdfast.remote.server_client import UNEXPECTED_ANSWER, Found, ServerClient
from holdfast.runtime.microagents import Microagent
from holdfast.tools import Tool, ToolAnnotations, ToolContext
from holdfast.tools.json_values import copy_json

if TYPE_CHECKING:
    import ssl

    from holdfast.tools import Cancellation

_log = logging.getLogger("holdfast.remote")

_REMOVAL_SECONDS = 5.0  # seconds to remove the workspace in `close`
MAX_COMMAND_SECONDS = 3600.0  # seconds that a command may take under the server's own timeout
BUILTIN = "holdfast.runtime"  # the module of a runtime's own tools, which every server has


class RemoteWorkspace:
    """An agent server and a working directory there, for `RemoteConversation` and for a program's
    own commands and files.

    Thread-safe; a context manager. The constructor sends no request. Raises `ConfigurationError` (a
    `ValueError`) that names the argument that does not fit. The methods raise the errors of
    `LocalRuntime`, and `RuntimeFault` if the server cannot be reached.

    Args:
        url: The server's address, which may end in a path.
        key: The key that `holdfast serve` printed or was given.
        id: Names a workspace that is created if missing, and kept. None makes one at the first use,
            which `close` removes.
        timeout: Seconds after which an undelivered request is given up, over all its attempts. The
            time that a command runs is extra.
        connect_timeout: Seconds for each connection.
        verify: False accepts any certificate of an https server.
        ssl_context: For your own certificates.
        observer: Adds its trace headers to each request (`holdfast.observe.Telemetry`).
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        id: str | None = None,
        timeout: float = 60.0,
        connect_timeout: float = 10.0,
        verify: bool = True,
        ssl_context: ssl.SSLContext | None = None,
        observer: Observing = None,
    ) -> None:
        for name, value in (("timeout", timeout), ("connect_timeout", connect_timeout)):
            if not isinstance(value, int | float) or not value > 0:  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
                what = f"{name} takes seconds, more than 0, not {value!r}"
                raise ConfigurationError(f"RemoteWorkspace: {what}.")
        if id is not None and (not isinstance(id, str) or not id.strip()):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            what = f"id takes a non-empty str or None, not {id!r}"
            raise ConfigurationError(f"RemoteWorkspace: {what}.")
        if not verify and ssl_context is None:
            import ssl

            ssl_context = ssl.create_default_context()
            ssl_context.check_hostname = False
            ssl_context.verify_mode = ssl.CERT_NONE
        observing = observers("RemoteWorkspace: observer", observer)
        self.link = ServerClient(url, key, (connect_timeout, timeout), ssl_context, observing)
        self.id = id
        self._keep_on_close = id is not None
        self._open = False
        self._closed = False
        self._lock = threading.Lock()
        self._random_id = os.urandom(16).hex()
        self._tools: list[RemoteTool] | None = None

    @property
    def url(self) -> str:
        """The server's address."""
        return self.link.address

    def made(self) -> str:
        """Return the id of the workspace, and create it on the server if needed."""
        with self._lock:
            if self._closed:
                raise Conflict(f"{self!r} is closed; make another one.")
            if not self._open:
                # named here, so that a retry creates no second one
                id = self.id or f"w-{self._random_id}"
                try:
                    self.link.request("POST", "/api/workspaces", {"id": id})
                except Conflict:
                    pass  # the workspace exists already
                except HoldfastError as error:
                    raise as_fault(error) from error.__cause__
                self.id, self._open = id, True
            assert self.id is not None
            return self.id

    def adopt(self, id: str) -> None:
        """Use the workspace of an existing conversation, which `close` keeps, if this has none."""
        with self._lock:
            if id and self.id is None and not self._closed:
                self.id, self._open, self._keep_on_close = id, True, True

    def keep(self) -> None:
        """Make `close` leave the workspace on the server."""
        self._keep_on_close = True

    # --- for programs ---

    def run_command(
        self,
        command: str,
        timeout: float | None = None,
        *,
        conversation_id: str = "",
        cancelled: Cancellation | None = None,
    ) -> ToolResult:
        """Run a command in the conversation's shell there, like `LocalRuntime.run_command`."""
        body = _without_none(
            command=command, timeout=timeout, conversationId=conversation_id or None
        )
        # seconds to end the command's processes
        patience = MAX_COMMAND_SECONDS if timeout is None else timeout + 30.0
        try:
            answer = self._ask("POST", "/commands", body, patience=patience, cancelled=cancelled)
        except Cancelled:
            return ToolResult.failure(
                "The command was cancelled; its effect may have happened.", "cancelled"
            )
        return self._read(ToolResult.from_json, answer)

    def read_file(self, path: str | os.PathLike[str]) -> str:
        """Return a text file's content, like `LocalRuntime.read_file`. Raises `RuntimeFault` (a
        `FileNotFoundError` if it is missing), `PathRefused`."""
        return self._ask("GET", _file(path)).read().decode("utf-8", "surrogateescape")

    def write_file(self, path: str | os.PathLike[str], text: str) -> None:
        """Create or overwrite a text file, like `LocalRuntime.write_file`. Raises
        `RuntimeFault`, `PathRefused`."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"write_file: text takes a str, not {type(text).__name__}.")
        self._ask("PUT", _file(path), raw=text.encode("utf-8", "surrogateescape"))

    def clone_repo(
        self,
        repo: str,
        *,
        branch: str | None = None,
        target: str | os.PathLike[str] | None = None,
        timeout: float = 600.0,
    ) -> Path:
        """Clone a repository on the server, like `LocalRuntime.clone_repo`, and return the
        folder there. Raises `RuntimeFault` with git's message."""
        folder = None if target is None else os.fspath(target)
        body = _without_none(repo=repo, branch=branch, target=folder, timeout=timeout)
        answer = self._ask("POST", "/clone", body, patience=timeout + 30.0)
        return Path(PurePosixPath(self._read(msgspec.json.Decoder(_Cloned).decode, answer).path))

    def load_microagents(self, folder: str | os.PathLike[str] | None = None) -> list[Microagent]:
        """Return the microagents there, like `LocalRuntime.load_microagents`."""
        query = {"folder": None if folder is None else os.fspath(folder)}
        answer = self._ask("GET", "/microagents", query=query)
        return self._read(msgspec.json.Decoder(_Microagents).decode, answer).microagents

    # --- for agents ---

    @property
    def tools(self) -> list[Tool]:
        """The tools that a model uses there, in a new list; the server is asked once."""
        if self._tools is None:
            reply = self._read(msgspec.json.Decoder(_Tools).decode, self._ask("GET", "/tools"))
            self._tools = [RemoteTool(self, one) for one in reply.tools]
        return list(self._tools)

    def get_tools(self) -> list[Tool]:
        """Return the same as `tools`."""
        return self.tools

    def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        conversation_id: str = "",
        cancelled: Cancellation | None = None,
    ) -> ToolResult:
        """Run one of the workspace's tools there. Raises `ToolError`, `Cancelled`."""
        body = _without_none(arguments=arguments, conversationId=conversation_id or None)
        path, patience = f"/tools/{quote(name, safe='')}", MAX_COMMAND_SECONDS
        answer = self._ask("POST", path, body, patience=patience, cancelled=cancelled)
        return self._read(ToolResult.from_json, answer)

    # --- closing ---

    def process_groups(self) -> list[int]:
        """Return no process group: the server runs the workspace's processes."""
        return []

    def close(self) -> None:
        """Close the connections, and remove a workspace that has no id of your own, with its files
        and shells.

        The workspace is kept if a conversation that continues there was detached. Idempotent. A
        removal that fails within 5 seconds is a warning in the log. Does nothing in a forked child.
        """
        if not self.link.owner.here:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            remove = self._open and not self._keep_on_close
        try:
            if remove:
                path = f"/api/workspaces/{quote(self.id or '', safe='')}"
                self.link.request("DELETE", path, timeout=min(_REMOVAL_SECONDS, self.link.timeout))
        except HoldfastError as error:
            # not raised: the `with` block may be ending with an error of its own
            _log.warning("workspace %s was not removed from the agent server: %s", self.id, error)
        finally:
            self.link.close()

    def __enter__(self) -> RemoteWorkspace:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemoteWorkspace({self.url!r}, id={self.id!r})"

    def __reduce__(self) -> Any:
        raise TypeError(
            "A RemoteWorkspace holds its server's key and is not pickled; make another"
            " RemoteWorkspace(url, key, id=...) there."
        )

    def _read(self, decode: Callable[[bytes], Found], answer: Response) -> Found:
        try:
            return decode(answer.read())
        except (ValueError, RecursionError) as error:
            raise RuntimeFault(f"{self.url} {UNEXPECTED_ANSWER.format(error)}") from error

    def _ask(self, method: str, path: str, body: Any = None, **options: Any) -> Response:
        """Send a request about the workspace, with the options of `ServerClient.request`."""
        where = f"/api/workspaces/{quote(self.made(), safe='')}{path}"
        try:
            return self.link.request(method, where, body, **options)
        except HoldfastError as error:
            fault = as_fault(error)
            if fault is error:
                raise
            raise fault from error.__cause__


class Described(msgspec.Struct, frozen=True, rename="camel"):
    """The server's description of a tool."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] | None = None
    annotations: ToolAnnotations = ToolAnnotations()
    category: str = "general"
    timeout: float | None = None


class RemoteTool(Tool):
    """One tool of a `RemoteWorkspace`. In a `RemoteConversation` of that workspace the server
    runs it itself; anywhere else a call is an HTTP request."""

    tool_type = "local_function"
    untrusted = True

    def __init__(self, workspace: RemoteWorkspace, described: Described) -> None:
        super().__init__(
            described.name,
            described.description,
            None,
            described.input_schema or {"type": "object", "properties": {}},
            described.output_schema,
            described.annotations,
            described.category,
            described.timeout,
        )
        self.module_qualname = f"{BUILTIN}.builtin"
        self.workspace = workspace
        self._schema_there = described.input_schema or super().input_schema

    @property
    def input_schema(self) -> dict[str, Any]:
        """The server's schema, unchanged, so that conversations share a provider's cache."""
        return copy_json(self._schema_there)

    def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Run the tool in the workspace. Raises `ToolCancelled`, and the server's errors."""
        try:
            return self.workspace.call_tool(
                self.name,
                arguments,
                conversation_id=context.conversation_id,
                cancelled=context.cancelled,
            )
        except Cancelled:
            text = f"{self.name!r} was cancelled; its effect may have happened."
            raise ToolCancelled(text) from None


class _Cloned(msgspec.Struct):
    path: str


class _Microagents(msgspec.Struct):
    microagents: list[Microagent]


class _Tools(msgspec.Struct):
    tools: list[Described]


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _file(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not isinstance(text, str) or not text:  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
        raise ConfigurationError(f"path takes the path of a file in the workspace, not {path!r}.")
    head, rest = ("%2F", text[1:]) if text.startswith("/") else ("", text)
    return f"/files/{head}{quote(rest)}"
