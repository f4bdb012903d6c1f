"""An issuer of tokens for a test: real keys, real signatures, and a server that shows its JWKS, or fails to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://login.example/realms/ai", "headworks"
SECTION: dict[str, Any] = {"issuer": ISSUER, "audience": AUDIENCE, "tenant_claim": "team"}


def key(name: str, kind: str = "RS256", bits: int = 2_048) -> Any:
    """A private key. Each name has one of its own, of each kind."""
    return _key(name, {"E": kind}.get(kind[0], "RSA"), bits)


@cache
def _key(name: str, kind: str, bits: int) -> Any:
    if kind in ("ES256", "ES384"):
        return ec.generate_private_key(ec.SECP256R1() if kind == "ES256" else ec.SECP384R1())
    return ed25519.Ed25519PrivateKey.generate() if kind == "EdDSA" else rsa.generate_private_key(65_537, bits)


def public(name: str, kind: str = "RS256", bits: int = 2_048, **more: Any) -> dict[str, Any]:
    """Its entry in a JWKS; a member that is None is left out."""
    algorithm: Any = {"ES": ECAlgorithm, "Ed": OKPAlgorithm}.get(kind[:2], RSAAlgorithm)
    entry = json.loads(algorithm.to_jwk(key(name, kind, bits).public_key()))
    entry |= {"kid": name, "use": "sig", "alg": kind} | more
    entry.pop("key_ops", None)
    return {member: value for member, value in entry.items() if value is not None}


def jwks(*entries: Any) -> bytes:
    return json.dumps({"keys": entries}).encode()


def token(
    name: str = "one", kind: str = "RS256", *, head: dict[str, Any] | None = None, bits: int = 2_048, **claims: Any
) -> str:
    """Signed by that key; a claim that is None is left out, and so is a member of the head."""
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "team": "acme", "exp": int(time.time()) + 600} | claims
    said = {claim: value for claim, value in said.items() if value is not None}
    return jwt.encode(said, key(name, kind, bits), kind, headers={"kid": name} | (head or {}))


class Jwks:
    """What the server shows. `text` None: it takes the question and says nothing."""

    def __init__(self, text: bytes | None, status: str = "200 OK") -> None:
        self.text, self.status, self.asked = text, status, 0
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            if self.text is None:
                await reader.read()
            else:
                head = f"HTTP/1.1 {self.status}\r\nContent-Type: application/json\r\nContent-Length: {len(self.text)}\r\n\r\n"
                writer.write(head.encode() + self.text)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def shown(page: Jwks, files: dict[str, str] | None = None, port: int = 0) -> AsyncIterator[Jwks]:
    """With `files` over TLS."""
    context = None
    if files is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(files["cert"], files["key"])
    server = await asyncio.start_server(page.answer, "127.0.0.1", port, ssl=context)
    async with server:
        scheme, host = ("http", "127.0.0.1") if files is None else ("https", "localhost")
        page.url = f"{scheme}://{host}:{server.sockets[0].getsockname()[1]}/realms/ai/certs"
        yield page
