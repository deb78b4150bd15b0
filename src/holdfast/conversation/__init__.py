"""Conversations: the agent loop, its journal, its state and its subscriptions."""

from typing import Any

from holdfast.conversation.callbacks import Subscription
from holdfast.conversation.conversation import Conversation
from holdfast.conversation.state import ConversationState, ConversationStatus

__all__ = ["Conversation", "ConversationState", "ConversationStatus", "Subscription"]


def __getattr__(name: str) -> Any:
    """Load `RemoteConversation` from `holdfast.remote` at its first use; it is also importable
    from here."""
    if name != "RemoteConversation":
        raise AttributeError(f"module 'holdfast.conversation' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = import_module("holdfast.remote").RemoteConversation
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), "RemoteConversation"})
