"""An index of an application's routes, so that a request is compared with few of their paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.routing import BaseRoute, Match

_ROUTE = "holdfast.route"  # the key in a scope of the route that matches


class RouteIndex(BaseRoute):
    """The routes by the first two parts of their paths. Put it before them: it answers the requests
    that one of them matches, in their order, and leaves all others to them."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        keys = [_key(getattr(route, "path", "")) for route in routes]
        self._routes = {
            key: [
                route
                for own, route in zip(keys, routes, strict=True)
                if own == key[: len(own)]  # a parameter takes any part
            ]
            for key in {*keys, ()}
        }

    def matches(self, scope: Any) -> tuple[Match, Any]:
        """See `BaseRoute.matches`."""
        if scope["type"] == "http" and not scope.get("root_path"):
            key = _key(scope["path"])
            for prefix in (key, key[:1], ()):
                if (routes := self._routes.get(prefix)) is None:
                    continue
                for route in routes:
                    match, child = route.matches(scope)
                    if match is Match.FULL:
                        return match, {**child, _ROUTE: route}
                break
        return Match.NONE, {}

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """See `BaseRoute.handle`."""
        await scope.pop(_ROUTE).handle(scope, receive, send)


def _key(path: str) -> tuple[str, ...]:
    """Return the first two parts of a path, or those before the first parameter."""
    parts = path.split("/", 3)[1:3]
    for count, part in enumerate(parts):
        if "{" in part:
            return tuple(parts[:count])
    return tuple(parts)
