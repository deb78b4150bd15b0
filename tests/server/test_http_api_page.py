"""Tests of the page of the HTTP API: its tables have each route of the server, and its programs,
which `tests/test_docs.py` runs, call each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from tests.agent_servers import Serving
from tests.paths import REPO

PAGE = (REPO / "docs" / "how-to" / "http-api.md").read_text()
CALL = re.compile(r'api\.(?:(get|post|put|delete)\(\s*|stream\("GET", )f?"(/[^"]*)"')


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with Serving(Path(tmp_path_factory.mktemp("server"))) as server:
        paths = server.ask("GET", "/openapi.json").json["paths"]
    return {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


def test_the_tables_have_each_route_once(routes: set[str]) -> None:
    listed = re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(routes)


def test_the_programs_call_each_route(routes: set[str]) -> None:
    called = {
        route_of((method or "get").upper(), path, routes) for method, path in CALL.findall(PAGE)
    }
    assert routes - called == set()


def route_of(method: str, path: str, routes: set[str]) -> str:
    """Return the route that a request reaches: the one with most words of the path."""

    def matches(route: str) -> bool:
        shape = re.sub(r"\{path\}$", ".+", route)
        shape = re.sub(r"\{\w+\}", "[^/]+", shape)
        return re.fullmatch(shape, f"{method} {path}") is not None

    matching = sorted(filter(matches, routes), key=lambda route: route.count("{"))
    assert matching, f"no route for {method} {path}"
    return matching[0]
