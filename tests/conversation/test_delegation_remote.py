"""Delegation and handoffs of an agent on an agent server work as in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import (
    Agent,
    ConversationStatus,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
    Tool,
)
from holdfast import events as ev
from holdfast.agent.agents_files import SubAgent
from holdfast.agent.serial_form import form_of, tools_of
from holdfast.commands import Send
from holdfast.errors import ConfigurationError
from holdfast.server.shapes import CreateRequest
from tests.remote_parts import KEY, AgentServerProcess
from tests.server_host_program import host_of
from tests.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServerProcess]:
    with AgentServerProcess(tmp_path_factory.mktemp("server"), grace=1.5) as running:
        yield running


@pytest.fixture
def space(server: AgentServerProcess) -> Iterator[RemoteWorkspace]:
    with RemoteWorkspace(server.url, KEY) as workspace:
        yield workspace


@pytest.mark.slow
def test_a_remote_agent_delegates_to_an_agent_and_to_a_prompt(space: RemoteWorkspace) -> None:
    child = Agent(
        ScriptedLLM([("write_file", {"path": "made", "content": "x"}), "made it"]),
        [space_tool(space, "write_file")],
    )
    agent = Agent(
        ScriptedLLM([("delegate", {"agent": "maker", "task": "make it"}), "done"]),
        delegates={"maker": child},
    )
    with RemoteConversation(agent, space) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert (state.status, state.answer) == (ConversationStatus.FINISHED, "done")
        [result] = [
            event.result for event in state.events if isinstance(event, ev.ToolCallFinished)
        ]
        assert result.text.startswith("made it\n[maker: conversation "), result
        assert conversation.get_history()[-1].type == "status"


def test_a_remote_agent_hands_over(space: RemoteWorkspace) -> None:
    billing = Agent(ScriptedLLM(["Refunded."]), system_prompt="You refund.")
    sub = SubAgent("sales", prompt="You sell.")
    agent = Agent(
        ScriptedLLM([("handoff", {"agent": "billing"})]),
        handoffs={"billing": billing, "sales": sub},
    )
    with RemoteConversation(agent, space) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert state.answer == "Refunded."
        assert [event.name for event in state.events if isinstance(event, ev.AgentConfigured)] == [
            "",
            "billing",
        ]


def test_a_tool_of_another_agent_that_only_the_client_has_is_refused(
    space: RemoteWorkspace,
) -> None:
    child = Agent(ScriptedLLM([]), [Tool("mine", "", lambda: "x")])
    agent = Agent(ScriptedLLM([]), delegates={"a": child})
    with (
        pytest.raises(ConfigurationError, match="'mine'"),
        RemoteConversation(agent, space) as conversation,
    ):
        conversation.send_message("go")


def space_tool(space: RemoteWorkspace, name: str) -> Tool:
    return next(tool for tool in space.tools if tool.name == name)


@pytest.mark.proof
def test_in_a_worker_process_too_children_work_and_tell_what_they_came_to(tmp_path: Path) -> None:
    child = Agent(ScriptedLLM(["found it"]))
    script = [
        ("delegate", {"agent": "finder", "task": "a"}),
        ("delegate", {"agent": "sub", "task": "b", "background": True}),
        ("delegate_collect", {}),
        ("send_to", {"conversation": "other", "text": "hi"}),
        ("handoff", {"agent": "last"}),
    ]
    last = Agent(ScriptedLLM(["done"]))
    agent = Agent(
        ScriptedLLM(script),
        delegates={"finder": child, "sub": Agent(ScriptedLLM(["b it is"]))},
        handoffs={"last": last},
    )
    with host_of(tmp_path, isolation="process") as host:
        for id in ("other", "c"):
            form = form_of(agent)
            host.create(
                "acme",
                CreateRequest(
                    agent=form.mapping, secrets=form.secrets, tools=tools_of(agent), id=id
                ),
            )
        host.start("acme", "c")
        host.execute("acme", "c", Send("go"))
        until(lambda: host.state("acme", "c").status == "finished", seconds=60)
        events = host.read("acme", "c")
        texts = [event.result.text for event in events if isinstance(event, ev.ToolCallFinished)]
        assert texts[0].startswith("found it\n[finder: conversation ")
        messages = [
            event.text for event in events if isinstance(event, ev.MessageAdded)
        ]  # if the child ended before the parent collected it
        assert texts[2].startswith("b it is") or any("b it is" in one for one in messages)
        assert "other" in texts[3]
        assert [event.text for event in events if isinstance(event, ev.AssistantReplied)][
            -1
        ] == "done"


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_parent_at_rest_on_a_server_wakes_when_a_child_is_done(
    tmp_path: Path, isolation: str
) -> None:
    child = Agent(ScriptedLLM(["found it"], delay=1.0))
    agent = Agent(
        ScriptedLLM(
            [
                ("delegate", {"agent": "finder", "task": "a", "background": True}),
                "Meanwhile.",
                "I have it.",
            ]
        ),
        delegates={"finder": child},
    )
    with host_of(tmp_path, **({} if isolation == "none" else {"isolation": isolation})) as host:
        form = form_of(agent)
        host.create(
            "acme",
            CreateRequest(agent=form.mapping, secrets=form.secrets, tools=tools_of(agent), id="c"),
        )
        host.start("acme", "c")
        host.execute("acme", "c", Send("go"))
        until(
            lambda: (
                host.state("acme", "c").answer == "I have it."
                and host.status("acme", "c") == "finished"
            ),
            seconds=60,
        )
