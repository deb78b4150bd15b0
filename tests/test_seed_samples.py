"""Tests of the code samples of the SDK proposal, run unchanged except for invalid Python: `new`,
and names that are never bound."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.model_server import ModelServer, Request, calls, text

HELLO = """
from time import sleep
from holdfast import LLM, Agent, Tool, ToolResult, Conversation, ConversationStatus

llm = LLM(
    model="claude-sonnet-4",
    api_key="your_api_key_here",
)

def hello_tool(name) -> ToolResult:
    print("Hello, " + name)
    return ToolResult()

tools = [
    Tool(
        name="hello",
        description="Says hello",
        callback=hello_tool,
        inputSchema={'type': 'string', 'description': 'name to greet'}
    ),
]

agent = Agent(llm=llm, tools=tools)
conversation = Conversation(agent)
conversation.start_thread()
conversation.send_message("Say hello to 'world'")
while conversation.state.status == ConversationStatus.RUNNING:
    sleep(1)
if conversation.state.status == ConversationStatus.ERROR:
    raise Exception("Error!")
else:
    print("Agent finished")
"""

LOCAL_RUNTIME = """
from time import sleep
from holdfast import LLM, Agent, MCPClient, Tool, Conversation, ConversationStatus
from holdfast.runtime import LocalRuntime

def load_mcp_config():
    return {"mcpServers": {}}

llm = LLM(
    model="claude-sonnet-4",
    api_key="your_api_key_here",
)
runtime = LocalRuntime()
runtime.clone_repo("All-Hands-AI/OpenHands")
runtime.run_command("echo 'do a flip' > /tmp/Plan.md")
microagents = runtime.load_microagents()

def run_lint():
    return runtime.run_command("npm run lint:fix")

tools = runtime.tools + [
    Tool(
        name="lint",
        description="Lints files and makes automatic changes where possible",
        callback=run_lint,
    ),
]

mcp_tools = MCPClient(load_mcp_config())
tools += mcp_tools

agent = Agent(llm=llm, tools=tools, microagents=microagents)

def print_event(evt):
    print(evt)

conversation = Conversation(agent)
conversation.register_callback(print_event)
conversation.start_thread()
conversation.send_message("Follow /tmp/Plan.md")
while conversation.state.status == ConversationStatus.RUNNING:
    sleep(1)
if conversation.state.status == ConversationStatus.ERROR:
    raise Exception("Error!")
else:
    print("Agent finished")
"""

DELEGATION = """
from time import sleep
from holdfast import LLM, Agent, Tool, Conversation, ConversationStatus

llm = LLM(
    model="claude-sonnet-4",
    api_key="your_api_key_here",
)
delegate_agent = Agent(llm=llm, tools=[])
delegate_conversations = []

def create_conversation(msg):
    conversation = Conversation(delegate_agent)
    conversation.start_thread()
    conversation.send_message("Say hello to 'world'")
    delegate_conversations.append(conversation)

tools = [
    Tool(
        name="create_conversation",
        description="Create new conversation",
        callback=create_conversation,
        inputSchema={'type': 'string', 'description': 'Create a new OpenHands conversation to do a subtask'}
    ),
]

base_agent = Agent(llm=llm, tools=tools)
base_conversation = Conversation(base_agent)
base_conversation.start_thread()
base_conversation.send_message("Create 3 OpenHands conversations that each flips a coin and report the results")
conversation = base_conversation
while conversation.state.status == ConversationStatus.RUNNING:
    sleep(1)
if conversation.state.status == ConversationStatus.ERROR:
    raise Exception("Error!")
else:
    print("Agent finished", len(delegate_conversations))
"""

MESSAGE_PASSING = """
from time import sleep
from holdfast import LLM, Agent, Tool, Conversation, ConversationStatus

llm = LLM(
    model="claude-sonnet-4",
    api_key="your_api_key_here",
)
tools = []

implementer_agent = Agent(llm=llm, tools=[])
implementer_convo = Conversation(implementer_agent)
implementer_convo.start_thread()
implementer_convo.send_message("Build a hello world react app")

def pass_message_to_implementer(msg):
    implementer_convo.send_message(msg)

pass_message_tool = Tool(
    name="pass_message",
    description="Says hello",
    callback=pass_message_to_implementer,
    inputSchema={'type': 'string', 'description': 'send a message to the implementer'}
)

testing_agent = Agent(llm=llm, tools=tools + [pass_message_tool])
testing_convo = Conversation(testing_agent)
implementer_convo.start_thread()
implementer_convo.send_message("Test the react app and tell the implementer about any issues.")
while implementer_convo.state.status == ConversationStatus.RUNNING or testing_convo.state.status == ConversationStatus.RUNNING:
    sleep(1)
if implementer_convo.state.status == ConversationStatus.ERROR:
    raise Exception("Error!")
else:
    print("Agent finished")
"""


def run(
    sample: str, answer: Callable[[Request], Any], folder: Path, *changes: tuple[str, str]
) -> tuple[list[str], list[Request]]:
    """Run a sample against a model server, in a folder. Returns its last lines and the requests to
    the server. The sample waits less between two polls."""
    with ModelServer(answer) as server:
        address = (
            'api_key="your_api_key_here",',
            f'api_key="your_api_key_here", base_url={server.url!r},',
        )
        for old, new in (address, ("sleep(1)", "sleep(0.05)"), *changes):
            assert old in sample
            sample = sample.replace(old, new)
        process = subprocess.run(
            [sys.executable, "-c", sample],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        return process.stdout.splitlines(), list(server.requests)


def last(request: Request) -> Any:
    return request.messages[-1]


@pytest.mark.slow
def test_hello_world(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        return (
            calls(("hello", {"name": "world"}))
            if last(request)["role"] == "user"
            else text("Said it.")
        )

    printed, requests = run(HELLO, answer, tmp_path)
    assert printed == ["Hello, world", "Agent finished"]
    assert requests[0].json["model"] == "claude-sonnet-4"
    assert requests[0].json["tools"][0]["function"]["parameters"]["required"] == ["name"]


@pytest.mark.slow
def test_with_a_local_runtime(tmp_path: Path) -> None:
    origin = tmp_path / "OpenHands"
    origin.mkdir()
    (origin / "README.md").write_text("read me")
    git = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.com",
        "-c",
        "init.defaultBranch=main",
    ]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], cwd=origin, check=True)
    plan = str(tmp_path / "Plan.md")

    def answer(request: Request) -> Any:
        if last(request)["role"] == "user":
            return calls(("terminal", {"command": f"cat {plan}; ls"}), ("lint", {}))
        return text("Flipped.")

    printed, requests = run(
        LOCAL_RUNTIME,
        answer,
        tmp_path,
        ("All-Hands-AI/OpenHands", str(origin)),
        ("/tmp/Plan.md", plan),
    )
    assert printed[-1] == "Agent finished"
    results = [message["content"] for message in requests[1].messages if message["role"] == "tool"]
    assert "do a flip" in results[0]
    assert "OpenHands" in results[0], "the clone is in the work folder"
    assert "npm" in results[1]
    assert any("Flipped." in line for line in printed), "the callback printed the events"


@pytest.mark.slow
def test_with_delegation(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        if last(request)["content"] == "Say hello to 'world'":
            return text("Hello, world")
        if last(request)["role"] == "tool":
            return text("Three are on their way.")
        return calls(
            *[("create_conversation", {"msg": f"flip coin {number}"}) for number in range(3)]
        )

    printed, requests = run(DELEGATION, answer, tmp_path)
    assert printed == ["Agent finished 3"]
    assert (
        len([request for request in requests if "OpenHands conversations" in str(request.messages)])
        == 2
    )


def test_with_message_passing(tmp_path: Path) -> None:
    """Check the sample. Unchanged, it starts its first conversation twice and its second never."""
    printed, requests = run(MESSAGE_PASSING, lambda _: text("Nothing to do."), tmp_path)
    assert printed == ["Agent finished"]
    messages = [
        message["content"] for message in requests[-1].messages if message["role"] == "user"
    ]
    assert messages == [
        "Build a hello world react app",
        "Test the react app and tell the implementer about any issues.",
    ]
