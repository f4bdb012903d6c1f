"""Whom a signed token names (H2): a JWT of one issuer, by that issuer's public keys, to tenant, client and scopes.

PyJWT verifies; here is what it may be asked. An algorithm has to be among those of the configuration, which are all with a
public key, and has to be one that this very key is for: no token chooses how it is read. Of the head nothing else is believed
but the name of the key, which is looked up; addresses and keys in it (`jku`, `x5u`, `jwk`) are never looked at. Signature,
issuer, audience and times come first; what names a tenant is read of claims that have passed them, and of no others.

A token by a key that nobody here knows yet may be good: its issuer has begun to use another. It is told to come back, and the
keys are read again; if it is not among them then, it is refused.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Container
from hashlib import sha256
from typing import Any

import jwt
import msgspec

from headworks.config.settings import TokenRules
from headworks.gateway.issuer_watch import IssuerError
from headworks.gateway.keys import Denied, Identity

KEYS_MAX = 100
KEY_ID_LENGTH_MAX = 256
UNKNOWN_MAX = 1_000
"""Names of keys that nobody knows and that are remembered, so that none of them has the keys read twice."""
RSA_BITS_MAX = 4_096
"""A larger key takes longer to verify by than a request should."""
SHOWN = re.compile(r"[A-Za-z0-9_.:@|-]{1,64}")
"""What a client may be called as its issuer does; else it is a hash of that."""
WRONG: dict[type[jwt.PyJWTError], str] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidIssuerError: "its issuer is another",
    jwt.InvalidAudienceError: "its audience is another",
    jwt.InvalidSignatureError: "its signature is wrong",
}


class _Head(msgspec.Struct):
    alg: str
    kid: str = ""


_head = msgspec.json.Decoder(_Head).decode
_jwks = msgspec.json.Decoder(dict[str, Any]).decode


class Issuer:
    """Verifies its tokens. `wanted` is called where its keys should be read again, and says in how long they will be."""

    def __init__(
        self, rules: TokenRules, tenants: Container[str], wall_s: Callable[[], float], wanted: Callable[[], float]
    ) -> None:
        self._wall_s, self._wanted = wall_s, wanted
        self._keys: dict[tuple[str, str], jwt.PyJWK] = {}
        """By name and algorithm."""
        self._nameless: dict[str, jwt.PyJWK] = {}
        """The only key for an algorithm, where a token names none."""
        self._unknown: dict[str, float] = {}
        """Names of keys that are not among them, and since when they are asked for."""
        self._text = b""
        self._asked_s = self._good_until_s = float("-inf")
        self.change(rules, tenants)

    def change(self, rules: TokenRules, tenants: Container[str]) -> None:
        """By other rules from now on, and by the same keys. If none of them is one by these rules, nothing is at hand."""
        self._rules, self._tenants = rules, tenants
        if not self._text:
            return
        try:
            self._keys, self._nameless = _usable(self._text, rules.algorithms)
        except IssuerError:
            self._text, self._good_until_s = b"", float("-inf")
            self._wanted()  # it is told why when they are read

    def read(self, text: bytes, asked_s: float) -> bool:
        """Take a JWKS that was asked for then. Whether it is another than before. Raises `IssuerError`, and nothing changes."""
        is_other = text != self._text
        if is_other:
            self._keys, self._nameless = _usable(text, self._rules.algorithms)
            self._text = text
        self._asked_s = asked_s
        self._good_until_s = asked_s + self._rules.keep_s
        return is_other

    def identify(self, token: bytes, now_s: float) -> Identity | Denied:
        """Whom it names."""
        if now_s >= self._good_until_s:
            return Denied("identity_unavailable", self._wanted())
        try:
            head = _head(urlsafe_b64decode(token.partition(b".")[0] + b"=="))
        except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError):
            return _invalid("it cannot be read")
        if head.alg not in self._rules.algorithms:
            return _invalid(f"it has to be signed by {' or '.join(self._rules.algorithms)}")
        key = self._keys.get((head.kid, head.alg)) if head.kid else self._nameless.get(head.alg)
        if key is None:
            return self._without_key(head.kid, now_s)
        rules = self._rules
        try:
            claims = jwt.decode(
                token,
                key,
                [head.alg],
                {"require": ["exp", "iss", "aud"]},
                audience=rules.audience,
                issuer=rules.issuer,
                leeway=rules.leeway_s,
            )
            left_s = float(claims["exp"]) + rules.leeway_s - self._wall_s()
        except jwt.MissingRequiredClaimError as error:
            return _invalid(f"it lacks {error.claim}")
        except jwt.PyJWTError as error:
            return _invalid(WRONG.get(type(error), "it cannot be read"))
        except (ValueError, TypeError, OverflowError, RecursionError):  # claims of kinds that no library expects
            return _invalid("it cannot be read")
        return self._named(claims, min(now_s + left_s, self._good_until_s))

    def _without_key(self, name: str, now_s: float) -> Denied:
        """It may be a new one, unless the keys were read since it was first named."""
        if not name or len(name) > KEY_ID_LENGTH_MAX or self._asked_s > self._unknown.get(name, now_s):
            return _invalid("its key is not among its issuer's")
        if name not in self._unknown and len(self._unknown) >= UNKNOWN_MAX:
            del self._unknown[next(iter(self._unknown))]
        self._unknown.setdefault(name, now_s)
        return Denied("identity_unavailable", self._wanted())

    def _named(self, claims: dict[str, Any], until_s: float) -> Identity | Denied:
        rules = self._rules
        said = _listed(_found(claims, rules.tenant_claim))
        named = {rules.tenants.get(one, "") for one in said} if rules.tenants else set(said)
        tenants = [name for name in named if name in self._tenants]
        if len(tenants) != 1:
            what = "more than one tenant" if tenants else "no tenant"
            where = ".".join(rules.tenant_claim)
            return Denied("forbidden", subject=f"The claim {where} of this token names {what} of this gateway.")
        client = _found(claims, rules.client_claim)
        if not isinstance(client, str) or not client:
            return _invalid(f"it lacks {'.'.join(rules.client_claim)}")
        classes = None if rules.classes_claim is None else _scope(_found(claims, rules.classes_claim))
        models = None if rules.models_claim is None else _scope(_found(claims, rules.models_claim))
        return Identity(tenants[0], f"{tenants[0]}/jwt:{_shown(client)}", classes, models, until_s)


def _invalid(why: str) -> Denied:
    return Denied("invalid_token", subject=why)


def _found(claims: Any, way: tuple[str, ...]) -> Any:
    for step in way:
        claims = claims.get(step) if isinstance(claims, dict) else None
    return claims


def _listed(found: Any) -> list[str]:
    """One text, or those of a list. Anything else names nothing."""
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    return [one for one in listed if isinstance(one, str)]


def _scope(found: Any) -> tuple[str, ...]:
    """The same, and where it is one text it has names with spaces between them, as OAuth's `scope`."""
    return tuple(found.split() if isinstance(found, str) else _listed(found))


def _shown(client: str) -> str:
    return client if SHOWN.fullmatch(client) else sha256(client.encode("utf-8", "replace")).hexdigest()[:32]


def _usable(text: bytes, algorithms: tuple[str, ...]) -> tuple[dict[tuple[str, str], jwt.PyJWK], dict[str, jwt.PyJWK]]:
    """The keys of a JWKS that may sign, for each algorithm they are for. Raises `IssuerError` where there is none."""
    try:
        listed = _jwks(text).get("keys")
    except (msgspec.DecodeError, RecursionError):
        raise IssuerError("it is no JSON") from None
    if not isinstance(listed, list):
        raise IssuerError('it is no key set: there is no list "keys"')
    keys: dict[tuple[str, str], jwt.PyJWK] = {}
    of_algorithm: dict[str, list[jwt.PyJWK]] = {}
    for one in listed[:KEYS_MAX]:
        for algorithm in algorithms:
            key = _key(one, algorithm)
            if key is None:
                continue
            of_algorithm.setdefault(algorithm, []).append(key)
            if isinstance(name := one.get("kid"), str):
                keys.setdefault((name, algorithm), key)
    if not of_algorithm:
        raise IssuerError(f"none of its {len(listed)} keys is one for {' or '.join(algorithms)}")
    return keys, {algorithm: found[0] for algorithm, found in of_algorithm.items() if len(found) == 1}


KINDS = {"RS": ("RSA", None), "PS": ("RSA", None), "ES256": ("EC", "P-256"), "ES384": ("EC", "P-384"), "ES512": ("EC", "P-521")}
"""What a key has to be for an algorithm: its kind, and its curve."""


def _key(one: Any, algorithm: str) -> jwt.PyJWK | None:
    """This entry as a key for that algorithm, if it is one."""
    kind, curve = KINDS.get(algorithm) or KINDS.get(algorithm[:2]) or ("OKP", "Ed25519")
    if not isinstance(one, dict) or one.get("kty") != kind or (curve is not None and one.get("crv") != curve):
        return None
    if (
        one.get("alg", algorithm) != algorithm
        or one.get("use", "sig") != "sig"
        or not isinstance(uses := one.get("key_ops", ["verify"]), list)
        or "verify" not in uses
    ):
        return None
    public = {name: value for name, value in one.items() if name in ("kty", "crv", "n", "e", "x", "y")}
    try:
        key = jwt.PyJWK(public, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
        return None
    bits = getattr(key.key, "key_size", 0) if kind == "RSA" else RSA_BITS_MAX
    return key if 2_048 <= bits <= RSA_BITS_MAX else None
