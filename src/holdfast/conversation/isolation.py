"""Children that work in a folder of their own: their runtimes, and the report of their changes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import msgspec

from holdfast.conversation.children import runtime_of
from holdfast.errors import RuntimeFault, ToolError
from holdfast.object_struct import ObjectStruct
from holdfast.runtime.local import LocalRuntime
from holdfast.runtime.own_folder import OwnFolder

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent
    from holdfast.agent.delegation import Isolation

_MAX_SHOWN_CHARS = 20_000  # of a patch in a result; the whole is in a file


def folder_of(agent: Agent, runtime: object, id: str) -> OwnFolder | None:
    """Return the folder of a child in the runtime of its agent, or of its parent; None if it has
    none. Raises `ToolError`."""
    folder = OwnFolder(_local(agent, runtime), id)
    return folder if folder.exists else None


class ChildFolders(ObjectStruct):
    """The folders of one conversation's children, and the runtimes that are open in them.
    Thread-safe."""

    _runtime: object | None  # of the parent
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _folders: dict[str, OwnFolder] = {}
    _open: dict[str, tuple[Agent, LocalRuntime]] = {}

    def open(self, agent: Agent, id: str, kind: Isolation) -> tuple[Agent, LocalRuntime]:
        """Return the agent with the tools of the child's own folder, and their runtime. The folder
        is made unless it exists. Raises `ToolError`."""
        with self._lock:
            if id in self._open:
                return self._open[id]
            origin = _local(agent, self._runtime)
            folder = self._folders[id] = OwnFolder(origin, id)
            try:
                folder.make(kind)
                runtime = origin.at(folder.workdir, folder.variables)
            except RuntimeFault as error:
                raise ToolError(str(error), "validation", retryable=False) from error
            self._open[id] = pair = _relocate(agent, origin, runtime), runtime
            return pair

    def close(self, id: str) -> None:
        """Close the runtime of a child that was closed, and remove a folder without changes."""
        with self._lock:
            entry = self._open.pop(id, None)
        if entry is not None:
            entry[1].close()
            self.report(id)

    def report(self, id: str) -> str:
        """Return the text about a child's changes, "" without changes. A folder without changes is
        removed."""
        with self._lock:
            folder = self._folders.get(id)
        if folder is None or not folder.exists:
            return ""
        try:
            changes = folder.changes()
        except RuntimeFault as error:
            return f"\n\nIts changes cannot be read: {error}"
        if not changes.files and not changes.stays:
            with self._lock:
                at_work = id in self._open
            if not at_work:
                folder.drop()
            return ""
        patch = changes.patch
        if len(patch) > _MAX_SHOWN_CHARS:
            patch = f"{patch[:_MAX_SHOWN_CHARS]}\n... The whole patch is in {folder.patch_file}.\n"
        notes = "".join(f"{line}\n" for line in changes.notes)
        return (
            f"\n\nIt worked in a folder of its own. Its changes of {len(changes.files)} files are"
            f" not in yours: delegate_apply takes them over, delegate_drop throws them away.\n"
            f"{notes}{patch}"
        ).rstrip("\n")


def _local(agent: Agent, runtime: object | None) -> LocalRuntime:
    """Return the runtime whose folder a child gets a version of. Raises `ToolError`."""
    origin = runtime_of(agent) or runtime
    if isinstance(origin, LocalRuntime):
        return origin
    has = "there is no runtime" if origin is None else f"this one is a {type(origin).__name__}"
    raise ToolError(
        f"A folder of its own (isolation) needs a LocalRuntime, and {has}: git and the copy would"
        " work outside of a sandbox. Give that agent a runtime of its own instead.",
        "validation",
        retryable=False,
    )


def _relocate(agent: Agent, origin: LocalRuntime, runtime: LocalRuntime) -> Agent:
    """Return the agent with its tools of one runtime replaced by those of another."""
    there = {tool.name: tool for tool in runtime.all_tools}
    tools = [
        there.get(tool.name, tool) if tool.runtime is origin else tool for tool in agent.own_tools()
    ]
    return agent.replace(tools=agent.tools.with_other_tools(tools))
