"""Conversations on an agent server: `RemoteConversation`, `RemoteWorkspace` with their files and
commands, and `ContainerRuntime`, a server in a container."""

from holdfast.remote.container import ContainerRuntime
from holdfast.remote.conversation import RemoteConversation
from holdfast.remote.workspace import RemoteWorkspace

__all__ = ["ContainerRuntime", "RemoteConversation", "RemoteWorkspace"]
