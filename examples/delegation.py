"""Delegation: a tool starts further conversations."""

from time import sleep

from holdfast import LLM, Agent, Conversation, ConversationStatus, Tool

llm = LLM(
    model="claude-sonnet-4",
    api_key="your_api_key_here",
    base_url="http://127.0.0.1:8000/v1",
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
        inputSchema={
            "type": "string",
            "description": "Create a new OpenHands conversation to do a subtask",
        },
    ),
]
base_agent = Agent(llm=llm, tools=tools)
base_conversation = Conversation(base_agent)
base_conversation.start_thread()
base_conversation.send_message(
    "Create 3 OpenHands conversations that each flips a coin and report the results"
)
while base_conversation.state.status == ConversationStatus.RUNNING:
    sleep(1)
if base_conversation.state.status == ConversationStatus.ERROR:
    raise Exception("Error!")
else:
    print("Agent finished")
