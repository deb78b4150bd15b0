"""Tests of the index of routes: it finds the same route as a search through all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from starlette.routing import Match, Route

from holdfast.server import page
from holdfast.server.route_index import RouteIndex
from tests.agent_servers import Serving


def scope_of(path: str, method: str = "GET", **more: Any) -> dict[str, Any]:
    return {"type": "http", "path": path, "method": method, "headers": [], **more}


@pytest.mark.slow
def test_every_route_of_the_server_is_found(tmp_path: Path) -> None:
    with Serving(tmp_path) as server:
        index, *routes = server.app.fastapi.router.routes
        paths = {str(getattr(route, "path", "/")): route for route in routes}
        later = page.files()  # their routes are added after the index
        assert isinstance(index, RouteIndex)
        assert len(paths) > 40
        for path in [re.sub(r"{[^}]*}", "some", path) for path in paths]:
            for method in ("GET", "POST", "PUT", "DELETE"):
                scope = scope_of(path, method)
                matching = [one for one in routes if one.matches(scope)[0] is Match.FULL]
                match, child = index.matches(scope)
                expected = bool(matching) and path not in later
                assert (match is Match.FULL) == expected, (method, path)
                if matching and child:
                    assert child["endpoint"] is matching[0].matches(scope)[1]["endpoint"], path
        missing = server.ask("GET", "/api/none"), server.ask("PATCH", "/api/conversations")
        assert [one.status for one in missing] == [404, 405]


def test_the_first_route_that_matches_wins_also_behind_a_parameter() -> None:
    async def nothing(_: Any) -> None: ...

    paths = ["/a/{x}/c", "/a/b/c", "/{any:path}", "/a/b/d"]
    routes = [Route(path, nothing, name=path) for path in paths]
    index = RouteIndex(routes)
    for path in ("/a/b/c", "/a/z/c", "/a/b/d", "/a", "/", "/z/z", "/a/b/c/d", "//", "/a/"):
        scope = scope_of(path)
        first = next(one for one in routes if one.matches(scope)[0] is Match.FULL)
        assert index.matches(scope)[1]["holdfast.route"] is first, path
    for other in (scope_of("/a/b/c", root_path="/a"), {**scope_of("/a"), "type": "websocket"}):
        assert index.matches(other) == (Match.NONE, {})
