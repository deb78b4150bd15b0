"""Search in the contents of conversations over HTTP."""

from typing import Annotated

from fastapi import Query

from holdfast.server.bodies import SearchResults
from holdfast.server.host import Host
from holdfast.server.routes import RouteTable
from holdfast.server.search import ContentSearch, checked_text

routes = RouteTable("/api/search", "conversations")


@routes.get(
    "",
    "Search in conversations",
    slow=True,
    answer_example={
        "hits": [
            {
                "id": "4f0c91d2a6be",
                "title": "Dates that fail",
                "seq": 2,
                "type": "message",
                "text": "Why does test_dates fail?",
            }
        ],
        "conversations": 12,
        "events": 840,
        "next": None,
    },
)
def search_conversations(
    host: Host,
    tenant: str,
    q: Annotated[str, Query(min_length=1, max_length=500, description="The text.")],
    cursor: Annotated[
        str | None,
        Query(pattern="^[0-9]{0,18}(-[0-9]{1,15})?$", description="`next` of the step before."),
    ] = None,
) -> SearchResults:
    """Reads the tenant's journals for some tenths of a second, the newest conversation first, and
    answers with the hits, at most five of a conversation. There is no index: repeat the request
    with `next` as `cursor` until it is null. Letter case does not matter."""
    return ContentSearch(host).step(tenant, checked_text(q), cursor)
