"""Tests of the page's accessibility in many states, judged by axe-core in a real Chromium.
`.ci/run` installs axe-core; without it these tests are skipped."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent_servers import Serving
from tests.browser import CHROMIUM, SKIP, Browser, Page
from tests.page_states import STATES, fill
from tests.paths import REPO

AXE = REPO / ".venv" / "axe" / "node_modules" / "axe-core" / "axe.min.js"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=SKIP),
    pytest.mark.skipif(
        not AXE.exists(), reason="axe-core is missing: npm install --prefix .venv/axe axe-core@4"
    ),
]
FORMS: dict[str, dict[str, Any]] = {
    "wide": {},
    "dark": {"dark": True},
    "phone": {"width": 390, "height": 844, "touch": True},
}


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[Serving, Browser]]:
    with tempfile.TemporaryDirectory() as folder, Serving(Path(folder)) as server:
        fill(server)
        with Browser() as browser:
            yield server, browser


def findings(page: Page) -> list[str]:
    """Return the serious and critical findings, with the elements."""
    page.run(AXE.read_text() + "; 0")
    report = page.run(
        "axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a',"
        " 'wcag21aa', 'wcag22aa', 'best-practice']}).then(found =>"
        " JSON.stringify(found.violations.filter(one => ['serious',"
        " 'critical'].includes(one.impact)).map(one => one.id + ': ' + one.nodes.slice(0,"
        " 4).map(node => node.html.slice(0, 200) + ' ' + (node.any[0]?.message ?? '')).join(' | '))))"
    )
    return json.loads(report)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("state", STATES)
def test_no_state_of_the_page_has_a_serious_finding(
    filled: tuple[Serving, Browser], state: str, form: str
) -> None:
    server, browser = filled
    page = STATES[state](browser, server, FORMS[form])
    try:
        assert findings(page) == []
    finally:
        page.close()


def test_the_judge_finds_what_is_wrong(filled: tuple[Serving, Browser]) -> None:
    server, browser = filled
    page = STATES["login"](browser, server, {})
    page.run("document.querySelector('#dialog').append(document.createElement('button')); 0")
    assert any(one.startswith("button-name") for one in findings(page))
    page.close()
