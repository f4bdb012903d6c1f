"""Whom a signed token names, and all that it does not (H2)."""

from __future__ import annotations

import base64
import json
import time
from hmac import digest
from random import Random
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm
from tokens_made import AUDIENCE, ISSUER, SECTION, jwks, key, public, token

from headworks.config.jwt import Jwt, token_rules
from headworks.gateway.issuer import KEYS_MAX, UNKNOWN_MAX, Issuer
from headworks.gateway.issuer_watch import IssuerError
from headworks.gateway.keys import Denied, Identity, Key, Keys

TENANTS = ("acme", "batchco")
ALL = ["RS256", "RS384", "PS256", "ES256", "ES384", "EdDSA"]
SOON_S = 7.0


def issuer(*entries: Any, **section: Any) -> Issuer:
    rules = token_rules(Jwt.model_validate({"keys_file": "x"} | SECTION | section))
    made = Issuer(rules, TENANTS, time.time, lambda: SOON_S)
    made.read(jwks(*(entries or (public("one"),))), 100.0)
    return made


def said(made: Issuer, text: str | bytes, now_s: float = 100.0) -> Identity | Denied:
    return made.identify(text.encode() if isinstance(text, str) else text, now_s)


def invalid(why: str) -> Denied:
    return Denied("invalid_token", subject=why)


def segment(value: Any) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=")


# good ones


@pytest.mark.parametrize("kind", ["RS256", "RS384", "PS256", "ES256", "ES384", "EdDSA"])
def test_H2_a_signed_token_names_tenant_and_client(kind: str) -> None:
    named = said(issuer(public("one", kind), algorithms=ALL), token("one", kind))
    assert isinstance(named, Identity)
    assert (named.tenant, named.client, named.classes, named.models) == ("acme", "acme/jwt:ann", None, None)
    assert named.until_s == pytest.approx(100 + 600 + 30, abs=2.0), "its end, and how far clocks may differ"


@pytest.mark.parametrize(
    ("section", "claims", "tenant"),
    [
        ({"tenant_claim": "groups", "tenants": {"/ai/acme": "acme"}}, {"groups": ["/staff", "/ai/acme"]}, "acme"),
        ({"tenant_claim": ["realm_access", "roles"]}, {"realm_access": {"roles": ["batchco", "offline"]}}, "batchco"),
        ({"tenant_claim": "https://example.com/team"}, {"https://example.com/team": "batchco"}, "batchco"),
        ({"tenants": {"Machine Learning": "acme"}}, {"team": "Machine Learning"}, "acme"),
        ({"tenants": {"a": "acme", "b": "acme"}}, {"team": ["a", "b"]}, "acme"),
        ({}, {"team": "acme", "aud": ["other", AUDIENCE]}, "acme"),
    ],
)
def test_H2_a_claim_is_mapped_to_a_tenant(section: dict[str, Any], claims: dict[str, Any], tenant: str) -> None:
    named = said(issuer(**section), token(**claims))
    assert isinstance(named, Identity) and named.tenant == tenant


@pytest.mark.parametrize(
    ("claims", "what"),
    [
        ({"team": "nobody"}, "no tenant"),
        ({"team": None}, "no tenant"),
        ({"team": ""}, "no tenant"),
        ({"team": {"acme": True}}, "no tenant"),
        ({"team": [["acme"], 5, None]}, "no tenant"),
        ({"team": "acme batchco"}, "no tenant"),
        ({"team": "ACME"}, "no tenant"),
        ({"team": ["acme", "batchco"]}, "more than one tenant"),
    ],
)
def test_H2_a_token_that_names_no_one_tenant_is_forbidden(claims: dict[str, Any], what: str) -> None:
    denied = Denied("forbidden", subject=f"The claim team of this token names {what} of this gateway.")
    assert said(issuer(), token(**claims)) == denied


def test_H2_of_a_long_list_every_name_counts() -> None:
    many = [f"role-{number}" for number in range(300)]
    named = said(issuer(), token(team=[*many, "acme"]))
    assert isinstance(named, Identity) and named.tenant == "acme"
    both = said(issuer(), token(team=["acme", *many, "batchco"]))
    assert isinstance(both, Denied) and both.reason == "forbidden", "its order does not decide who pays"


@pytest.mark.parametrize(
    ("claims", "classes", "models"),
    [
        ({"scope": "openid batch  bulk", "may": ["tiny"]}, ("openid", "batch", "bulk"), ("tiny",)),
        ({"scope": ["batch"], "may": "tiny other"}, ("batch",), ("tiny", "other")),
        ({}, (), ()),
        ({"scope": 7, "may": {"tiny": 1}}, (), ()),
        ({"scope": ["batch", 7, ["bulk"]], "may": ""}, ("batch",), ()),
    ],
)
def test_H2_claims_narrow_classes_and_models_and_without_them_nothing_may_be_used(
    claims: dict[str, Any], classes: tuple[str, ...], models: tuple[str, ...]
) -> None:
    named = said(issuer(classes_claim="scope", models_claim="may"), token(**claims))
    assert isinstance(named, Identity)
    assert (named.classes, named.models) == (classes, models)


@pytest.mark.parametrize(
    ("client", "shown"),
    [
        ("auth0|5f7c", "jwt:auth0|5f7c"),
        ("ann@example.com", "jwt:ann@example.com"),
        ("a b", "jwt:c8687a08aa5d6ed2044328fa6a697ab8"),
        ("x" * 65, "jwt:9537c5fdf120482f7d58d25e9ed583f5"),
        ('"} 1\n', "jwt:c944566355a1a08c70e9a1ed185bb66e"),
    ],
)
def test_H2_a_client_is_called_as_its_issuer_does_or_by_a_hash_of_that(client: str, shown: str) -> None:
    named = said(issuer(), token(sub=client))
    assert isinstance(named, Identity) and named.client == f"acme/{shown}"


# others


def test_H2_no_token_is_taken_whose_signature_is_not_its_issuers() -> None:
    made = issuer()
    head, body, signature = token().encode().split(b".")
    forged = segment({"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "team": "batchco", "exp": int(time.time()) + 600})
    bent = (b"A" if signature[:1] != b"A" else b"B") + signature[1:]
    wrong = invalid("its signature is wrong")
    assert said(made, b".".join((head, forged, signature))) == wrong
    assert said(made, b".".join((head, body, bent))) == wrong
    assert said(made, b".".join((head, body, b""))) == wrong
    assert said(made, token("another", head={"kid": "one"})) == wrong, "another's key under the name of its"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "HS256", "HS384", "RS512", "ES256K", "", "../RS256"])
def test_H2_an_algorithm_that_is_not_configured_is_refused_before_any_key_is_looked_at(algorithm: str) -> None:
    _, body, signature = token().encode().split(b".")
    for one in (signature, b""):
        text = b".".join((segment({"alg": algorithm, "kid": "one"}), body, one))
        assert said(issuer(), text) == invalid("it has to be signed by RS256 or ES256")


def test_H2_a_public_key_is_no_shared_secret() -> None:
    """The oldest confusion: HS256 with the bytes of the public key, which everybody has."""
    made = issuer(algorithms=["RS256"])
    pem = key("one").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    _, body, _ = token().encode().split(b".")
    for secret in (pem, RSAAlgorithm.to_jwk(key("one").public_key()).encode()):
        for claimed in ("HS256", "RS256"):
            signing = segment({"alg": claimed, "kid": "one"}) + b"." + body
            named = said(made, signing + b"." + segment(digest(secret, signing, "sha256")))
            assert isinstance(named, Denied) and named.reason == "invalid_token"


def test_H2_a_key_is_for_its_own_algorithm_alone() -> None:
    """A key that says RS256 verifies no PS256, and one of another kind nothing at all, whatever the token says."""
    made = issuer(public("one"), public("two", "ES256", alg=None), algorithms=ALL)
    for kind, name in (("PS256", "one"), ("RS384", "one"), ("RS256", "two"), ("ES384", "two")):
        denied = said(made, token("mine", kind, head={"kid": name}), 200.0)
        assert isinstance(denied, Denied) and denied.reason == "identity_unavailable", "no such key of that kind is known"


@pytest.mark.parametrize("member", ["jku", "x5u", "jwk", "x5c"])
def test_H2_keys_and_addresses_in_a_token_are_not_looked_at(member: str) -> None:
    bait = public("mine") if member == "jwk" else "http://127.0.0.1:1/jwks"
    assert said(issuer(), token("mine", head={"kid": "one", member: bait})) == invalid("its signature is wrong")


def test_H2_what_a_head_calls_critical_and_nobody_understands_is_refused() -> None:
    for head in ({"crit": ["x"], "x": 1}, {"crit": ["b64"], "b64": False}, {"b64": False}, {"crit": []}):
        denied = said(issuer(), token(head=head) if "b64" not in head else signed_detached(head))
        assert isinstance(denied, Denied) and denied.reason == "invalid_token", head


def signed_detached(head: dict[str, Any]) -> bytes:
    text = segment({"alg": "RS256", "kid": "one"} | head) + b"."
    return text + b"." + segment(RSAAlgorithm(RSAAlgorithm.SHA256).sign(text, key("one")))


class FromNow(int):
    """Seconds from when the test runs, which is long after it was collected."""


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://login.example/realms/other"}, "its issuer is another"),
        ({"iss": ISSUER + "/"}, "its issuer is another"),
        ({"aud": "another"}, "its audience is another"),
        ({"aud": ["another", "headworks2"]}, "its audience is another"),
        ({"aud": []}, "it lacks aud"),
        ({"aud": None}, "it lacks aud"),
        ({"iss": None}, "it lacks iss"),
        ({"exp": None}, "it lacks exp"),
        ({"sub": None}, "it lacks sub"),
        ({"sub": ""}, "it lacks sub"),
        ({"exp": FromNow(-31)}, "it has expired"),
        ({"exp": 0}, "it has expired"),
        ({"exp": -1}, "it has expired"),
        ({"nbf": FromNow(120)}, "it is not valid yet"),
        ({"iat": FromNow(120)}, "it is not valid yet"),
        ({"exp": "soon"}, "it cannot be read"),
        ({"exp": float("inf")}, "it cannot be read"),
        ({"exp": float("nan")}, "it cannot be read"),
        ({"exp": 10**400}, "it cannot be read"),
        ({"exp": [1]}, "it cannot be read"),
        ({"exp": {}}, "it cannot be read"),
        ({"nbf": float("inf")}, "it cannot be read"),
        ({"sub": 5}, "it cannot be read"),
        ({"aud": 5}, "its audience is another"),
    ],
    ids=str,
)
def test_H2_issuer_audience_and_times_are_required(claims: dict[str, Any], why: str) -> None:
    now = int(time.time())
    stated = {name: now + value if isinstance(value, FromNow) else value for name, value in claims.items()}
    assert said(issuer(), token(**stated)) == invalid(why)


@pytest.mark.parametrize("leeway_s", [0, 30, 300])
def test_H2_clocks_may_differ_by_the_leeway_and_no_more(leeway_s: int) -> None:
    made, now = issuer(leeway_s=leeway_s), int(time.time())
    if leeway_s:
        assert isinstance(said(made, token(exp=now - leeway_s + 5)), Identity)
        assert isinstance(said(made, token(nbf=now + leeway_s - 1)), Identity)
    assert said(made, token(exp=now - leeway_s - 1)) == invalid("it has expired")
    assert said(made, token(nbf=now + leeway_s + 5)) == invalid("it is not valid yet")


# keys


def test_H2_a_key_that_nobody_knows_may_be_new_until_the_keys_are_read_again() -> None:
    made, text = issuer(), token("two")
    assert said(made, text, 200.0) == Denied("identity_unavailable", SOON_S)
    made.read(jwks(public("one")), 150.0)
    assert said(made, text, 201.0) == Denied("identity_unavailable", SOON_S), "they had been asked for before"
    made.read(jwks(public("one")), 210.0)
    assert said(made, text, 211.0) == invalid("its key is not among its issuer's")
    assert made.read(jwks(public("one"), public("two")), 220.0)
    assert isinstance(said(made, text, 221.0), Identity)
    assert made.read(jwks(public("two")), 230.0)
    assert said(made, token("one"), 231.0) == Denied("identity_unavailable", SOON_S), (
        "and the one that was taken back opens nothing"
    )


def test_H2_names_of_unknown_keys_are_bounded() -> None:
    made = issuer()
    body = token().encode().split(b".", 1)[1]
    for number in range(UNKNOWN_MAX + 50):
        said(made, segment({"alg": "RS256", "kid": f"k{number}"}) + b"." + body, 200.0)
    assert len(made._unknown) == UNKNOWN_MAX
    assert said(made, segment({"alg": "RS256", "kid": "k" * 257}) + b"." + body) == invalid("its key is not among its issuer's")
    assert len(made._unknown) == UNKNOWN_MAX


def test_H2_a_token_without_a_keys_name_needs_an_issuer_with_one_key() -> None:
    text = jwt.encode(jwt.decode(token(), options={"verify_signature": False}), key("one"), "RS256")
    assert isinstance(said(issuer(public("one", kid=None)), text), Identity)
    assert isinstance(said(issuer(public("one"), public("two", "ES256")), text), Identity), "one for its algorithm"
    assert said(issuer(public("one"), public("two")), text) == invalid("its key is not among its issuer's")


def test_H2_keys_that_are_too_old_verify_nothing() -> None:
    made = issuer(keep_s=50)
    assert isinstance(said(made, token(), 149.0), Identity)
    assert said(made, token(), 150.0) == Denied("identity_unavailable", SOON_S)
    named = said(made, token(), 140.0)
    assert isinstance(named, Identity) and named.until_s == 150.0


BAD_KEYS: list[Any] = [
    *(None, 5, "key", [], {}, {"kty": "RSA"}, {"kty": ["RSA"]}, {"kty": "oct", "k": "c2VjcmV0", "kid": "one", "alg": "HS256"}),
    *({"kty": "RSA", "n": "AQAB", "e": "AQAB"}, {"kty": "RSA", "n": "!!", "e": "AQAB"}, {"kty": "RSA", "n": 5, "e": 3}),
    *({"kty": "RSA", "n": "", "e": ""}, {"kty": "RSA", "n": "9" * 4_000, "e": "AQAB"}, {"kty": "OKP", "crv": "X25519"}),
    {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
    *(public("odd") | {"key_ops": uses} for uses in (None, 5, "verify", {"verify": 1})),
]


def test_H2_keys_that_are_none_are_left_out_and_the_others_are_good() -> None:
    others = public("small", bits=1_024), public("enc", use="enc"), public("ops") | {"key_ops": ["encrypt"]}
    made = issuer(*BAD_KEYS, *others, public("one"))
    assert set(made._keys) == {("one", "RS256")}
    assert isinstance(said(made, token()), Identity)


@pytest.mark.parametrize(
    "text",
    [b"", b"<html>", b"[]", b"5", b"{}", b'{"keys": {}}', b'{"keys": []}', b"\xff", b"[" * 100_000, b'{"keys": [1, null]}'],
    ids=lambda text: repr(text[:20]),
)
def test_H2_a_page_that_is_no_key_set_changes_nothing(text: bytes) -> None:
    made = issuer()
    with pytest.raises(IssuerError):
        made.read(text, 500.0)
    assert isinstance(said(made, token()), Identity)


def test_H2_a_key_set_is_bounded() -> None:
    made = issuer(*[public("one", kid=f"k{number}") for number in range(KEYS_MAX + 5)])
    assert len(made._keys) == KEYS_MAX


def test_H2_a_reload_changes_whom_a_token_names_and_keeps_the_keys() -> None:
    made = issuer()
    made.change(token_rules(Jwt.model_validate({"keys_file": "x"} | SECTION | {"tenants": {"acme": "batchco"}})), TENANTS)
    named = said(made, token())
    assert isinstance(named, Identity) and named.tenant == "batchco"
    made.change(token_rules(Jwt.model_validate({"keys_file": "x"} | SECTION)), ("batchco",))
    assert said(made, token()).__class__ is Denied, "a tenant that was taken out"


def test_H2_rules_that_no_key_is_for_leave_nothing_to_verify_by_until_one_comes() -> None:
    made = issuer()
    made.change(token_rules(Jwt.model_validate({"keys_file": "x"} | SECTION | {"algorithms": ["ES256"]})), TENANTS)
    assert said(made, token()) == Denied("identity_unavailable", SOON_S)
    made.read(jwks(public("one", "ES256")), 101.0)
    assert isinstance(said(made, token("one", "ES256"), 101.0), Identity)


# beside keys


def test_H2_a_token_is_known_again_until_it_ends_and_until_keys_change() -> None:
    verified: list[bytes] = []

    class Counted:
        def identify(self, text: bytes, now_s: float) -> Identity | Denied:
            verified.append(text)
            return made.identify(text, now_s)

    made, keys = issuer(), Keys(b"pepper", [Key("hw-key", Identity("acme", "acme/1"))])
    text = f"Bearer {token(exp=int(time.time()) + 10)}".encode()
    assert len(text) > 512
    assert keys.identify(text, "a", 100.0) == Denied("invalid_api_key"), "nobody takes tokens here"
    keys.tokens = Counted()
    for now_s in (100.0, 101.0, 135.0):
        assert isinstance(keys.identify(text, "a", now_s), Identity)
    assert len(verified) == 1
    keys.identify(text, "a", 141.0)
    assert len(verified) == 2, "it ended at 140, leeway included"
    keys.forget()
    keys.identify(text, "a", 102.0)
    assert len(verified) == 3 and keys.number == 2
    assert keys.identify(b"Bearer hw-key", "a", 100.0) == Identity("acme", "acme/1")
    assert keys.identify(b"Bearer hw-kez", "a", 100.0) == Denied("invalid_api_key") and len(verified) == 3
    assert keys.identify(b"Bearer " + b"x" * 9_000 + b"..", "a", 100.0) == Denied("invalid_api_key") and len(verified) == 3


def test_H2_bad_tokens_are_slowed_down_by_address_and_an_outage_is_nobodys_fault() -> None:
    keys = Keys(b"pepper")
    keys.tokens = issuer()
    bad, good, new = (f"Bearer {text}".encode() for text in (token(exp=0), token(), token("two")))
    for _ in range(20):
        assert keys.identify(bad, "a", 200.0) == invalid("it has expired")
    assert keys.identify(bad, "a", 200.0) == Denied("rate_limit_exceeded", 3.0)
    assert keys.identify(new, "a", 200.0) == Denied("identity_unavailable", SOON_S)
    assert isinstance(keys.identify(good, "a", 200.0), Identity)


def test_H2_no_bytes_are_a_token_and_none_raise() -> None:
    made, random = issuer(algorithms=ALL), Random(4)
    whole = [part for text in (token(), token("one", "ES256")) for part in text.encode().split(b".")]
    deep = segment(b'{"alg":' + b"[" * 3_000)
    pieces = [
        *whole,
        b"",
        b"e30",
        b"bnVsbA",
        segment({"alg": ["RS256"]}),
        segment({"alg": "RS256", "kid": 5}),
        deep,
        b"\xff\x00",
    ]
    for _ in range(3_000):
        text = bytearray(b".".join(random.choice(pieces) for _ in range(random.choice((1, 2, 3, 3, 3, 4)))))
        for _ in range(random.choice((0, 1, 3))):
            if text:
                text[random.randrange(len(text))] = random.randrange(256)
        named = made.identify(bytes(text), 200.0)
        assert isinstance(named, Denied) or bytes(text) == token().encode(), bytes(text)
