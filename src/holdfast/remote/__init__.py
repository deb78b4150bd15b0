"""Conversations on an agent server: `RemoteConversation`, and `RemoteWorkspace` with their files
and commands."""

from holdfast.remote.conversation import RemoteConversation
from holdfast.remote.workspace import RemoteWorkspace

__all__ = ["RemoteConversation", "RemoteWorkspace"]
