"""Answers that say which pages a port has, to whoever asks for none of them."""

from aiohttp import web
from aiohttp.typedefs import Handler


@web.middleware
async def guide(request: web.Request, handler: Handler) -> web.StreamResponse:
    """`/` lists the pages; a page that is not there, or not for this method, says what is."""
    try:
        return await handler(request)
    except web.HTTPNotFound as error:
        if error.text != f"{error.status}: {error.reason}":  # a page's own words
            raise
        paths = (resource.canonical for resource in request.app.router.resources())
        listed = "".join(f"{path}\n" for path in sorted(paths))
        if request.path == "/":
            return web.Response(text=listed)
        raise web.HTTPNotFound(text=f"there is no such page; there are\n{listed}") from None
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        raise web.HTTPMethodNotAllowed(
            error.method, error.allowed_methods, text=f"this page is for {allowed} only\n"
        ) from None
