"""The conversations that calls have spawned and that are open in this process, at any depth."""

from __future__ import annotations

from collections.abc import Generator

from holdfast.conversation.conversation import Conversation
from holdfast.conversation.hosting import Hosting
from holdfast.conversation.rests import ChildItem, child_items


def open_below(hosting: Hosting) -> Generator[Conversation]:
    """Yield the conversations below one that are open here."""
    children = hosting.context.children
    for child in () if children is None else children.open():
        yield child
        yield from open_below(child.hosting)


def find_below(hosting: Hosting, id: str) -> Conversation | None:
    """Return the open conversation of this id below one."""
    return next((child for child in open_below(hosting) if child.id == id), None)


def asked_below(hosting: Hosting, decided: frozenset[str] = frozenset()) -> list[ChildItem]:
    """Return the items for the user of the conversations below, without those `decided` just
    now."""
    pending: list[ChildItem] = []
    for child in open_below(hosting):
        journal, awaits = child.hosting.journal, child.hosting.questions.awaits
        with journal.lock:
            items = child_items(child.id, journal.fold, awaits)
        pending += [item for item in items if item.mark not in decided]
    return pending
