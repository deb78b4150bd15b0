"""The title and the tags of a conversation, as they follow from its events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from holdfast import events as ev
from holdfast.errors import ConfigurationError

MAX_TITLE_CHARS = 200
MAX_TAGS = 50
_MAX_FIRST_LINE_CHARS = 80
_MAX_TAG_CHARS = 100
_JOINERS = "\u200c\u200d"  # within emoji and words of some languages
_FORKED = re.compile(r" \(fork(?: (\d{1,6}))?\)$")


class Labels(msgspec.Struct, frozen=True):
    """The labels of a conversation. `named` is True if its title was set: the first line of the
    first message no longer is."""

    title: str = ""
    tags: tuple[str, ...] = ()
    named: bool = False


def labels_after(labels: Labels, event: ev.AnyEvent) -> Labels:
    """Return the labels after an event; the same object if the event changes none."""
    if type(event) is ev.MessageAdded:
        if labels.title or labels.named:
            return labels
        title = event.text.strip().split("\n", 1)[0][:_MAX_FIRST_LINE_CHARS]
        return msgspec.structs.replace(labels, title=title) if title else labels
    if type(event) is ev.ConversationLabelled:
        tags = with_tags(labels.tags, event.add, event.remove)
        if event.title is None:
            return msgspec.structs.replace(labels, tags=tags)
        return Labels(event.title, tags, True)
    return labels


def with_tags(tags: Sequence[str], add: Iterable[str], remove: Iterable[str]) -> tuple[str, ...]:
    """Return tags after a change, each once, in the order in which they were added."""
    removals = frozenset(remove)
    return tuple(dict.fromkeys(tag for tag in (*tags, *add) if tag not in removals))


def fork_title(title: str) -> str:
    """Return the title of a fork: that of its origin with `(fork)`, or a number from the second
    generation on."""
    match = _FORKED.search(title)
    generation = "" if match is None else f" {int(match[1] or 1) + 1}"
    end = f" (fork{generation})"
    origin = title if match is None else title[: match.start()]
    return f"{origin[: MAX_TITLE_CHARS - len(end)]}{end}"


def check_title(where: str, title: object) -> str:
    """Return a title on one line, without characters that are not printable. Raises
    `ConfigurationError` for one that is empty or too long."""
    if not isinstance(title, str):
        raise ConfigurationError(f"{where}: title takes a str, not {title!r:.80}.")
    line = "".join([it for it in " ".join(title.split()) if it.isprintable() or it in _JOINERS])
    line = " ".join(line.split())
    if not line.strip(_JOINERS) or len(line) > MAX_TITLE_CHARS:
        raise ConfigurationError(
            f"{where}: title takes 1 to {MAX_TITLE_CHARS} characters, not {len(line)}."
        )
    return line


def check_tags(where: str, tags: object) -> tuple[str, ...]:
    """Return tags, each once. Raises `ConfigurationError` for one that is no short text."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise ConfigurationError(f"{where}: tags takes a list of str, not {tags!r:.80}.")
    unique: dict[str, None] = {}
    for tag in cast("Iterable[Any]", tags):
        fits = isinstance(tag, str) and tag == tag.strip() and tag.isprintable()
        if not fits or not 0 < len(tag) <= _MAX_TAG_CHARS:
            raise ConfigurationError(
                f"{where}: a tag has 1 to {_MAX_TAG_CHARS} printable characters, without spaces"
                f" around it, not {tag!r:.120}."
            )
        unique[tag] = None
    if len(unique) > MAX_TAGS:
        raise ConfigurationError(f"{where}: at most {MAX_TAGS} tags, not {len(unique)}.")
    return tuple(unique)
