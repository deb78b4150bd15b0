"""The same conversation on an agent server: `RemoteConversation`, and `RemoteWorkspace`, where its
commands run and its files are."""

from holdfast.remote.conversation import RemoteConversation
from holdfast.remote.workspace import RemoteWorkspace

__all__ = ["RemoteConversation", "RemoteWorkspace"]
