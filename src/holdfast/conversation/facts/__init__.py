"""Facts that features keep of a conversation, each a small reducer in its own module.

A reducer is a frozen struct. `feed` returns it after an event that it declares; it is called before
the fold itself changes. `checkpoint` returns its fields of `events.Checkpoint`; `restore`
makes it of a checkpoint. A decision on the facts is a method with a name of its own, such as
`RunCounters.reached`; `next_action` puts the decisions in order.

To add one, write a module and a line in `FEATURES`.
"""

from holdfast.conversation.facts.answers import BlankAnswers
from holdfast.conversation.facts.call_kinds import CallKinds
from holdfast.conversation.facts.condensations import CondensationFacts
from holdfast.conversation.facts.handoffs import HandoffFacts
from holdfast.conversation.facts.hooks import HookCounts
from holdfast.conversation.facts.output import OutputFacts
from holdfast.conversation.facts.own_messages import OwnMessages
from holdfast.conversation.facts.pictures import PictureFacts
from holdfast.conversation.facts.plan import PlanFacts
from holdfast.conversation.facts.run import RunCounters

FEATURES = {
    "output": OutputFacts,
    "planning": PlanFacts,
    "handoff": HandoffFacts,
    "hooks": HookCounts,
    "blanks": BlankAnswers,
    "run": RunCounters,
    "condensation": CondensationFacts,
    "call_kinds": CallKinds,
    "own_messages": OwnMessages,
    "pictures": PictureFacts,
}
"""The reducers by their attribute of `Fold`."""
