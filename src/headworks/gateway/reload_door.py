"""`POST /admin/reload`: the configuration is read again because an operator says so, and he is told what came of it.

Whoever serves knows the file; the gateway only has the door. A file that is no use changes nothing: the answer is 409 with
every problem in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headworks.config.problem import ConfigError
from headworks.gateway.admin_keys import Guard, json_body, refused

REASON_CHARACTERS_MAX = 256


Reload = Callable[[str], Awaitable[str]]
"""Reads the file again, for this reason. Returns the version that is now in force, or raises `ConfigError`."""


def reload_routes(reload: Callable[[], Reload | None], guarded: Guard) -> list[Route]:
    """`reload`: who can do it by now; None where there is no file."""

    async def again(request: Request) -> Response:
        asked = await json_body(request)
        if isinstance(asked, Response):
            return asked
        reason = asked.get("reason") if isinstance(asked, dict) else None
        if not isinstance(reason, str) or not 0 < len(reason) <= REASON_CHARACTERS_MAX or not reason.isprintable():
            return refused(400, "invalid_request", "The body must have reason, a text of one line.")
        do = reload()
        if do is None:
            return refused(409, "invalid_request", "This gateway was started without a file: there is nothing to read again.")
        try:
            version = await do(reason)
        except ConfigError as error:
            problems = [str(problem) for problem in error.problems]
            body = {"error": {"message": "; ".join(problems), "code": "invalid_request"}, "problems": problems}
            return Response(msgspec.json.encode(body), 409, media_type="application/json")
        return Response(msgspec.json.encode({"policy_version": version}), media_type="application/json")

    return [Route("/admin/reload", guarded(again, writes=True), methods=["POST"])]
