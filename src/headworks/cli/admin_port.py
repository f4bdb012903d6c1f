"""Asking a running gateway through its admin port, for the verbs that look into one."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import httpx
import msgspec
import typer

ASK_S_MAX = 10.0
URL_DEFAULT = "http://127.0.0.1:8081"
KEY_VARIABLE = "HEADWORKS_ADMIN_KEY"

AdminOption = Annotated[str | None, typer.Option("--admin", help=f"The admin port. Default: {URL_DEFAULT}")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="Take the admin port and its key from this file.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it stands in the gateway's log.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


class Unasked(Exception):
    """The gateway could not be asked. The text says what was tried and what would help."""


@dataclass(slots=True)
class AdminPort:
    """Where it is, and the key for it."""

    url: str
    key: str | None
    tls: ssl.SSLContext | None = None
    """How it is verified; None: by the system's authorities, or those of SSL_CERT_FILE."""

    def get(self, path: str) -> tuple[int, Any]:
        """Status and decoded body. Ends the verb with 2 when the gateway cannot be asked."""
        return self.ask("GET", path)

    def read(self, path: str, *parts: str) -> Any:
        """A body that has these parts; anything else comes of another server, such as the gateway's own public port."""
        status, body = self.get(path)
        if not isinstance(body, dict) or any(part not in body for part in parts):
            could_not_ask(f"{self.url}{path} answered {status} in other words: that is no admin port of headworks.")
        return body

    def ask(self, method: str, path: str, asked: Any = None) -> tuple[int, Any]:
        """The same with a JSON body. No proxy is used: the admin key and new API keys are for nobody between."""
        try:
            return self.look(path, method, asked)
        except Unasked as error:
            could_not_ask(str(error))

    def look(self, path: str, method: str = "GET", asked: Any = None) -> tuple[int, Any]:
        """The same for whoever goes on without an answer. Raises `Unasked`."""
        if not (self.key or "").isascii():
            raise Unasked(f"the admin key for {self.url} has characters that no header can carry.")
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            with self._client(headers) as client:
                answer = client.request(method, self.url + path, json=asked)
            body = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = str(error).rstrip(".")
            raise Unasked(
                f"{self.url} cannot be asked: {said}. Is a gateway running? --admin URL or --config FILE names it."
            ) from None
        except ValueError:
            raise Unasked(
                f"{self.url}{path} answered {answer.status_code} without JSON: that is no admin port of headworks."
            ) from None
        if answer.status_code == 401:
            raise Unasked(f"{self.url} wants its admin key: set {KEY_VARIABLE}, or name the file with --config.")
        if answer.status_code == 429:
            raise Unasked(f"{self.url}: {body['error']['message']}")
        return answer.status_code, body

    def _client(self, headers: dict[str, str]) -> httpx.Client:
        verify = self.tls or (ssl.create_default_context() if self.url.startswith("https:") else False)
        return httpx.Client(headers=headers, timeout=ASK_S_MAX, trust_env=False, verify=verify)

    def is_there(self) -> bool:
        """Whether anything listens there."""
        try:
            with self._client({}) as client:
                client.get(self.url + "/livez")
        except httpx.TransportError:
            return False
        return True


def admin_port(admin: str | None, config: Path | None) -> AdminPort:
    """From an option, from a configuration file, or where it is by default. The key comes from the environment."""
    if config is None:
        return AdminPort((admin or URL_DEFAULT).rstrip("/"), os.environ.get(KEY_VARIABLE))
    from headworks.config import build
    from headworks.config.load import load

    settings = build.settings(load(str(config), os.environ, exposed_ok=True).config_or_raise(), os.environ)
    tls = None if settings.tls is None else _by_file(settings.tls.cert)
    url = admin or f"{'http' if tls is None else 'https'}://{settings.admin}"
    key = settings.admin_key.reveal() if settings.admin_key is not None else os.environ.get(KEY_VARIABLE)
    return AdminPort(url.rstrip("/"), key, tls)


def _by_file(cert: str) -> ssl.SSLContext:
    """The certificate that the configuration names and no other, whatever name it bears: it is asked by its address here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cert)
    except OSError as error:
        could_not_ask(f"{cert} cannot be read as a certificate: {error.strerror or error}.")
    return context


def admin_ports(admin: str | None, config: Path | None) -> list[AdminPort]:
    """The same of every worker that the file says there are; an option names one."""
    first = admin_port(admin, config)
    if admin is not None or config is None:
        return [first]
    from headworks.config import build
    from headworks.config.load import load

    chosen = load(str(config), os.environ, exposed_ok=True).config_or_raise()
    workers = range(1, chosen.server.workers + 1)
    scheme = first.url.partition(":")[0]
    return [AdminPort(f"{scheme}://{build.settings(chosen, os.environ, one).admin}", first.key, first.tls) for one in workers]


def declare(admin: str | None, config: Path | None, path: str, asked: dict[str, str]) -> dict[str, Any]:
    """Order something of every gateway that is named, whatever the others say; the last one's answer that did it.

    Ends the verb with 2 where one did not.
    """
    done: dict[str, Any] = {}
    undone = []
    for port in admin_ports(admin, config):
        try:
            status, body = port.look(path, "POST", asked)
        except Unasked as error:
            undone.append(str(error))
            continue
        if status == 200 and isinstance(body, dict) and "holds" in body:
            done = body
        else:
            said = body.get("error", {}).get("message") if isinstance(body, dict) else None
            undone.append(f"{port.url} answered {status}: {said or 'in other words'}")
    if undone:
        could_not_ask(" ".join(undone))
    return done


def print_json(value: Any) -> None:
    """An answer for machines."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def could_not_ask(sentence: str) -> NoReturn:
    """It could not run: said on one line, exit 2."""
    typer.echo(f"headworks: {sentence}", err=True)
    raise typer.Exit(2)
