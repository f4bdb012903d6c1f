"""Keys of `jwt`: whose signed tokens name tenants, beside API keys (extra: jwt)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, WithJsonSchema

from headworks.config.address import is_loopback
from headworks.config.document import Path
from headworks.config.findings import Finding
from headworks.config.settings import IssuerKeys, TokenRules
from headworks.config.values import Name, Seconds, Section, Text, WebUrl

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Those with a public key only: with a shared secret, whoever can verify a token can make one."""


def _one_is_a_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_STEPS = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 8}
Claim = Annotated[
    list[Text],
    BeforeValidator(_one_is_a_list),
    Field(min_length=1, max_length=8),
    WithJsonSchema({"anyOf": [{"type": "string"}, _STEPS]}),
]
"""A claim's name, or the way to it: [realm_access, roles]."""


class Jwt(Section):
    """Tokens of one issuer (OpenID Connect) that name a tenant, beside API keys."""

    issuer: Text = Field(description="The `iss` that a token has to carry, letter for letter.")
    audience: Text = Field(description="The `aud` that a token has to carry.")
    keys_url: WebUrl | None = Field(None, description="The issuer's JWKS. Read anew as it changes.")
    keys_file: Text | None = Field(None, description="Or a file with it.")
    keys_ca: Text | None = Field(None, description="File with the authorities keys_url is verified by; null: the system's.")
    algorithms: list[Algorithm] = Field(
        ["RS256", "ES256"], min_length=1, description="What tokens may be signed with. None with a shared secret."
    )
    tenant_claim: Claim = Field(
        ["tenant"], description="The claim with the tenant, text or a list; or the way to it, as a list."
    )
    tenants: dict[Text, Name] = Field(
        {}, max_length=10_000, description="What stands in that claim → tenant. None: the tenants' own names stand there."
    )
    client_claim: Claim = Field(["sub"], description="The claim that tells clients of a tenant apart.")
    classes_claim: Claim | None = Field(None, description="The claim with the classes a token may use; without it, none.")
    models_claim: Claim | None = Field(None, description="The same for models.")
    leeway_s: Annotated[float, Field(ge=0, le=300)] = Field(30, description="How far clocks may differ.")
    refresh_s: Seconds = Field(300, description="How often the issuer's keys are read.")
    keep_s: Seconds = Field(86_400, description="How long they are believed while they cannot be read.")

    def names(self, tenant: str) -> bool:
        """Whether a token can be this tenant's."""
        return not self.tenants or tenant in self.tenants.values()


def findings(section: Jwt | None, tenants: dict[str, Any]) -> Iterator[Finding]:
    """What does not fit together in it."""
    if section is None:
        return
    here: Path = ("jwt",)
    url = section.keys_url
    if (url is None) == (section.keys_file is None):
        text = "the issuer's keys are needed from one place: keys_url or keys_file"
        yield Finding(((*here, "keys_url"), (*here, "keys_file"), here), text)
    if url is not None and url.startswith("http://") and not is_loopback(urlsplit(url).hostname or ""):
        text = "over http:// anybody on the way can put in keys of their own, and be every tenant; https:// is needed"
        yield Finding(((*here, "keys_url"),), text)
    if section.keys_ca is not None and (url is None or not url.startswith("https://")):
        yield Finding(((*here, "keys_ca"), (*here, "keys_url")), "keys_ca verifies nothing without an https:// keys_url")
    if not tenants:
        yield Finding((here, ("tenants",)), "no tenants are configured that a token could name")
    for value, name in section.tenants.items():
        if name not in tenants:
            yield Finding(((*here, "tenants", value), ("tenants",)), f"there is no tenant {name}")


def issuer_keys(section: Jwt) -> IssuerKeys:
    """Where they are."""
    return IssuerKeys(section.keys_url, section.keys_file, section.keys_ca)


def token_rules(section: Jwt) -> TokenRules:
    """As the gateway takes them."""
    return TokenRules(
        issuer=section.issuer,
        audience=section.audience,
        algorithms=tuple(section.algorithms),
        tenant_claim=tuple(section.tenant_claim),
        tenants=section.tenants,
        client_claim=tuple(section.client_claim),
        classes_claim=None if section.classes_claim is None else tuple(section.classes_claim),
        models_claim=None if section.models_claim is None else tuple(section.models_claim),
        leeway_s=section.leeway_s,
        refresh_s=section.refresh_s,
        keep_s=section.keep_s,
    )
