"""An agent at work: the loop, its journal, its state, and who is told of it."""

from holdfast.conversation.callbacks import Subscription
from holdfast.conversation.conversation import Conversation
from holdfast.conversation.state import ConversationState, ConversationStatus

__all__ = ["Conversation", "ConversationState", "ConversationStatus", "Subscription"]
