"""The routes of the page. It holds no figures and no secret, so it is open; what it asks for is behind the admin key.

Nothing on it may come from another place, no script or style stands in the page itself, and text only ever becomes text
(`require-trusted-types-for`): names of tenants and models are other people's, and the page holds an admin key.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PATH = "/dashboard"
PAGE = "page.html"
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
FILES = (PAGE, "page.css", "page.js", "feed.js", "figures.js", "sections.js", "spark.js", "story.js", "tables.js", "icon.svg")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def dashboard_routes() -> list[Route]:
    """The page at `/dashboard`, its parts below. All are read now, once: together they are smaller than one look."""
    return [_route(name) for name in FILES]


def _route(name: str) -> Route:
    content = files(__package__).joinpath(name).read_bytes()
    kind = f"{KINDS[name.rpartition('.')[2]]}; charset=utf-8"
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": tag}

    async def show(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    return Route(PATH if name == PAGE else f"{PATH}/{name}", show)
