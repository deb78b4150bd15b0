"""Workspaces over HTTP: folders on the server in which conversations work, with their files,
commands and tools."""

from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from holdfast.agent.form import ToolForm
from holdfast.content import ToolCall, ToolResult
from holdfast.errors import PathRefused
from holdfast.runtime.clone import is_remote
from holdfast.server.answers import answer
from holdfast.server.bodies import (
    CallRequest,
    Cloned,
    CloneRequest,
    CommandRequest,
    Microagents,
    Tools,
    Workspace,
    WorkspaceRequest,
    Written,
)
from holdfast.server.intake import SMALL_BODY_BYTES
from holdfast.server.routes import NAME, Key, Routes, WorkspaceId
from holdfast.tools.context import Cancellation

_FILE = Annotated[
    str, Path(description="Relative to the workspace's folder.", examples=["src/app.py"])
]
_TEXT = {"type": "string"}


def add(routes: Routes) -> None:
    """Add the routes of workspaces."""
    service, host = routes.service, routes.service.host

    @routes.add(
        "POST",
        "/api/workspaces",
        "Create a workspace",
        takes=WorkspaceRequest,
        example={"id": "w-81d0"},
        gives=Workspace,
        gave={"id": "w-81d0"},
        status=201,
        also=(409, 503),
        tag="workspaces",
    )
    async def create_workspace(request: Request) -> Response:
        """Creates an empty folder. If a workspace with this id exists, it is left unchanged and
        the answer is 409."""
        body = await service.json(request, WorkspaceRequest)
        return answer(
            Workspace(
                await service.change(host.workspace_create, service.caller(request).tenant, body.id)
            ),
            201,
        )

    @routes.add(
        "DELETE",
        "/api/workspaces/{workspace}",
        "Remove a workspace",
        status=204,
        also=(404, 409, 422, 503),
        tag="workspaces",
    )
    async def delete_workspace(request: Request, workspace: WorkspaceId) -> Response:
        """Removes the workspace with all its files."""
        await service.change(host.workspace_delete, service.caller(request).tenant, workspace)
        return Response(status_code=204)

    @routes.add(
        "POST",
        "/api/workspaces/{workspace}/commands",
        "Run a command",
        takes=CommandRequest,
        example={"command": "ls -l", "timeout": 10},
        gives=ToolResult,
        gave={
            "content": [{"type": "text", "text": "total 0"}],
            "meta": {"exitCode": 0},
            "isError": False,
        },
        also=(404, 409, 503),
        tag="workspaces",
    )
    async def run_command(request: Request, workspace: WorkspaceId, key: Key = None) -> Response:
        """Answers when the command has ended. A broken connection cancels the command. With an
        `Idempotency-Key` it is cancelled only if the client does not repeat the request soon."""
        data = await service.body(request, SMALL_BODY_BYTES)
        body = await service.decode(request, data, CommandRequest)
        tenant = service.caller(request).tenant

        def run(cancelled: Cancellation) -> Response:
            with host.workspace(tenant, workspace) as runtime:
                return answer(
                    runtime.run_command(
                        body.command,
                        body.timeout,
                        conversation_id=body.conversation_id,
                        cancelled=cancelled,
                    )
                )

        return await service.long(request, key, data, run)

    @routes.add(
        "POST",
        "/api/workspaces/{workspace}/clone",
        "Clone a repository",
        takes=CloneRequest,
        example={"repo": "psf/requests"},
        gives=Cloned,
        gave={"path": "/srv/workspaces/w-81d0/requests"},
        also=(404, 409, 503),
        tag="workspaces",
    )
    async def clone_repository(
        request: Request, workspace: WorkspaceId, key: Key = None
    ) -> Response:
        """git cannot ask for credentials: put a token into the URL."""
        data = await service.body(request, SMALL_BODY_BYTES)
        body = await service.decode(request, data, CloneRequest)
        tenant = service.caller(request).tenant
        if not is_remote(body.repo):
            raise PathRefused(
                "The server clones no local path. Use 'owner/name' or a URL, or clone with a"
                " command."
            )

        def clone(_: Cancellation) -> Response:
            with host.workspace(tenant, workspace) as runtime:
                return answer(
                    Cloned(
                        str(
                            runtime.clone_repo(
                                body.repo,
                                branch=body.branch,
                                target=body.target,
                                timeout=body.timeout,
                            )
                        )
                    )
                )

        return await service.long(request, key, data, clone)

    @routes.add(
        "GET",
        "/api/workspaces/{workspace}/files/{path:path}",
        "Read a text file",
        given="text/plain",
        schema=_TEXT,
        gave="print('hello')\n",
        also=(404, 422, 503),
        tag="files",
    )
    async def read_file(request: Request, workspace: WorkspaceId, path: _FILE) -> Response:
        """Answers with the text in UTF-8, whatever the file's encoding. Undecodable bytes are
        sent unchanged."""
        tenant = service.caller(request).tenant

        def read() -> bytes:
            with host.workspace(tenant, workspace) as runtime:
                return runtime.read_file(_inside(path)).encode(errors="surrogateescape")

        return Response(await service.read(read), media_type="text/plain")

    @routes.add(
        "PUT",
        "/api/workspaces/{workspace}/files/{path:path}",
        "Write a text file",
        media_type="text/plain",
        example="print('hello')\n",
        gives=Written,
        gave={"bytes": 15},
        also=(404, 409, 422, 503),
        tag="files",
    )
    async def write_file(request: Request, workspace: WorkspaceId, path: _FILE) -> Response:
        """Creates or overwrites the file atomically, and creates missing folders. The body is
        the text in UTF-8, with any media type."""
        data = await service.body(request)
        tenant = service.caller(request).tenant

        def write() -> None:
            with host.workspace(tenant, workspace) as runtime:
                runtime.write_file(_inside(path), data.decode(errors="surrogateescape"))

        await service.change(write)
        return answer(Written(len(data)))

    @routes.add(
        "GET",
        "/api/workspaces/{workspace}/microagents",
        "List the microagents of a folder",
        gives=Microagents,
        also=(404, 422, 503),
        tag="workspaces",
    )
    async def list_microagents(
        request: Request,
        workspace: WorkspaceId,
        folder: Annotated[
            str | None, Query(max_length=4096, description="Default: the workspace's folder.")
        ] = None,
    ) -> Response:
        """Lists the microagents and skills of a folder."""
        tenant = service.caller(request).tenant

        def load() -> Response:
            with host.workspace(tenant, workspace) as runtime:
                where = None if folder is None else runtime.paths.resolve(_inside(folder))
                return answer(Microagents(runtime.load_microagents(where)))

        return await service.read(load)

    @routes.add(
        "GET",
        "/api/workspaces/{workspace}/tools",
        "List the tools of a workspace",
        gives=Tools,
        also=(404, 422, 503),
        tag="workspaces",
    )
    async def list_tools(request: Request, workspace: WorkspaceId) -> Response:
        """Lists the tools that a workspace gives to an agent."""
        tenant = service.caller(request).tenant

        def tools() -> Response:
            with host.workspace(tenant, workspace) as runtime:
                found = [
                    ToolForm(
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
                    for tool in runtime.tools
                ]
            return answer(Tools(found))

        return await service.change(tools)

    @routes.add(
        "POST",
        "/api/workspaces/{workspace}/tools/{name}",
        "Call a tool of a workspace",
        takes=CallRequest,
        example={"arguments": {"pattern": "TODO"}},
        gives=ToolResult,
        also=(404, 409, 503),
        tag="workspaces",
    )
    async def call_tool(
        request: Request,
        workspace: WorkspaceId,
        name: Annotated[str, Path(pattern=NAME, examples=["grep"])],
        key: Key = None,
    ) -> Response:
        """A failed call is answered as a result with `isError`."""
        data = await service.body(request)
        body = await service.decode(request, data, CallRequest)
        tenant = service.caller(request).tenant

        def call(cancelled: Cancellation) -> Response:
            from holdfast.tools import ToolContext, ToolManager

            with host.workspace(tenant, workspace) as runtime:
                manager = ToolManager(runtime.tools)
                manager.get(name)  # an unknown tool is answered with 404, not with a result
                context = ToolContext(body.conversation_id, cancelled=cancelled, runtime=runtime)
                return answer(manager.run(ToolCall("", name, body.arguments), context))

        return await service.long(request, key, data, call)


def _inside(path: str) -> str:
    """Return a path in the form that the runtime takes. A leading `~` is not expanded, because
    the server's home belongs to no client."""
    if path.startswith("~"):
        return "./" + path
    return path
