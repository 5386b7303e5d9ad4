"""Groups of items that are the same, or nearly."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query
from starlette.responses import Response

from modalhash.engine import FilterError
from modalhash.serve import schemas
from modalhash.serve.errors import HTTPError, json_response
from modalhash.serve.openapi import error_responses
from modalhash.serve.service import Service
from modalhash.serve.settings import MAX_DUPLICATE_GROUPS, MAX_DUPLICATE_ITEMS

N_GROUPS = 50


def add_duplicate_routes(app: FastAPI, service: Service) -> None:
    """Add the route of duplicates."""

    @app.get("/duplicates", response_model=schemas.DuplicatesResponse, responses=error_responses(), tags=["items"])
    async def duplicates(
        modality: Annotated[schemas.Name | None, Query(description="The modality to look in; all by default.")] = None,
        where: Annotated[
            schemas.FilterText | None, Query(description="Only among items that pass this filter, as text or as JSON.")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_DUPLICATE_GROUPS, description="The number of groups.")] = N_GROUPS,
        offset: Annotated[int, Query(ge=0, le=2**31, description="How many groups to leave out before them.")] = 0,
    ) -> Response:
        """Return groups of items of one modality that are the same, or nearly: exact ones first.

        The first request after a change compares all items. In a large engine it may be answered with 503; the work
        goes on, and a later request gets what was found.
        """
        return json_response(
            await service.in_thread("duplicates", _find_duplicates, service, modality, where, limit, offset)
        )


def _find_duplicates(
    service: Service, modality: str | None, where: str | None, limit: int, offset: int
) -> dict[str, Any]:
    if modality is not None:
        service.searcher.check_modalities(modality)
    try:
        chosen = None if where is None else service.engine.check_filter(where)
    except FilterError as error:
        raise HTTPError(422, f"where: {error}") from None
    groups = service.engine.duplicates(modality=modality, where=chosen, limit=limit + 1, offset=offset)
    shown = groups[:limit]
    return {
        "groups": [[schemas.hit_json(item) for item in group.items[:MAX_DUPLICATE_ITEMS]] for group in shown],
        "exact": [group.exact for group in shown],
        "sizes": [len(group.items) for group in shown],
        "more": len(groups) > limit,
        "message": None,
    }
