"""Workspaces over HTTP: folders on the server in which conversations work, their files, commands and tools."""

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

_FILE = Annotated[str, Path(description="From the workspace's folder.", examples=["src/app.py"])]
_TEXT = {"type": "string"}


def add(routes: Routes) -> None:
    """Add them."""
    service, host = routes.service, routes.service.host

    @routes.add(
        "POST", "/api/workspaces", "Make a workspace", takes=WorkspaceRequest, example={"id": "w-81d0"}, gives=Workspace, gave={"id": "w-81d0"},
        status=201, also=(409, 503), tag="workspaces",
    )  # fmt: skip
    async def create_workspace(request: Request) -> Response:
        """An empty folder. One of that id that is there already stays as it is."""
        body = await service.json(request, WorkspaceRequest)
        return answer(Workspace(await service.change(host.workspace_create, service.caller(request).tenant, body.id)), 201)

    @routes.add("DELETE", "/api/workspaces/{workspace}", "Remove a workspace", status=204, also=(404, 409, 422, 503), tag="workspaces")
    async def delete_workspace(request: Request, workspace: WorkspaceId) -> Response:
        """With all its files."""
        await service.change(host.workspace_delete, service.caller(request).tenant, workspace)
        return Response(status_code=204)

    @routes.add(
        "POST", "/api/workspaces/{workspace}/commands", "Run a command", takes=CommandRequest, example={"command": "ls -l", "timeout": 10},
        gives=ToolResult, gave={"content": [{"type": "text", "text": "total 0"}], "meta": {"exitCode": 0}, "isError": False},
        also=(404, 409, 503), tag="workspaces",
    )  # fmt: skip
    async def run_command(request: Request, workspace: WorkspaceId, key: Key = None) -> Response:
        """Answered when it has ended. If the connection breaks it is cancelled, with an `Idempotency-Key` only if nobody asks again soon."""
        data = await service.body(request, SMALL_BODY_BYTES)
        body = await service.decode(request, data, CommandRequest)
        tenant = service.caller(request).tenant

        def run(cancelled: Cancellation) -> Response:
            with host.workspace(tenant, workspace) as runtime:
                return answer(runtime.run_command(body.command, body.timeout, conversation_id=body.conversation_id, cancelled=cancelled))

        return await service.long(request, key, data, run)

    @routes.add(
        "POST", "/api/workspaces/{workspace}/clone", "Clone a repository", takes=CloneRequest, example={"repo": "psf/requests"}, gives=Cloned,
        gave={"path": "/srv/workspaces/w-81d0/requests"}, also=(404, 409, 503), tag="workspaces",
    )  # fmt: skip
    async def clone_repository(request: Request, workspace: WorkspaceId, key: Key = None) -> Response:
        """git asks for nothing: put a token into the URL."""
        data = await service.body(request, SMALL_BODY_BYTES)
        body = await service.decode(request, data, CloneRequest)
        tenant = service.caller(request).tenant
        if not is_remote(body.repo):
            raise PathRefused("A path is not cloned by the server; give 'owner/name' or a URL, or clone it with a command.")

        def clone(_: Cancellation) -> Response:
            with host.workspace(tenant, workspace) as runtime:
                return answer(Cloned(str(runtime.clone_repo(body.repo, branch=body.branch, target=body.target, timeout=body.timeout))))

        return await service.long(request, key, data, clone)

    @routes.add(
        "GET", "/api/workspaces/{workspace}/files/{path:path}", "A text file", given="text/plain", schema=_TEXT, gave="print('hello')\n",
        also=(404, 422, 503), tag="files",
    )  # fmt: skip
    async def read_file(request: Request, workspace: WorkspaceId, path: _FILE) -> Response:
        """As UTF-8, whatever it is in; bytes that are no character come as they are."""
        tenant = service.caller(request).tenant

        def read() -> bytes:
            with host.workspace(tenant, workspace) as runtime:
                return runtime.read_file(_inside(path)).encode(errors="surrogateescape")

        return Response(await service.read(read), media_type="text/plain")

    @routes.add(
        "PUT", "/api/workspaces/{workspace}/files/{path:path}", "Write a text file", media_type="text/plain", example="print('hello')\n",
        gives=Written, gave={"bytes": 15}, also=(404, 409, 422, 503), tag="files",
    )  # fmt: skip
    async def write_file(request: Request, workspace: WorkspaceId, path: _FILE) -> Response:
        """Made or overwritten, whole or not at all; missing folders are made. The body is the text in UTF-8, of any media type."""
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
        "The microagents of a folder",
        gives=Microagents,
        also=(404, 422, 503),
        tag="workspaces",
    )
    async def list_microagents(
        request: Request,
        workspace: WorkspaceId,
        folder: Annotated[str | None, Query(max_length=4096, description="Default: the workspace's.")] = None,
    ) -> Response:
        """And the skills."""
        tenant = service.caller(request).tenant

        def load() -> Response:
            with host.workspace(tenant, workspace) as runtime:
                where = None if folder is None else runtime.paths.resolve(_inside(folder))
                return answer(Microagents(runtime.load_microagents(where)))

        return await service.read(load)

    @routes.add("GET", "/api/workspaces/{workspace}/tools", "The tools of a workspace", gives=Tools, also=(404, 422, 503), tag="workspaces")
    async def list_tools(request: Request, workspace: WorkspaceId) -> Response:
        """As a model that works there has them."""
        tenant = service.caller(request).tenant

        def tools() -> Response:
            with host.workspace(tenant, workspace) as runtime:
                found = [
                    ToolForm(
                        name=tool.name, input_schema=tool.input_schema, description=tool.description, output_schema=tool.output_schema,
                        annotations=tool.annotations, category=tool.category, timeout=tool.timeout, module="holdfast.runtime",
                        parallel=tool.parallel,
                    )
                    for tool in runtime.tools
                ]  # fmt: skip
            return answer(Tools(found))

        return await service.change(tools)

    @routes.add(
        "POST", "/api/workspaces/{workspace}/tools/{name}", "Call a tool of a workspace", takes=CallRequest,
        example={"arguments": {"pattern": "TODO"}}, gives=ToolResult, also=(404, 409, 503), tag="workspaces",
    )  # fmt: skip
    async def call_tool(
        request: Request, workspace: WorkspaceId, name: Annotated[str, Path(pattern=NAME, examples=["grep"])], key: Key = None
    ) -> Response:
        """What fails is a result too, with `isError`."""
        data = await service.body(request)
        body = await service.decode(request, data, CallRequest)
        tenant = service.caller(request).tenant

        def call(cancelled: Cancellation) -> Response:
            from holdfast.tools import ToolContext, ToolManager

            with host.workspace(tenant, workspace) as runtime:
                manager = ToolManager(runtime.tools)
                manager.get(name)  # a tool that is not there is no result, but 404
                context = ToolContext(body.conversation_id, cancelled=cancelled, runtime=runtime)
                return answer(manager.run(ToolCall("", name, body.arguments), context))

        return await service.long(request, key, data, call)


def _inside(path: str) -> str:
    """A path as the runtime takes it. `~` is the server's home, which is nobody's here."""
    if path.startswith("~"):
        return "./" + path
    return path
