"""Facts for a form that begins a conversation: the server's tools, sandbox and models, and the name
of its key for a model."""

from collections.abc import Callable
from contextlib import suppress
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Query

from holdfast.agent.serial_form import ToolForm
from holdfast.errors import ConfigurationError
from holdfast.llm.address import locate
from holdfast.llm.info import model_info
from holdfast.llm.providers import is_local
from holdfast.runtime import SandboxedRuntime, SandboxUnavailable
from holdfast.runtime.folder import FolderRuntime
from holdfast.server.bodies import BeginOptions, ModelAdvice, ToolOption
from holdfast.server.host import Host
from holdfast.server.routes import RouteTable
from holdfast.tools import Tool
from holdfast.tools.preset.asking import make_ask_user

_ASKING = "holdfast.tools.preset.asking"

routes = RouteTable("/api/options", "conversations")


@routes.get(
    "",
    "Get the options of a new conversation",
    slow=True,
    answer_example={
        "tools": [
            {
                "name": "read_file",
                "description": "Read a text file.",
                "category": "files",
                "readOnly": True,
            }
        ],
        "sandbox": "",
        "sandboxAvailable": "bubblewrap",
        "network": [],
        "folders": True,
        "undo": True,
    },
)
def get_options(tenant: str, options: Callable[[], BeginOptions]) -> BeginOptions:
    """The tools that an agent may have here, and the sandbox in which its commands run. The models
    are listed by `/api/models`, the folders by `/api/workspaces`."""
    return options()


@routes.get(
    "/model",
    "Get what the server knows of a model",
    answer_example={
        "provider": "openai",
        "address": "https://api.openai.com/v1",
        "variable": "OPENAI_API_KEY",
        "tools": ["terminal", "read_file", "apply_patch", "glob", "grep"],
        "contextWindow": 400000,
        "inputPrice": 0.25,
        "outputPrice": 2.0,
    },
)
def get_model_advice(
    host: Host,
    tenant: str,
    name: Annotated[
        str, Query(min_length=1, max_length=200, description="A model's name, such as gpt-5-mini.")
    ],
    address: Annotated[
        str, Query(max_length=1000, description="Its `base_url`; without one its provider's.")
    ] = "",
) -> ModelAdvice:
    """Asks no model and no provider. An agent refers to the server's key for the model as
    `${variable}`."""
    try:
        at = locate(name, address or None)
    except ConfigurationError as error:
        return ModelAdvice(problem=str(error).removeprefix("LLM: "))
    info = model_info(name, at.provider, at.base_url)
    with host.workspaces.runtimes.temporary() as runtime:
        tools = [tool.name for tool in runtime.tools_for(name)]
    return ModelAdvice(
        provider=at.provider,
        address=at.base_url,
        variable="" if address else host.named_parts.key_for(tenant, name),
        local=is_local(urlsplit(at.base_url).hostname or ""),
        tools=tools,
        context_window=info and info.context_window,
        input_price=info and info.input_price,
        output_price=info and info.output_price,
    )


def begin_options(host: Host) -> BeginOptions:
    """Return the options of all new conversations on a host."""
    runtimes = host.workspaces.runtimes
    ask = make_ask_user()
    with runtimes.temporary() as runtime:
        usual = {tool.name for tool in runtime.tools}
        tools = [_option(tool, tool.name in usual) for tool in runtime.all_tools]
        sandbox = _mechanism(runtime)
    available = ""
    with suppress(SandboxUnavailable), runtimes.temporary(boxed=True) as runtime:
        available = _mechanism(runtime)
    return BeginOptions(
        tools=[*tools, _option(ask, True, _ASKING)],
        sandbox=sandbox,
        sandbox_available=available,
        network=list(runtimes.network),
        folders=host.workspaces.creatable,
        undo=bool(runtimes.undo_folder),
    )


def _mechanism(runtime: FolderRuntime) -> str:
    return runtime.mechanism if isinstance(runtime, SandboxedRuntime) else ""


def _option(tool: Tool, usual: bool, module: str = "") -> ToolOption:
    form = None
    if module:
        form = ToolForm(
            name=tool.name,
            input_schema=tool.input_schema,
            description=tool.description,
            annotations=tool.annotations,
            category=tool.category,
            module=module,
        )
    first = " ".join(tool.description.split()).partition(". ")[0].rstrip(".")
    return ToolOption(
        tool.name, f"{first}.", tool.category, tool.annotations.read_only, usual, form
    )
