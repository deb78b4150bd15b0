"""Message passing: a tool of one agent sends messages to the conversation of another agent."""

from time import sleep

from holdfast import LLM, Agent, Conversation, ConversationStatus, LocalRuntime, Tool

llm = LLM(
    model="claude-sonnet-4",
    api_key="your_api_key_here",
    base_url="http://127.0.0.1:8000/v1",
)
tools = LocalRuntime().tools

implementer_agent = Agent(llm=llm, tools=tools)
implementer_convo = Conversation(implementer_agent)
implementer_convo.start_thread()
implementer_convo.send_message("Build a hello world react app")


def pass_message_to_implementer(msg):
    print("Message to the implementer:", msg)
    implementer_convo.send_message(msg)


pass_message_tool = Tool(
    name="pass_message",
    description="Sends a message to the implementer",
    callback=pass_message_to_implementer,
    inputSchema={"type": "string", "description": "send a message to the implementer"},
)

testing_agent = Agent(llm=llm, tools=[*tools, pass_message_tool])
testing_convo = Conversation(testing_agent)
testing_convo.start_thread()
testing_convo.send_message("Test the react app and tell the implementer about any issues.")
while (
    implementer_convo.state.status == ConversationStatus.RUNNING
    or testing_convo.state.status == ConversationStatus.RUNNING
):
    sleep(0.1)
for convo in (implementer_convo, testing_convo):
    if convo.state.status == ConversationStatus.ERROR:
        raise Exception("Error!")
print("Agents finished")
print("The implementer's last answer:", implementer_convo.state.answer)
