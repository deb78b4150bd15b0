"""tau2-bench's tasks: its Python environments as tools, its expected actions as the model, its
own evaluator as the judge.

    PYTHONPATH=.venv/tau2:src:. python -m tests.e2e.others.tau2 --way code

The model also has the tools of the user, since the tasks of `telecom` expect their actions,
too.
"""

from __future__ import annotations

import functools
import gc
import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

from loguru import logger
from tau2.data_model.message import AssistantMessage, Message, ToolMessage, UserMessage
from tau2.data_model.message import ToolCall as TheirCall
from tau2.data_model.tasks import Task
from tau2.environment.environment import Environment

from holdfast import Tool
from tests.e2e.others.play import (
    MadeCall,
    Tally,
    Turn,
    WantedCall,
    arguments_of,
    play,
    sample,
)

DOMAINS = ("mock", "airline", "retail", "telecom")


def evaluator() -> Any:
    """Return tau2's evaluator of environments. Its module imports pandas for tables that it does
    not make here."""
    sys.modules.setdefault("pandas", MagicMock())
    return importlib.import_module("tau2.evaluator.evaluator_env").EnvironmentEvaluator


class Domain:
    """A domain's tasks, and its environment in the first state, which is loaded once."""

    def __init__(self, name: str) -> None:
        module = importlib.import_module(f"tau2.domains.{name}.environment")
        self.name, self._make = name, module.get_environment
        self.tasks: list[Task] = module.get_tasks()
        first = self._make()
        self._database = pickle.dumps(first.tools.db)

    def environment(self, solo_mode: bool = False) -> Environment:
        return self._make(db=pickle.loads(self._database), solo_mode=solo_mode)


def tools(environment: Environment) -> dict[str, Tool]:
    """Return the tools of the assistant and of the user, with tau2's own schemas."""
    tools_by_name: dict[str, Tool] = {}
    users = environment.get_user_tools() if environment.user_tools is not None else []
    for requestor, tool_list in (("assistant", environment.get_tools()), ("user", users)):
        for one in tool_list:
            function = one.openai_schema["function"]
            assert one.name not in tools_by_name
            call = caller(environment, one.name, requestor)
            tools_by_name[one.name] = Tool(
                one.name, function["description"], call, function["parameters"]
            )
    return tools_by_name


def caller(environment: Environment, name: str, requestor: str) -> Callable[..., str]:
    """Return a function that makes a call in the environment, as for a model."""

    def call(**arguments: Any) -> str:
        message = environment.make_tool_call(name, requestor=requestor, **arguments)
        environment.sync_tools()
        return environment.to_json_str(message)

    return call


def trajectory(calls: list[MadeCall], requestors: list[str]) -> list[Message]:
    """Return calls of the journal and their results as tau2's messages."""
    messages: list[Message] = []
    for one, requestor in zip(calls, requestors, strict=True):
        call = TheirCall(
            id=one.call.id, name=one.call.name, arguments=one.call.arguments, requestor=requestor
        )
        message = UserMessage if requestor == "user" else AssistantMessage
        messages.append(message(role=requestor, tool_calls=[call]))
        text = one.result.text
        if one.result.is_error:
            text = f"Error: {text.partition(': ')[2].partition(': ')[2]}"
        messages.append(ToolMessage(id=one.call.id, role="tool", content=text, requestor=requestor))
    return messages


def run(domain: Domain, task: Task, way: str, tally: Tally) -> None:
    """Play a task; raise `AssertionError` if tau2's evaluator finds another end state than that of
    the expected actions."""
    environment = domain.environment()
    before = task.initial_state
    history = list(before.message_history or []) if before else []
    environment.set_state(
        before.initialization_data if before else None,
        before.initialization_actions if before else None,
        history,
    )
    criteria = task.evaluation_criteria
    actions = list(criteria.actions or []) if criteria else []
    tools_by_name = tools(environment)
    expected = [WantedCall(action.name, action.arguments) for action in actions]
    journal_calls: list[MadeCall] = []

    def after(number: int, calls: list[MadeCall]) -> None:
        tally.counts["turns"] += 1
        tally.counts["calls"] += len(calls)
        for one in calls:
            if one.result.is_error:
                error = one.result.error
                tally.counts["failed calls"] += 1
                kind = error.type if error else ""
                tally.note(
                    f"calls of the ground truth that fail: {kind}",
                    f"{domain.name} {task.id[:60]}: {one.call.name}: {one.result.text[:200]}",
                )
        journal_calls.extend(calls)

    play(list(tools_by_name.values()), [Turn(str(task.user_scenario), expected)], way, after)
    messages = [*history, *trajectory(journal_calls, [action.requestor for action in actions])]
    built: list[Environment] = []  # of the messages, and of the expected actions

    def build(solo_mode: bool = False) -> Environment:
        built.append(domain.environment(solo_mode))
        return built[-1]

    reward = evaluator().calculate_reward(build, task, messages)
    unmet = [check.env_assertion for check in reward.env_assertions or () if not check.met]
    for assertion in unmet:
        # The state after the expected actions does not match either.
        assert not built[1].run_env_assertion(assertion, raise_assertion_error=False), reward
        tally.note("assertions that the expected actions miss", f"{domain.name} {task.id}")
    assert reward.reward == 1.0 or unmet, reward
    if built:
        assert environment.tools.db == built[0].tools.db
        if environment.user_tools is not None:
            assert environment.user_tools.db == built[0].user_tools.db
        if not reward.db_check.db_match:
            # The evaluator runs the expected actions without `sync_tools` between them. In these
            # tasks it rewards the assertions, not the database.
            tally.note("databases that the evaluator expects otherwise", task.id)


def main() -> None:
    logger.remove()
    gc.disable()  # it would scan the many objects of each new environment
    options, tally = arguments_of(__doc__ or ""), Tally()
    for name in DOMAINS:
        domain = Domain(name)
        for task in sample(domain.tasks, lambda one: f"{name} {one.id}", options.one_in):  # noqa: B023
            play_it = functools.partial(run, domain, task, options.way, tally)
            tally.run(f"{name} {task.id}", play_it)
            if tally.counts["tasks"] % 10 == 0:
                gc.collect()
    tally.print()


if __name__ == "__main__":
    main()
