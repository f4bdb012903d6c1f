"""The admin port's lock, and its routes for stored keys (H2).

The lock belongs to a route, so no way of writing a path or a Host gets around it. What only reads is open where no admin
key is known at all, as the port is on loopback unless told otherwise. What writes keys is not: whoever can reach
loopback, another user of the machine or a page in a browser, must not thereby become every tenant.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from hmac import compare_digest
from typing import Protocol, TypeGuard

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headworks.gateway import clock
from headworks.gateway.key_watch import KeyWatch
from headworks.gateway.keys import Failures

BODY_BYTES_MAX = 65_536
TEXT_CHARACTERS_MAX = 256
"""Of a name or a reason."""

CONFIGURED_KEY = "server.admin_key"
THIS_GATEWAY = "this gateway"
NO_KEY = "nobody (no admin key)"
"""Who did something, where it was not a stored key: those are called by their ids."""
Endpoint = Callable[[Request], Awaitable[Response]]


class Guard(Protocol):
    """Puts the lock on an endpoint. `writes`: it stays shut where no admin key is known."""

    def __call__(self, endpoint: Endpoint, *, writes: bool = False) -> Endpoint: ...


def guard(admin_key: str | None, stored: KeyWatch | None, clock_s: Callable[[], float] = clock.now_s) -> Guard:
    """Let in whoever has the configured admin key, or a stored one. Wrong ones are slowed down by address.

    An answer that goes on asks `request.state.still_opens` again: a key may be revoked meanwhile. Whose key it was stands in
    `request.state.actor`.
    """
    wanted = None if admin_key is None else f"Bearer {admin_key}".encode()
    failures = Failures()

    def is_open() -> bool:
        return wanted is None and (stored is None or not stored.admin_exists)

    def opener(given: bytes) -> str:
        """By the name of which key it opens; empty: it does not."""
        if wanted is not None and compare_digest(given, wanted):
            return CONFIGURED_KEY
        return NO_KEY if is_open() else stored.keys.admin(given) if stored is not None else ""

    def guarded(endpoint: Endpoint, *, writes: bool = False) -> Endpoint:
        async def checked(request: Request) -> Response:
            if writes and is_open():
                return refused(403, "forbidden", NO_ADMIN_KEY)
            given = request.headers.get("authorization", "").encode("latin-1", "replace")
            if name := opener(given):
                request.state.actor = name
                request.state.still_opens = partial(opener, given)
                return await endpoint(request)
            wait_s = failures.failed(request.client.host if request.client else "", clock_s())
            if wait_s is not None:
                return refused(429, "rate_limit_exceeded", f"Too many wrong admin keys: try again in {wait_s:.0f} s.", wait_s)
            return refused(401, "invalid_api_key", "The admin key is missing or wrong.")

        return checked

    return guarded


NO_ADMIN_KEY = (
    "Keys are changed over this port only with an admin key, and none is known: set server.admin_key, or run headworks keys "
    "where the ledger's file is, as its owner, or, on a shared ledger, where its secrets are."
)


def key_routes(stored: KeyWatch, guarded: Guard) -> list[Route]:
    """`/admin/keys`. Bodies are JSON; the answer to add and rotate is the only place where a key is ever shown."""

    async def listed(_: Request) -> Response:
        return await _answer(stored, "list")

    async def add(request: Request) -> Response:
        asked = await json_body(request)
        return asked if isinstance(asked, Response) else await _answer(stored, "add", "", asked)

    async def rotate(request: Request) -> Response:
        asked = await json_body(request)
        return asked if isinstance(asked, Response) else await _answer(stored, "rotate", request.path_params["name"], asked)

    async def revoke(request: Request) -> Response:
        asked = await json_body(request)
        return asked if isinstance(asked, Response) else await _answer(stored, "revoke", request.path_params["name"])

    return [
        Route("/admin/keys", guarded(listed)),
        Route("/admin/keys", guarded(add, writes=True), methods=["POST"]),
        Route("/admin/keys/{name}/rotate", guarded(rotate, writes=True), methods=["POST"]),
        Route("/admin/keys/{name}/revoke", guarded(revoke, writes=True), methods=["POST"]),
    ]


async def _answer(stored: KeyWatch, verb: str, name: str = "", asked: object = None) -> Response:
    """The desk's answer. Nobody between here and the operator may keep it."""
    status, body = await stored.desk.do(verb, name, asked)
    return Response(msgspec.json.encode(body), status, {"Cache-Control": "no-store"}, "application/json")


async def json_body(request: Request) -> object:
    """What is asked, or the answer to a body that says nothing. JSON by name: a form of a web page cannot send that."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return refused(415, "invalid_request", "The body must be JSON: send Content-Type: application/json.")
    received = b""
    async for piece in request.stream():
        received += piece
        if len(received) > BODY_BYTES_MAX:
            return refused(413, "body_too_large", f"The body has more than {BODY_BYTES_MAX:,} bytes.")
    try:
        return msgspec.json.decode(received)
    except (msgspec.DecodeError, RecursionError):
        return refused(400, "invalid_request", "The body is not JSON.")


async def asked_of(request: Request, subject: str) -> tuple[str, str] | Response:
    """Of what something is declared, and why; or the answer to a body that does not say so. No subject: of this gateway."""
    asked = await json_body(request)
    if isinstance(asked, Response):
        return asked
    if not subject and isinstance(asked, dict):
        asked = {**asked, subject: THIS_GATEWAY}
    name, reason = (asked.get(key) if isinstance(asked, dict) else None for key in (subject, "reason"))
    if not (_is_text(name) and _is_text(reason)):
        wanted = f"{subject} and reason, both texts" if subject else "reason, a text"
        return refused(400, "invalid_request", f"The body must have {wanted} of one line.")
    return name, reason


def _is_text(value: object) -> TypeGuard[str]:
    """It is written into the log as it is: a line of its own there would be one that nobody declared."""
    return isinstance(value, str) and 0 < len(value) <= TEXT_CHARACTERS_MAX and value.isprintable()


def refused(status: int, code: str, message: str, retry_after_s: float | None = None) -> Response:
    """An error in the admin port's words."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(retry_after_s))
    return JSONResponse({"error": {"message": message, "code": code}}, status, headers)
