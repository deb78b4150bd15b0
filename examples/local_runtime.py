"""A LocalRuntime: its tools, a custom tool, MCP tools, microagents, and an event callback."""

from time import sleep

from holdfast import LLM, Agent, Conversation, ConversationStatus, LocalRuntime, MCPClient, Tool

llm = LLM(
    model="claude-sonnet-4",
    api_key="your_api_key_here",
    base_url="http://127.0.0.1:8000/v1",
)

runtime = LocalRuntime()
runtime.clone_repo("All-Hands-AI/OpenHands")
runtime.run_command("echo 'do a flip' > /tmp/Plan.md")
microagents = runtime.load_microagents()


def run_lint():
    return runtime.run_command("npm run lint:fix")


def load_mcp_config():
    return {"mcpServers": {}}


tools = [
    *runtime.tools,
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
