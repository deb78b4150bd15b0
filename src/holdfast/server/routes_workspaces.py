"""Workspaces over HTTP: folders on the server in which conversations work, with their files,
commands and tools."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

from fastapi import Path, Query, Request
from starlette.responses import Response, StreamingResponse

from holdfast.agent.serial_form import ToolForm
from holdfast.content import ToolCall, ToolResult
from holdfast.errors import ConfigurationError, PathRefused
from holdfast.runtime.clone import is_remote
from holdfast.runtime.folder import FolderRuntime
from holdfast.server import bodies
from holdfast.server.answers import answer
from holdfast.server.intake import SMALL_BODY_BYTES
from holdfast.server.routes import NAME, Key, Routes, WorkspaceId
from holdfast.server.workspace_files import archive, chunks, inside, list_entries, open_binary
from holdfast.tools import Tool, ToolContext, ToolManager
from holdfast.tools.context import Cancellation

_FILE = Annotated[
    str, Path(description="Relative to the workspace's folder.", examples=["src/app.py"])
]
_TEXT = {"type": "string"}


def add(routes: Routes) -> None:
    """Add the routes of workspaces."""
    routes = routes.under("/api/workspaces", "workspaces")
    service, host = routes.service, routes.service.host

    async def run_long(
        request: Request,
        workspace: str,
        key: str | None,
        data: bytes,
        work: Callable[[FolderRuntime, Cancellation], Any],
    ) -> Response:
        """Answer with the result of `work` in a workspace, done once per key."""
        tenant = service.caller(request).tenant

        def run(cancelled: Cancellation) -> Response:
            with host.workspace(tenant, workspace) as runtime:
                return answer(work(runtime, cancelled))

        return await service.long(request, key, data, run)

    @routes.get(
        "",
        "List the workspaces",
        answer_example={"workspaces": [{"id": "web", "folder": "/srv/web"}, {"id": "w-81d0"}]},
    )
    def list_workspaces(tenant: str) -> bodies.WorkspaceItems:
        """Lists the folders that the operator has named, then those of the server's own."""
        workspaces = host.workspaces.list(tenant)
        return bodies.WorkspaceItems(
            [bodies.WorkspaceItem(id, "" if path is None else str(path)) for id, path in workspaces]
        )

    @routes.post(
        "",
        "Create a workspace",
        example={"id": "w-81d0"},
        answer_example={"id": "w-81d0"},
        status=201,
        conflicts=True,
    )
    def create_workspace(tenant: str, body: bodies.WorkspaceRequest) -> bodies.Workspace:
        """Creates an empty folder. If a workspace with this id exists, it is left unchanged and
        the answer is 409."""
        return bodies.Workspace(host.workspaces.create(tenant, body.id))

    @routes.delete("/{workspace}", "Remove a workspace", conflicts=True)
    def delete_workspace(tenant: str, workspace: WorkspaceId) -> None:
        """Removes the workspace with all its files."""
        host.workspaces.delete(tenant, workspace)

    @routes.post(
        "/{workspace}/commands",
        "Run a command",
        takes=bodies.CommandRequest,
        example={"command": "ls -l", "timeout": 10},
        gives=ToolResult,
        answer_example={
            "content": [{"type": "text", "text": "total 0"}],
            "meta": {"exitCode": 0},
            "isError": False,
        },
        conflicts=True,
    )
    async def run_command(request: Request, workspace: WorkspaceId, key: Key = None) -> Response:
        """Answers when the command has ended. A broken connection cancels the command. With an
        `Idempotency-Key` it is cancelled only if the client does not repeat the request soon."""
        data = await service.body(request, SMALL_BODY_BYTES)
        body = await service.decode(request, data, bodies.CommandRequest)

        def run(runtime: FolderRuntime, cancelled: Cancellation) -> ToolResult:
            return runtime.run_command(
                body.command,
                body.timeout,
                conversation_id=body.conversation_id,
                cancelled=cancelled,
            )

        return await run_long(request, workspace, key, data, run)

    @routes.post(
        "/{workspace}/clone",
        "Clone a repository",
        takes=bodies.CloneRequest,
        example={"repo": "psf/requests"},
        gives=bodies.Cloned,
        answer_example={"path": "/srv/workspaces/w-81d0/requests"},
        conflicts=True,
    )
    async def clone_repository(
        request: Request, workspace: WorkspaceId, key: Key = None
    ) -> Response:
        """git cannot ask for credentials: put a token into the URL."""
        data = await service.body(request, SMALL_BODY_BYTES)
        body = await service.decode(request, data, bodies.CloneRequest)
        if not is_remote(body.repo):
            raise PathRefused(
                "The server clones no local path. Use 'owner/name' or a URL, or clone with a"
                " command."
            )

        def clone(runtime: FolderRuntime, _: Cancellation) -> bodies.Cloned:
            path = runtime.clone_repo(
                body.repo, branch=body.branch, target=body.target, timeout=body.timeout
            )
            return bodies.Cloned(str(path))

        return await run_long(request, workspace, key, data, clone)

    @routes.get(
        "/{workspace}/files/{path:path}",
        "Read a text file",
        answer_media_type="text/plain",
        schema=_TEXT,
        answer_example="print('hello')\n",
        tag="files",
    )
    async def read_file(request: Request, workspace: WorkspaceId, path: _FILE) -> Response:
        """Answers with the text in UTF-8, from any encoding of the file. Undecodable bytes are sent
        unchanged."""
        tenant = service.caller(request).tenant

        def read() -> bytes:
            with host.workspace(tenant, workspace) as runtime:
                return runtime.read_file(inside(path)).encode(errors="surrogateescape")

        return Response(await service.read(read), media_type="text/plain")

    @routes.put(
        "/{workspace}/files/{path:path}",
        "Write a text file",
        media_type="text/plain",
        example="print('hello')\n",
        gives=bodies.WrittenFile,
        answer_example={"bytes": 15},
        conflicts=True,
        tag="files",
    )
    async def write_file(request: Request, workspace: WorkspaceId, path: _FILE) -> Response:
        """Creates or overwrites the file atomically, and creates missing folders. The body is
        the text in UTF-8, with any media type."""
        data = await service.body(request)
        tenant = service.caller(request).tenant

        def write() -> None:
            with host.workspace(tenant, workspace) as runtime:
                runtime.write_file(inside(path), data.decode(errors="surrogateescape"))

        await service.change(write)
        return answer(bodies.WrittenFile(len(data)))

    @routes.get(
        "/{workspace}/entries",
        "List a folder of a workspace",
        answer_example={
            "path": "src",
            "entries": [
                {
                    "name": "app.py",
                    "kind": "file",
                    "size": 15,
                    "modified": "2026-11-21T10:00:00Z",
                }
            ],
            "more": 0,
        },
        tag="files",
    )
    def list_folder(
        tenant: str,
        workspace: WorkspaceId,
        path: Annotated[
            str, Query(max_length=4096, description="Relative to the workspace's folder.")
        ] = "",
    ) -> bodies.WorkspaceEntries:
        """Folders first, at most 2,000 entries. Links are not followed."""
        with host.workspace(tenant, workspace) as runtime:
            return list_entries(runtime, path)

    @routes.get(
        "/{workspace}/download/{path:path}",
        "Download a file",
        answer_media_type="application/octet-stream",
        schema={"type": "string", "format": "binary"},
        tag="files",
    )
    async def download_file(request: Request, workspace: WorkspaceId, path: _FILE) -> Response:
        """Answers with the file's unchanged bytes, of any kind and size."""
        tenant = service.caller(request).tenant

        def open_file() -> tuple[BinaryIO, int]:
            with host.workspace(tenant, workspace) as runtime:
                return open_binary(runtime, path)

        file, size = await service.read(open_file)
        name = quote(path.rpartition("/")[2], safe="")
        headers = {
            "Content-Length": str(size),
            "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
        }
        return StreamingResponse(
            chunks(file, size), headers=headers, media_type="application/octet-stream"
        )

    @routes.get(
        "/{workspace}/archive",
        "Download a folder",
        answer_media_type="application/x-tar",
        schema={"type": "string", "format": "binary"},
        tag="files",
    )
    async def download_folder(
        request: Request,
        workspace: WorkspaceId,
        path: Annotated[
            str, Query(max_length=4096, description="Relative to the workspace's folder.")
        ] = "",
    ) -> Response:
        """Answers with a tar file of everything below the folder, written while it is read. Links
        are kept as links and never followed."""
        tenant = service.caller(request).tenant

        def open_archive() -> Iterator[bytes]:
            with host.workspace(tenant, workspace) as runtime:
                return archive(runtime, path)

        blocks = await service.read(open_archive)
        headers = {"Content-Disposition": f'attachment; filename="{workspace}.tar"'}
        return StreamingResponse(blocks, headers=headers, media_type="application/x-tar")

    @routes.get("/{workspace}/microagents", "List the microagents of a folder")
    def list_microagents(
        tenant: str,
        workspace: WorkspaceId,
        folder: Annotated[
            str | None, Query(max_length=4096, description="Default: the workspace's folder.")
        ] = None,
    ) -> bodies.Microagents:
        """Lists the microagents and skills of a folder."""
        with host.workspace(tenant, workspace) as runtime:
            path = None if folder is None else runtime.paths.resolve(inside(folder))
            if path is not None and not path.is_dir():
                label = runtime.paths.label(path)  # not the server's own path
                raise ConfigurationError(
                    f"load_microagents takes a folder; there is none: {label}."
                )
            return bodies.Microagents(runtime.load_microagents(path))

    @routes.get("/{workspace}/tools", "List the tools of a workspace", slow=True)
    def list_tools(tenant: str, workspace: WorkspaceId) -> bodies.Tools:
        """Lists the tools that a workspace gives to an agent."""
        with host.workspace(tenant, workspace) as runtime:
            return bodies.Tools([_form(tool) for tool in runtime.tools])

    @routes.post(
        "/{workspace}/tools/{name}",
        "Call a tool of a workspace",
        takes=bodies.CallRequest,
        example={"arguments": {"pattern": "TODO"}},
        gives=ToolResult,
        conflicts=True,
    )
    async def call_tool(
        request: Request,
        workspace: WorkspaceId,
        name: Annotated[str, Path(pattern=NAME, examples=["grep"])],
        key: Key = None,
    ) -> Response:
        """A failed call is answered as a result with `isError`."""
        data = await service.body(request)
        body = await service.decode(request, data, bodies.CallRequest)

        def call(runtime: FolderRuntime, cancelled: Cancellation) -> ToolResult:
            manager = ToolManager(runtime.tools)
            manager.get(name)  # an unknown tool is answered with 404, not with a result
            context = ToolContext(body.conversation_id, cancelled=cancelled, runtime=runtime)
            return manager.run(ToolCall("", name, body.arguments), context)

        return await run_long(request, workspace, key, data, call)


def _form(tool: Tool) -> ToolForm:
    return ToolForm(
        name=tool.name,
        input_schema=tool.input_schema,
        description=tool.description,
        output_schema=tool.output_schema,
        annotations=tool.annotations,
        category=tool.category,
        timeout=tool.timeout,
        module="holdfast.runtime",
        parallel=tool.parallel,
    )
