"""Workspaces over HTTP: folders on the server in which conversations work, with their files,
commands and tools."""

from typing import Annotated
from urllib.parse import quote

from fastapi import Path, Query
from starlette.responses import Response, StreamingResponse

from holdfast.agent.serial_form import ToolForm
from holdfast.content import ToolCall, ToolResult
from holdfast.errors import ConfigurationError, PathRefused
from holdfast.runtime.clone import is_remote
from holdfast.server import bodies
from holdfast.server.host import Host
from holdfast.server.routes import NAME, RouteTable, WorkspaceId
from holdfast.server.workspace_files import archive, chunks, inside, list_entries, open_binary
from holdfast.tools import Tool, ToolContext, ToolManager
from holdfast.tools.context import Cancellation

_File = Annotated[
    str, Path(description="Relative to the workspace's folder.", examples=["src/app.py"])
]
_Folder = Annotated[str, Query(max_length=4096, description="Relative to the workspace's folder.")]

routes = RouteTable("/api/workspaces", "workspaces")


@routes.get(
    "",
    "List the workspaces",
    answer_example={"workspaces": [{"id": "web", "folder": "/srv/web"}, {"id": "w-81d0"}]},
)
def list_workspaces(host: Host, tenant: str) -> bodies.WorkspaceItems:
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
def create_workspace(host: Host, tenant: str, body: bodies.WorkspaceRequest) -> bodies.Workspace:
    """Creates an empty folder. If a workspace with this id exists, it is left unchanged and the
    answer is 409."""
    return bodies.Workspace(host.workspaces.create(tenant, body.id))


@routes.delete("/{workspace}", "Remove a workspace", conflicts=True)
def delete_workspace(host: Host, tenant: str, workspace: WorkspaceId) -> None:
    """Removes the workspace with all its files."""
    host.workspaces.delete(tenant, workspace)


@routes.post(
    "/{workspace}/commands",
    "Run a command",
    example={"command": "ls -l", "timeout": 10},
    answer_example={
        "content": [{"type": "text", "text": "total 0"}],
        "meta": {"exitCode": 0},
        "isError": False,
    },
    conflicts=True,
)
def run_command(
    host: Host,
    tenant: str,
    workspace: WorkspaceId,
    body: bodies.CommandRequest,
    cancelled: Cancellation,
) -> ToolResult:
    """Answers when the command has ended. A broken connection cancels the command. With an
    `Idempotency-Key` it is cancelled only if the client does not repeat the request soon."""
    with host.workspace(tenant, workspace) as runtime:
        return runtime.run_command(
            body.command, body.timeout, conversation_id=body.conversation_id, cancelled=cancelled
        )


@routes.post(
    "/{workspace}/clone",
    "Clone a repository",
    example={"repo": "psf/requests"},
    answer_example={"path": "/srv/workspaces/w-81d0/requests"},
    conflicts=True,
)
def clone_repository(
    host: Host,
    tenant: str,
    workspace: WorkspaceId,
    body: bodies.CloneRequest,
    cancelled: Cancellation,
) -> bodies.Cloned:
    """git cannot ask for credentials: put a token into the URL."""
    if not is_remote(body.repo):
        raise PathRefused(
            "The server clones no local path. Use 'owner/name' or a URL, or clone with a command."
        )
    with host.workspace(tenant, workspace) as runtime:
        path = runtime.clone_repo(
            body.repo, branch=body.branch, target=body.target, timeout=body.timeout
        )
        return bodies.Cloned(str(path))


@routes.get(
    "/{workspace}/files/{path:path}",
    "Read a text file",
    answer_media_type="text/plain",
    schema={"type": "string"},
    answer_example="print('hello')\n",
    tag="files",
)
def read_file(host: Host, tenant: str, workspace: WorkspaceId, path: _File) -> Response:
    """Answers with the text in UTF-8, from any encoding of the file. Undecodable bytes are sent
    unchanged."""
    with host.workspace(tenant, workspace) as runtime:
        text = runtime.read_file(inside(path))
    return Response(text.encode(errors="surrogateescape"), media_type="text/plain")


@routes.put(
    "/{workspace}/files/{path:path}",
    "Write a text file",
    media_type="text/plain",
    example="print('hello')\n",
    answer_example={"bytes": 15},
    largest=None,
    conflicts=True,
    tag="files",
)
def write_file(
    host: Host, tenant: str, workspace: WorkspaceId, path: _File, data: bytes
) -> bodies.WrittenFile:
    """Creates or overwrites the file atomically, and creates missing folders. The body is the text
    in UTF-8, with any media type."""
    with host.workspace(tenant, workspace) as runtime:
        runtime.write_file(inside(path), data.decode(errors="surrogateescape"))
    return bodies.WrittenFile(len(data))


@routes.get(
    "/{workspace}/entries",
    "List a folder of a workspace",
    answer_example={
        "path": "src",
        "entries": [
            {"name": "app.py", "kind": "file", "size": 15, "modified": "2026-11-21T10:00:00Z"}
        ],
        "more": 0,
    },
    tag="files",
)
def list_folder(
    host: Host, tenant: str, workspace: WorkspaceId, path: _Folder = ""
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
def download_file(host: Host, tenant: str, workspace: WorkspaceId, path: _File) -> Response:
    """Answers with the file's unchanged bytes, of any kind and size."""
    with host.workspace(tenant, workspace) as runtime:
        file, size = open_binary(runtime, path)
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
def download_folder(
    host: Host, tenant: str, workspace: WorkspaceId, path: _Folder = ""
) -> Response:
    """Answers with a tar file of everything below the folder, written while it is read. Links are
    kept as links and never followed."""
    with host.workspace(tenant, workspace) as runtime:
        blocks = archive(runtime, path)
    headers = {"Content-Disposition": f'attachment; filename="{workspace}.tar"'}
    return StreamingResponse(blocks, headers=headers, media_type="application/x-tar")


@routes.get("/{workspace}/microagents", "List the microagents of a folder")
def list_microagents(
    host: Host,
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
            raise ConfigurationError(f"load_microagents takes a folder; there is none: {label}.")
        return bodies.Microagents(runtime.load_microagents(path))


@routes.get("/{workspace}/tools", "List the tools of a workspace", slow=True)
def list_tools(host: Host, tenant: str, workspace: WorkspaceId) -> bodies.Tools:
    """Lists the tools that a workspace gives to an agent."""
    with host.workspace(tenant, workspace) as runtime:
        return bodies.Tools([_form(tool) for tool in runtime.tools])


@routes.post(
    "/{workspace}/tools/{name}",
    "Call a tool of a workspace",
    example={"arguments": {"pattern": "TODO"}},
    largest=None,
    conflicts=True,
)
def call_tool(
    host: Host,
    tenant: str,
    workspace: WorkspaceId,
    name: Annotated[str, Path(pattern=NAME, examples=["grep"])],
    body: bodies.CallRequest,
    cancelled: Cancellation,
) -> ToolResult:
    """A failed call is answered as a result with `isError`."""
    with host.workspace(tenant, workspace) as runtime:
        manager = ToolManager(runtime.tools)
        manager.get(name)  # an unknown tool is answered with 404, not with a result
        context = ToolContext(body.conversation_id, cancelled=cancelled, runtime=runtime)
        return manager.run(ToolCall("", name, body.arguments), context)


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
