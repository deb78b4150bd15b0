"""Coming from OpenHands: its actions and observations as tool calls and results and back, and its
conversations on disk.

`read_conversation(folder)` makes a `ConversationState` of one, which `Conversation.from_state` or
`holdfast import --from openhands` goes on with; `write_conversation(state, folder)` writes one that
OpenHands can be shown. Both forms of actions and observations are known: those of its Software
Agent SDK (`{"kind": "TerminalAction", "command": ...}`) and those before it (`{"action": "run",
"args": {"command": ...}}`).

Its microagents need nothing of this: `load_microagents` reads their folders.
"""

from holdfast.openhands.reading import Imported, read_conversation
from holdfast.openhands.shims import to_action, to_observation, to_tool_call, to_tool_result
from holdfast.openhands.writing import write_conversation

__all__ = [
    "Imported",
    "read_conversation",
    "to_action",
    "to_observation",
    "to_tool_call",
    "to_tool_result",
    "write_conversation",
]
