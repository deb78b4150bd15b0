"""Tasks of A2A as they follow from journals, and the SDK's types of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from holdfast import events as ev
from holdfast.conversation.fold import Fold, fold
from holdfast.conversation.rests import Rest
from holdfast.serve import a2a_shapes as shapes
from holdfast.serve.a2a_protobuf import json_of, plain_message
from holdfast.server.hosted import HostedSession
from holdfast.server.service import Service
from holdfast.server.shapes import Item

_MOST_VIEWS = 128  # tasks whose views are kept


class TaskAt(NamedTuple):
    """A task at one moment: its conversation, its view of all events, its rest, and its
    workspace."""

    session: HostedSession
    view: shapes.TaskView
    rest: Rest
    workspace: str

    @property
    def state(self) -> str:
        return self.view.status(self.rest)["state"]

    def task(self, history: int | None = None, artifacts: bool = True) -> Any:
        """Return the task with the newest `history` messages (None: all)."""
        task = self.view.task(self.rest)
        if history is not None:
            task["history"] = task["history"][-history:] if history else []
        if not artifacts:
            del task["artifacts"]
        return plain_message("Task", task)

    def at_work(self) -> TaskAt:
        """Return the task as one that works."""
        rest = msgspec.structs.replace(self.rest, reason="ended", pending=(), output=None)
        return self._replace(rest=rest)


class TaskViews:
    """The views of the tasks that were asked for last, each up to an event. Thread-safe.

    A view is made from all events of a task. A request reads the events since the one before it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By tenant, id and time of creation, the one of the oldest use first.
        self._views: dict[tuple[str, str, datetime], tuple[int, shapes.TaskView]] = {}

    def at(self, tenant: str, item: Item, session: HostedSession, folded: Fold) -> TaskAt:
        """Return the task at the moment of a fold."""
        key, last = (tenant, item.id, item.created), folded.last_seq
        with self._lock:
            seq, view = self._views.pop(key, (item.parent_seq, None))
        if view is None or seq > last:
            seq, view = item.parent_seq, _view(item.id, item.tags, item.workspace)
        view = view.copy()
        for event in session.events(seq, last):
            for _ in view.take(event):
                pass
        with self._lock:
            if len(self._views) >= _MOST_VIEWS:
                del self._views[next(iter(self._views))]
            self._views[key] = last, view.copy()
        return TaskAt(session, view, session.rest(folded), item.workspace)


def new_task(session: HostedSession, tags: Sequence[str], workspace: str) -> TaskAt:
    """Return the task of a conversation that has no events yet."""
    view = _view(session.id, tags, workspace)
    return TaskAt(session, view, session.rest(Fold()), workspace)


def _view(id: str, tags: Sequence[str], workspace: str) -> shapes.TaskView:
    context_id = next((tag[8:] for tag in tags if tag.startswith("context=")), id)
    files = f"/api/workspaces/{quote(workspace)}/files/" if workspace else ""
    return shapes.TaskView(id, context_id, files)


def notification(
    service: Service,
    views: TaskViews,
    version: str,
    tenant: str,
    id: str,
    event: ev.AnyEvent,
) -> bytes | None:
    """Return the notification about an event, or None for an event that changes no state."""
    session = HostedSession(service.host, tenant, id)
    folded = session.fold()
    if folded.last_seq != event.seq:
        folded = fold(session.events(0, event.seq))
    task = views.at(tenant, service.host.family.item(tenant, id), session, folded)
    asks = isinstance(event, ev.DecisionMade) and event.question is None
    if asks or task.state == shapes.WORKING:
        return None
    message = task.task(0)
    if version == "0.3":
        from a2a.compat.v0_3 import conversions

        compat: Any = conversions.to_compat_task(message)
        return compat.model_dump_json(by_alias=True, exclude_none=True).encode()
    return json.dumps({"task": json_of(message)}).encode()
