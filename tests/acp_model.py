"""A model for tests of editors. It obeys the user's words, one by one."""

from __future__ import annotations

from typing import Any

from holdfast.llm.completion import Completion
from holdfast.llm.scripted import ScriptedLLM, ScriptedRequest

STEPS = [{"step": "Look", "state": "done"}, {"step": "Act", "state": "in_progress"}]


def _answer(request: ScriptedRequest) -> Any:
    text = request.text
    if request.messages[-1]["role"] == "tool":
        name = request.messages[-2]["tool_calls"][0]["function"]["name"]
        arguments = request.messages[-2]["tool_calls"][0]["function"]["arguments"]
        if name == "write_file" and text.startswith(("Created", "Overwrote")):
            return f"wrote {arguments.split(chr(34))[3]}"
        return f"It says: {text}"
    word, _, rest = text.partition(" ")
    match word:
        case "read":
            return [("read_file", {"path": rest})]
        case "write":
            path, _, content = rest.partition(" ")
            return ["I write.", ("write_file", {"path": path, "content": content})]
        case "twice":
            return [("write_file", {"path": name, "content": "x"}) for name in rest.split()]
        case "edit":
            path, old, new = rest.split(" ")
            return [("edit_file", {"path": path, "old": old, "new": new})]
        case "run":
            return [("terminal", {"command": rest})]
        case "sleep":
            return [("terminal", {"command": f"sleep {float(rest) / 1000}"})]
        case "plan":
            return [("plan", {"steps": STEPS})]
        case "ask":
            return [("ask_user", {"question": "Which colour?"})]
        case "choose":
            return [("ask_user", {"question": "Which colour?", "options": ["red", "blue"]})]
        case "script":
            return [("run_code", {"code": rest})]
        case "call":
            name, _, words = rest.partition(" ")
            return [(name, {"text": words})]
        case "delegate":
            return [("delegate", {"agent": "helper", "task": rest})]
        case "pay":
            return [("pay", {"amount": int(rest)})]
        case "think":
            return Completion(f"Thought: {rest}", reasoning=rest)
        case "fail":
            raise ValueError(rest)
        case "echo":
            return rest or "(nothing)"
        case _:
            return f"unrecognized prompt: {text}"


def model() -> ScriptedLLM:
    """Return the model."""
    return ScriptedLLM(_answer, "obedient", stream=True)
