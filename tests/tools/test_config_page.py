"""Tests of the page of the action space: it names every key and every legacy spelling of a
configuration."""

from __future__ import annotations

import re
from typing import Any

from holdfast.errors import RETRY_PRESETS
from holdfast.tools.config import legacy
from holdfast.tools.config.keys import schema
from tests.paths import REPO

PAGE = (REPO / "docs/how-to/action-space.md").read_text()
NAMED = {word for code in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"[\w$]+", code)}


def keys(section: dict[str, Any]) -> set[str]:
    names = set(section.get("properties", {}))
    return names.union(*map(keys, section.get("$defs", {}).values()))


def test_every_key_of_the_configuration_is_on_the_page() -> None:
    assert keys(schema()) - NAMED == set()


def test_every_legacy_spelling_is_on_the_page() -> None:
    entries = {name for of in legacy._KEYS.values() for name, now in of.items() if now}
    spellings = {*legacy.SECTIONS, *entries, *legacy._SKILL_SCOPES}
    assert spellings - NAMED == set()


def test_every_type_of_error_is_on_the_page_with_its_preset() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (yes|no) \| (\d?) ?\| (\w*) ?\|", PAGE, re.MULTILINE)
    stated = {
        name: (retried == "yes", int(most or 0), pause or "none")
        for name, retried, most, pause in rows
    }
    assert stated == RETRY_PRESETS
