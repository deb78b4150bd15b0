"""Import from and export to OpenHands: its actions and observations as tool calls and results, and
its conversations on disk.

`read_conversation(folder)` returns a `ConversationState`, which `Conversation.from_state` or
`holdfast import --from openhands` continues. `write_conversation(state, folder)` writes a
conversation that OpenHands can load. Both forms of actions and observations are supported: the
Software Agent SDK's (`{"kind": "TerminalAction", "command": ...}`) and the earlier one
(`{"action": "run", "args": {"command": ...}}`).

Microagents do not need this package: `load_microagents` reads their folders.
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
