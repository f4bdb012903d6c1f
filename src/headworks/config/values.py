"""The kinds of value a key can have, each with its bounds and the sentence that says what is allowed.

A value that needs more than a range raises `PydanticCustomError` of type `WRONG`, whose message is the "what is allowed"
part of a problem. Messages never repeat the value: `problems.py` decides whether it may be shown.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from headworks.config import ledger_url
from headworks.config.address import address
from headworks.config.secret import ENVIRONMENT_NAME

WRONG = "headworks"
SECONDS_MAX = 31 * 86_400.0
NUMBER_MAX = 2**53
"""Beyond it a JSON reader elsewhere would round."""
TEXT_LENGTH_MAX = 1_024
SECRET_KEYS = frozenset({"admin_key", "api_key", "keys", "keys_secret"})
"""Keys whose value is a secret or names one: what was given there is never shown."""


class Section(BaseModel):
    """A group of keys. Unknown keys are refused, values are not converted, and an empty section is one of defaults."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True, validate_default=True
    )

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_empty(cls, value: Any) -> Any:
        return {} if value is None else value


def section(kind: type[Section], sentence: str) -> Any:
    """The field of a section that is all defaults where a file does not have it."""
    return Field(default_factory=lambda: kind.model_validate({}), description=sentence)


def wrong(allowed: str) -> PydanticCustomError:
    """The error of a value that is not allowed, saying what is."""
    return PydanticCustomError(WRONG, "{allowed}", {"allowed": allowed})


def _address(text: str) -> str:
    try:
        address(text)
    except ValueError:
        raise wrong("HOST:PORT such as 127.0.0.1:8080 or [::1]:8080 is allowed") from None
    return text


def _secret(text: str) -> str:
    if ENVIRONMENT_NAME.fullmatch(text) is None:
        raise wrong("only env:NAME is allowed, the name of an environment variable that holds the secret")
    return text


def _split(text: str, allowed: str) -> SplitResult:
    """A URL without credentials, query or fragment, whose port is a port."""
    try:
        url = urlsplit(text)
        sound = bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        sound = False
    if not sound or re.search(r"[\s\x00-\x1f\x7f]", text) or url.query or url.fragment:
        raise wrong(allowed)
    if "@" in url.netloc:
        raise wrong("a URL without user and password is allowed; a key belongs in api_key: env:NAME")
    return url


def _engine_url(text: str) -> str:
    allowed = "http://HOST:PORT or https://HOST:PORT is allowed"
    url = _split(text, allowed)
    if url.scheme not in ("http", "https"):
        raise wrong(allowed)
    if url.path.rstrip("/"):
        raise wrong(allowed + ", without a path: the gateway adds /v1/… itself")
    _refuse_special(url.hostname or "")
    return f"{url.scheme}://{url.netloc}"


def _web_url(text: str) -> str:
    allowed = "a URL that begins with http:// or https:// is allowed"
    url = _split(text, allowed)
    if url.scheme not in ("http", "https") or not text.isascii() or not text.isprintable() or " " in text:
        raise wrong(allowed)
    _refuse_special(url.hostname or "")
    return text


def _refuse_special(host: str) -> None:
    """Addresses that are no engine: everywhere, and the link-local range where clouds keep their credentials."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return
    if ip.is_unspecified or ip.is_link_local or ip.is_multicast:
        raise wrong("the address of one machine is allowed, not an unspecified, link-local or multicast one")


def _ledger_url(text: str) -> str:
    if text == "memory:" or ENVIRONMENT_NAME.fullmatch(text) or re.fullmatch(r"sqlite:[^\x00-\x1f]+", text):
        return text
    allowed = "memory: · sqlite:PATH · valkey://HOST:PORT/0 · valkeys:// · valkey+sentinel:// · valkey+cluster:// are allowed"
    if "@" in text:
        raise wrong(allowed + ", without user and password: put the whole URL into a variable and write env:NAME")
    if not ledger_url.is_shared(text):
        raise wrong(allowed)
    try:
        ledger_url.parse(text)
    except ValueError as error:
        raise wrong(str(error)) from None
    return text


def number_or(word: str, kind: type[int] | type[float], least: float) -> Callable[[Any], Any]:
    """A check for "a number, or this word": one sentence instead of one complaint for each half."""

    def check(value: Any) -> Any:
        is_number = isinstance(value, int) or (kind is float and isinstance(value, float))
        if value == word or (is_number and not isinstance(value, bool) and least <= value <= NUMBER_MAX):
            return value
        raise wrong(f"{word} or a {'whole ' if kind is int else ''}number of at least {least:g} is allowed")

    return check


Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX)]
SecondsOrZero = Annotated[float, Field(ge=0, le=SECONDS_MAX)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, le=NUMBER_MAX)]
NotNegative = Annotated[float, Field(ge=0, le=NUMBER_MAX)]
Percentile = Annotated[float, Field(gt=0, lt=100)]
Count = Annotated[int, Field(ge=1, le=NUMBER_MAX)]
CountOrZero = Annotated[int, Field(ge=0, le=NUMBER_MAX)]
CountOrAuto = Annotated[int | Literal["auto"], BeforeValidator(number_or("auto", int, 1))]
FactorOrAuto = Annotated[float | Literal["auto"], BeforeValidator(number_or("auto", float, 1))]
CountOrFeedback = Annotated[int | Literal["feedback"], BeforeValidator(number_or("feedback", int, 1))]
CountOrNone = Annotated[int | Literal["none"], BeforeValidator(number_or("none", int, 0))]
Mode = Literal["enforce", "observe"]

Text = Annotated[str, StringConstraints(min_length=1, max_length=TEXT_LENGTH_MAX)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""Of classes, tenants, pools: it stands in metrics, in headers and inside the ledger's scopes."""
ModelName = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,256}$")]
ListenAddress = Annotated[str, AfterValidator(_address)]
SecretReference = Annotated[str, AfterValidator(_secret), Field(json_schema_extra={"pattern": ENVIRONMENT_NAME.pattern})]
EngineUrl = Annotated[str, AfterValidator(_engine_url)]
WebUrl = Annotated[str, AfterValidator(_web_url)]
LedgerUrl = Annotated[str, AfterValidator(_ledger_url)]
