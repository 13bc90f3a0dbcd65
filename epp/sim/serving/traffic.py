"""What every request to a simulated engine passes: error bodies and counting."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from epp.errors import EppError
from epp.sim.api import ApiError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

KINDS = {400: "BadRequestError", 500: "InternalServerError", 503: "ServiceUnavailableError"}
"""`error.type` of what the engine itself refuses."""
OTHER = "other"
"""Counts what no route matched, so that the table of counters stays bounded."""


class CutError(ConnectionResetError):
    """The engine cut this connection on purpose; there is nobody left to answer."""


class Traffic:
    """Counts answers by route and status, and turns errors into answers."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}
        self.left = 0
        """Requests whose client left before the end of the answer."""
        self.cut = 0
        """Requests whose connection the engine cut itself."""

    def by_route(self) -> dict[str, dict[str, int]]:
        """Answers by route and status."""
        return {route: dict(counts) for route, counts in self._counts.items()}

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await self._answer(request, handler)
        except CutError:
            self.cut += 1
            return _nobody_listens()
        except ConnectionError:
            self.left += 1
            return _nobody_listens()
        except asyncio.CancelledError:
            self.left += 1
            raise
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else OTHER
        counts = self._counts.setdefault(route, {})
        status = str(response.status)
        counts[status] = counts.get(status, 0) + 1
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            return _refusal(ApiError(413, "BadRequestError", "The request body is too large."))
        except web.HTTPException as error:
            return web.json_response({"detail": error.reason}, status=error.status)
        except ApiError as error:
            return _refusal(error)
        except EppError as error:
            return _refusal(ApiError(error.status, KINDS[error.status], str(error)))


def _refusal(error: ApiError) -> web.Response:
    return web.Response(body=error.body(), status=error.code, content_type="application/json")


def _nobody_listens() -> web.Response:
    """What the HTTP library wants from a handler; it cannot reach the closed connection."""
    return web.Response(status=499)
