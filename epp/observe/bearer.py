"""Who may see a port's pages: whoever shows its token."""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from epp.config.token import is_token


def bearer(token: str) -> Middleware:
    """Answers 401 to every request without it, also to those for pages that there are not."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not is_token(given.strip(), token):
            raise web.HTTPUnauthorized(
                text="show the token of --admin-token-file: authorization: Bearer …\n",
                headers={"www-authenticate": 'Bearer realm="epp"'},
            )
        return await handler(request)

    return check
