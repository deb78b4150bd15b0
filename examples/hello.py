"""Hello: one tool and one conversation, polled until it finishes.

Set base_url to the address of any OpenAI-compatible API.
"""

from time import sleep

from holdfast import LLM, Agent, Conversation, ConversationStatus, Tool, ToolResult

llm = LLM(
    model="claude-sonnet-4",
    api_key="your_api_key_here",
    base_url="http://127.0.0.1:8000/v1",
)


def hello_tool(name) -> ToolResult:
    print("Hello, " + name)
    return ToolResult()


tools = [
    Tool(
        name="hello",
        description="Says hello",
        callback=hello_tool,
        inputSchema={"type": "string", "description": "name to greet"},
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
