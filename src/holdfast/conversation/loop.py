"""The loop of a conversation: it asks `next_action` and does that, until there is nothing to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.handoffs import resolve_target
from holdfast.conversation import actions
from holdfast.conversation.actions import Action, AwaitEvents, CallModel, Nudge, Stop, next_action
from holdfast.conversation.budget import spending_of
from holdfast.conversation.calls import Calls
from holdfast.conversation.condensations import Condensations
from holdfast.conversation.handoff import delegating_agents, handoff_problem
from holdfast.conversation.hook_points import HookPoints
from holdfast.conversation.journal import Journal
from holdfast.conversation.model_call import ModelCall
from holdfast.conversation.request_view import RequestView
from holdfast.conversation.run_context import RunContext, agent_in_force, inside
from holdfast.conversation.status import ConversationStatus
from holdfast.conversation.timers import fire_due, seconds_to_timer
from holdfast.conversation.titling import Titling
from holdfast.errors import ConversationClosed, HoldfastError, StoreError
from holdfast.object_struct import ObjectStruct
from holdfast.tools.results import clean

if TYPE_CHECKING:
    from holdfast.conversation.hosting import Hosting


class _ChangeAgent(msgspec.Struct, frozen=True):
    """Let the agent of `Conversation.use` answer from here on. `next_action` does not know of it:
    nothing of it is in the journal yet."""


_CHANGE_AGENT = _ChangeAgent()


class Loop(ObjectStruct):
    """The loop of one conversation. `drive` runs on one thread at a time; the rest is
    thread-safe."""

    context: RunContext
    _calls: Calls
    _hooks: HookPoints
    _condensing: Condensations
    _view: RequestView
    _model_call: ModelCall
    _family: Hosting  # weak
    _parent: Journal | None  # of the conversation whose call spawned this one, if it is open
    _guests: tuple[Agent, ...] = ()  # other agents whose connections are open here
    thread: threading.Thread | None = None  # the driving thread, None if no thread drives
    resting: bool = True  # True while it waits for something to do
    hosted: bool = False  # True if a host drives it as soon as there is work
    # called between steps; if it returns True, `drive` returns
    hands_over: Callable[[], bool] | None = None

    @property
    def drives(self) -> bool:
        """True if a message is taken up at once: by the loop's thread, or by a host."""
        return self.thread is not None or self.hosted

    def drive(self, until_rest: bool) -> None:
        """Run the loop until the conversation rests (`until_rest`) or closes. Raises the store's
        errors.

        Call it in its own context, which ends with it: after Ctrl-C this thread must not stay
        marked as inside the loop.
        """
        inside.set((*inside.get(), id(self)))
        context, journal = self.context, self.context.journal
        try:
            name, agent = agent_in_force(context.own_agent, journal.fold)
            if agent is not context.agent:  # another process handed over meanwhile
                self._take_over(agent, name)
            self.bind_budgets()
            self._serve()
            self._hooks.start()
            while (action := self._next(until_rest)) is not None:
                before = journal.fold.last_seq
                try:
                    self._do(action)
                except (ConversationClosed, StoreError):
                    raise
                except BaseException as error:
                    self._view.drop()
                    if until_rest and self._is_for_caller(error):
                        raise
                    with journal:
                        context.write_error(error)
                    if journal.fold.last_seq == before:
                        raise  # nothing recorded it: the same action would follow for ever
        except ConversationClosed:
            pass
        except Exception as error:
            context.fail(error)
            if until_rest:
                raise
        finally:
            with suppress(HoldfastError):  # the lease is lost, or the store is gone
                if journal.spending is not None:
                    journal.spending.give_back()
            self.leave()

    def _is_for_caller(self, error: BaseException) -> bool:
        """Return True for Ctrl-C, and for `sys.exit` unless a host drives many conversations."""
        return not isinstance(error, Exception) and not (
            self.hosted and isinstance(error, SystemExit)
        )

    def _next(self, until_rest: bool) -> Action | _ChangeAgent | None:
        """Wait for the next action and return it; None if this thread must stop driving."""
        context, journal = self.context, self.context.journal
        if journal.observed is not None:
            journal.observed.tell()
        with journal.lock:
            while not context.closing:
                if context.failure is not None:  # draining the inbox found that the lease was lost
                    raise context.failure.with_traceback(None)
                if journal.stale:
                    journal.acquire()
                if journal.fold.timers.by_id:
                    fire_due(journal, drives=True)
                if context.changes_agent:
                    return _CHANGE_AGENT
                trigger = self._condensing.trigger
                if trigger is not None and journal.fold.sizes is None:
                    journal.fold.measure(journal.tail)
                action = self._decide(trigger)
                if journal.spending is not None and not isinstance(action, CallModel):
                    journal.spending.give_back()
                if not isinstance(action, AwaitEvents):
                    if until_rest and self.hands_over is not None and self.hands_over():
                        break
                    self.resting = False
                    return action
                if until_rest:
                    break
                self.resting = True
                journal.lock.notify_all()
                journal.lock.wait(seconds_to_timer(journal))
            # before the lock is released; else a message would count on a loop that has decided
            # to end
            self.leave()
        return None

    def _decide(self, trigger: int | None = None) -> Action:
        agent, fold = self.context.agent, self.context.journal.fold
        return next_action(fold, agent.limits, trigger, agent.stuck, agent.output_rounds)

    def _do(self, action: Action | _ChangeAgent) -> None:
        match action:
            case _ChangeAgent():
                self._change_agent()
            case CallModel():
                if self.context.own_agent.title is not None:
                    self._begin_title(self.context.own_agent.title)
                self._model_call.step()
            case actions.RunCalls(calls):
                self._calls.run(calls)
            case actions.RecoverCalls(calls):
                self._calls.recover(calls)
            case actions.HandOver(target):
                self._hand_over(target)
            case Nudge(about, text):
                with self.context.journal as journal:
                    if self._decide() == action:
                        journal.tell_model(clean(text), about)
            case actions.CondenseHistory(request, tokens):
                self._condensing.condense(request, tokens)
            case Stop():
                self._stop(action)
            case AwaitEvents():
                pass

    def _stop(self, action: Stop) -> None:
        ends = action.status is ConversationStatus.FINISHED
        objection = self._hooks.objection() if ends else None
        with self.context.journal as journal:
            if self._decide() != action:
                return  # a message arrived in between
            if objection is not None and self._hooks.journal_objection(objection):
                return
            if action.limit is not None:
                self.context.write_error(actions.limit_error(action.limit, journal.id))
            elif action.output:
                self.context.write_error(actions.output_error(action, journal.fold))
            else:
                journal.add(ev.StatusChanged, status=action.status.value, reason=action.reason)
        self._view.rest()

    def _begin_title(self, titler: Any) -> None:
        """Have the title written beside the steps, unless one was written, set or tried. A spawned
        conversation keeps that of its message."""
        context, journal = self.context, self.context.journal
        if context.titling is None and not journal.fold.labelled.tried and not journal.spawned_by:
            context.titling = Titling(context, titler)

    def leave(self) -> None:
        """Record that this thread no longer drives. Idempotent."""
        with self.context.journal.lock:
            if self.thread is threading.current_thread():
                self.thread = None
                self.resting = True
                self.context.journal.lock.notify_all()

    # --- the agent that answers ---

    def _hand_over(self, target: str) -> None:
        """Carry out the last handoff: append the `AgentConfigured` event of the other agent."""
        context, journal = self.context, self.context.journal
        name = resolve_target(target, context.agent_name)
        before = context.agent, context.agent_name
        agent, problem = handoff_problem(context, name)
        if agent is None or problem:
            head = journal.fold.agent  # None if a command named the agent before the first step
            fields = self._model_call.head() if head is None else _fields(head)
            with journal:
                if fields is not None and self._hands_over():
                    journal.add(ev.AgentConfigured, **fields)
                    journal.tell_model(problem, f"handoff:{name}")
            return
        self._take_over(agent, name)
        self._serve()
        fields = self._model_call.head()
        assert fields is not None, "another agent has another name"
        with journal:
            if self._hands_over() and journal.fold.handoff.target == target:
                journal.add(ev.AgentConfigured, **fields)
                return
        self._take_over(*before)
        self._serve()

    def _change_agent(self) -> None:
        """Carry out `Conversation.use`: append the `AgentConfigured` event of the next agent."""
        context, journal = self.context, self.context.journal
        with journal.lock:
            agent, context.next_agent = context.next_agent, None
            before = context.own_agent
            if agent is None or context.closing:
                return
            agent.connections.opened(context.runtime)
            context.own_agent = agent
        self._take_over(agent, "")
        before.connections.closed(context.runtime)
        if journal.spending is not None:
            journal.spending.give_back()
        self.bind_budgets()
        self._serve()
        new_head = self._model_call.head()
        with journal:
            head = journal.fold.agent
            fields = _fields(head) if new_head is None and head is not None else new_head
            if fields is not None and not context.closing:
                journal.add(ev.AgentConfigured, **fields)

    def bind_budgets(self) -> None:
        """Apply the tree limits of the conversation's own agent."""
        journal = self.context.journal
        above = None if self._parent is None else self._parent.spending
        with journal.lock:
            journal.spending = spending_of(journal, self.context.own_agent.tree_limits, above)

    def _hands_over(self) -> bool:
        """Return True if a handoff is still to be carried out. Holds the journal's lock."""
        context = self.context
        return context.journal.fold.handoff.target is not None and not context.closing

    def _take_over(self, agent: Agent, name: str) -> None:
        self.context.agent, self.context.agent_name = agent, name
        self._model_call.take_over()

    def _serve(self) -> None:
        """Connect the agent in force, and open the children that earlier calls gave work to."""
        context, fold = self.context, self.context.journal.fold
        agent, head = context.agent, fold.agent
        if agent is not context.own_agent and not any(one is agent for one in self._guests):
            agent.connections.opened(context.runtime)
            self._guests += (agent,)
        self._condensing.serve()
        # the agent in force may not be the one that delegated
        delegating = delegating_agents(agent, context.own_agent)
        if delegating and fold.assistant is not None:
            self._family.delegation().children.attach(delegating)
        served_before = head is not None and head.name == context.agent_name
        agent.connections.connect(
            [tool.name for tool in head.tools] if served_before and head is not None else ()
        )

    def release_guests(self) -> None:
        """Close the connections of agents that the conversation was handed to."""
        guests, self._guests = self._guests, ()
        for guest in guests:
            guest.connections.closed(self.context.runtime)


def _fields(head: ev.AgentConfigured) -> dict[str, Any]:
    """Return the fields of an event that repeats `head`."""
    names = set(head.__struct_fields__) - {"seq", "id", "timestamp"}
    return {name: getattr(head, name) for name in names}
