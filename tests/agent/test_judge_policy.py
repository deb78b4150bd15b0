"""`LLMJudge` with a policy: it confirms calls, gets one request for each call, and can be
configured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationStatus, ScriptedLLM, load_agent
from holdfast import events as ev
from holdfast.agent.confirmation import Strictest
from holdfast.agent.security import LLMJudge, Risk
from holdfast.errors import ConfigurationError

MODEL = {"use": "scripted", "parameters": {"script": []}}


def send(text: str) -> str:
    """Send."""
    return f"sent {text}"


def judging(*levels: str) -> tuple[ScriptedLLM, list[Any]]:
    requests: list[Any] = []

    def answer(request: Any) -> str:
        requests.append(request)
        return json.dumps({"risk": levels[len(requests) - 1], "reason": f"rule {len(requests)}"})

    return ScriptedLLM(answer, "judge"), requests


def run(confirm: Any, calls: int = 1, **more: Any) -> Conversation:
    answers = [[("send", {"text": str(number)}) for number in range(calls)], "done"]
    conversation = Conversation(Agent(ScriptedLLM(answers), [send], confirm=confirm, **more))
    conversation.send_message("go")
    conversation.run()
    return conversation


def decisions(conversation: Conversation) -> list[tuple[str, str, str]]:
    return [
        (event.decision, event.by, event.reason)
        for event in conversation.get_history()
        if isinstance(event, ev.DecisionMade)
    ]


def test_a_policy_in_words_allows_asks_and_denies() -> None:
    model, requests = judging("low", "medium", "high")
    with run(LLMJudge(model, policy="Mail to colleagues is fine."), 3) as conversation:
        assert decisions(conversation) == [
            ("allow", "analyzer:judge", "rule 1"),
            ("ask", "analyzer:judge", "rule 2"),
            ("deny", "analyzer:judge", "rule 3"),
        ]
        assert conversation.status is ConversationStatus.WAITING_FOR_CONFIRMATION
    system = requests[0].system
    assert "Mail to colleagues is fine." in system
    assert "destroys work" not in system  # the levels of a judge without a policy
    assert len(requests) == 3


def test_a_judge_that_gives_no_verdict_asks_the_user() -> None:
    with run(LLMJudge(ScriptedLLM(["Sure!"]), policy="All is fine.")) as conversation:
        assert decisions(conversation)[0][0] == "ask"


def test_the_judge_of_a_strictest_policy_is_the_analyzer() -> None:
    model, requests = judging("low")
    policy = Strictest([LLMJudge(model, policy="x"), {"send": "ask"}])
    with run(policy) as conversation:
        assert decisions(conversation)[0][0] == "ask"
    assert len(requests) == 1


def test_the_high_risk_of_another_analyzer_is_asked_about() -> None:
    class Severe:
        def assess(self, call: Any, about: Any) -> Risk:
            return Risk("high", "severe")

    with run(LLMJudge(policy="x"), security=Severe()) as conversation:
        assert decisions(conversation) == [("ask", "analyzer:Severe", "severe")]


def test_a_policy_can_be_configured() -> None:
    for confirm in (
        {"judge": "No mail.", "model": MODEL},
        {"strictest": [{"judge": "No mail."}, "risky"]},
    ):
        agent = load_agent({"model": MODEL, "confirm": confirm})
        for one in (agent, Agent.from_json(agent.to_json())):
            policy: Any = one.confirm
            judge = policy if isinstance(policy, LLMJudge) else policy.policies[0]
            assert judge.policy == "No mail."
            assert isinstance(one.security, LLMJudge)
            assert one.security.policy == "No mail."
    agent = load_agent({"model": MODEL, "security": {"name": "judge", "policy": "No mail."}})
    assert agent.security == LLMJudge(policy="No mail.")
    assert load_agent({"model": MODEL, "confirm": {"judge": "ask"}}).confirm is not None
    with pytest.raises(ConfigurationError, match="policy takes a text"):
        LLMJudge(policy=3)  # pyright: ignore[reportArgumentType]: the mistake is the test
