"""TLS on both ports and to engines (H1), with the tools that people use: openssl, the stock SDK, httpx."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from app_scene import ENVIRONMENT, LOOPS, Scene, chat, events, first_event, get, rest_of_stream, run, scene
from http_port import Client
from tls_files import made, needs_openssl, trusting

from headworks.cli.admin_port import AdminPort, Unasked, admin_port
from headworks.config.settings import TlsFiles
from headworks.gateway.tls import Certificates, Door, TlsError

pytestmark = needs_openssl
both_loops = pytest.mark.parametrize("loop", LOOPS)
TENANTS = {"acme": {"keys": ["env:ACME_KEY"]}}
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}]}
LONG = 1500
"""Tokens of an answer that takes six seconds: whatever ends sooner was stopped."""


@contextlib.asynccontextmanager
async def tls_scene(files: dict[str, str], **more: Any) -> AsyncIterator[Scene]:
    async with scene(server={"tls": files}, tenants=TENANTS, **more) as s:
        yield s


async def connected(s: Scene, context: ssl.SSLContext) -> Client:
    host, port = s.app.address[:2]
    return Client(*await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost"))


def trusting_both(first: str, cert: Path) -> ssl.SSLContext:
    """One certificate's text, and the file of another."""
    return ssl.create_default_context(cadata=first + cert.read_text())


def write(path: Path, text: str) -> None:
    path.write_text(text)


def shown(client: Client) -> bytes:
    """The certificate that the server showed."""
    certificate = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert isinstance(certificate, bytes)
    return certificate


@both_loops
def test_H1_openssl_gets_an_answer_over_tls_1_2_and_1_3_and_no_other(loop: str, tmp_path: Path) -> None:
    files = made(tmp_path)

    def said(s: Scene, *options: str) -> str:
        host, port = s.app.address[:2]
        fields = f"Host: h\r\nConnection: close\r\nAuthorization: Bearer {ENVIRONMENT['ACME_KEY']}\r\n"
        asked = f"GET /v1/models HTTP/1.1\r\n{fields}\r\n"
        command = ["openssl", "s_client", "-connect", f"{host}:{port}", "-CAfile", files["cert"], "-alpn", "h2,http/1.1"]
        ran = subprocess.run([*command, "-ign_eof", *options], input=asked.encode(), capture_output=True, timeout=20)
        return ran.stdout.decode("latin-1")

    async def steps() -> None:
        async with tls_scene(files) as s:
            for option in ("-tls1_2", "-tls1_3"):
                text = await asyncio.to_thread(said, s, option)
                assert "Verify return code: 0 (ok)" in text
                assert "ALPN protocol: http/1.1" in text
                assert "HTTP/1.1 200 OK" in text and '"tiny"' in text
            text = await asyncio.to_thread(said, s, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0")
            assert "HTTP/1.1" not in text and "Cipher is (NONE)" in text

    run(loop, steps())


@both_loops
def test_H1_plain_http_on_the_tls_port_is_told_so(loop: str, tmp_path: Path) -> None:
    async def steps() -> None:
        async with tls_scene(made(tmp_path)) as s:
            reader, writer = await asyncio.open_connection(*s.app.address[:2])
            writer.write(chat(key="ACME_KEY"))
            said = await asyncio.wait_for(reader.read(), 5)
            assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert said.endswith(b"\r\n\r\nThis port speaks TLS: use https://.\n")
            writer.close()
            assert s.app.server.counters.accepted == 0

    run(loop, steps())


@both_loops
def test_H1_a_client_that_leaves_over_tls_stops_its_work(loop: str, tmp_path: Path) -> None:
    files = made(tmp_path)

    async def steps() -> None:
        async with tls_scene(files) as s:
            for leave in (lambda client: client.close(), lambda client: client.writer.transport.abort()):
                client = await connected(s, trusting(files))
                client.send(chat(key="ACME_KEY", tokens=LONG, stream=True))
                await first_event(client)
                assert s.inside() == 1
                leave(client)
                await s.until(lambda: s.inside() == 0)
                await s.until(lambda: not s.charged())

    run(loop, steps())


def test_H1_the_stock_sdk_over_tls_streamed_or_not_and_a_broken_stream_raises(tmp_path: Path) -> None:
    files = made(tmp_path)

    async def steps() -> None:
        async with tls_scene(files, settle=False) as s:  # its engine does not come back
            await s.until(lambda: s.app.obstacles() == [])
            host, port = s.app.address[:2]

            def work() -> None:
                with (
                    httpx.Client(verify=trusting(files), trust_env=False) as web,
                    openai.OpenAI(
                        base_url=f"https://{host}:{port}/v1", api_key=ENVIRONMENT["ACME_KEY"], http_client=web, max_retries=0
                    ) as client,
                ):
                    answer = client.chat.completions.create(**ASK, max_tokens=5)
                    assert answer.usage is not None and answer.usage.completion_tokens == 5
                    chunks = list(client.chat.completions.create(**ASK, max_tokens=6, stream=True))
                    assert chunks[-1].choices[0].finish_reason == "length"
                    stream = client.chat.completions.create(**ASK, max_tokens=LONG, stream=True)
                    next(iter(stream))
                    asyncio.run_coroutine_threadsafe(cut(), loop).result(5)
                    with pytest.raises((openai.APIError, httpx.HTTPError)):
                        list(stream)

            async def cut() -> None:
                await s.engines[0].stop()

            loop = asyncio.get_running_loop()
            await asyncio.to_thread(work)

    run("uvloop", steps())


@both_loops
def test_H1_another_certificate_is_shown_from_the_next_handshake_on_and_streams_go_on(loop: str, tmp_path: Path) -> None:
    files = made(tmp_path)
    cert = Path(files["cert"])
    first = cert.read_text()

    async def steps() -> None:
        async with tls_scene(files) as s:
            before = await connected(s, trusting(files))
            before.send(chat(key="ACME_KEY", tokens=120, stream=True))
            await first_event(before)
            made(tmp_path)
            either = trusting_both(first, cert)
            await s.reload(s.text())
            after = await connected(s, either)
            assert shown(after) != shown(before)
            after.send(chat(key="ACME_KEY"))
            assert (await after.answer()).status == 200
            assert s.app.certificates is not None
            for spoil in (lambda: write(cert, "no certificate"), lambda: write(cert, ""), lambda: os.unlink(cert)):
                spoil()
                assert not s.app.certificates.refresh()
            still = await connected(s, either)
            assert shown(still) == shown(after)
            said, whole = await rest_of_stream(before)
            assert whole and events(said)[-1] == "[DONE]"
            for client in (before, after, still):
                client.close()

    run(loop, steps())


def test_H1_files_that_change_are_noticed_without_a_reload(tmp_path: Path) -> None:
    files = made(tmp_path)
    certificates = Certificates(TlsFiles(**files))
    seen = certificates._looks()
    assert certificates._looks() == seen
    made(tmp_path)
    assert certificates._looks() != seen


BAD_FILES: dict[str, tuple[Callable[[dict[str, str]], None], str]] = {
    "no such file": (lambda files: os.unlink(files["key"]), "No such file or directory"),
    "another's key": (lambda files: Path(files["key"]).write_text(OTHER_KEY()), "KEY_VALUES_MISMATCH"),
    "no certificate": (lambda files: Path(files["cert"]).write_text("hello"), "PEM lib"),
    "an encrypted key": (lambda files: Path(files["key"]).write_text(encrypted(files)), "the key is encrypted"),
}


def OTHER_KEY() -> str:
    made_key = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    return subprocess.run(made_key, check=True, capture_output=True, text=True).stdout


def encrypted(files: dict[str, str]) -> str:
    command = ["openssl", "pkcs8", "-topk8", "-in", files["key"], "-passout", "pass:secret"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("case", BAD_FILES)
def test_H1_what_is_no_certificate_is_refused_at_the_start_and_says_why(case: str, tmp_path: Path) -> None:
    files = made(tmp_path)
    spoil, why = BAD_FILES[case]
    spoil(files)
    with pytest.raises(TlsError) as raised:
        Certificates(TlsFiles(**files))
    assert files["cert"] in str(raised.value) and why in str(raised.value)


@both_loops
def test_H1_peers_before_their_handshake_are_bounded_in_number_and_time(loop: str, tmp_path: Path) -> None:
    files = made(tmp_path)

    async def steps() -> None:
        door = Door(Certificates(TlsFiles(**files)).context, wait_s=0.2, handshakes_max=8)
        async with accepting(door) as (port, served):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            half = silent[0][1]
            half.write(b"\x16\x03\x01")  # has begun, and goes no further
            await until_true(lambda: door._before == {"127.0.0.1": 4})
            fifth, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await asyncio.wait_for(fifth.read(), 5) == b"", "half of the places is one address's share"
            assert door.refused == 1
            for reader, _ in silent:
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 5) == b""
            await until_true(lambda: door._before == {})
            context = trusting(files)
            _, last_writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
            await until_true(lambda: len(served) == 1)  # their places are free again
            for one in (writer, last_writer, *(one for _, one in silent)):
                one.close()

    run(loop, steps())


async def until_true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 (nobody sets an event for it)
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def accepting(door: Door) -> AsyncIterator[tuple[int, list[asyncio.Protocol]]]:
    """A port behind a door; and what was let in."""
    loop = asyncio.get_running_loop()
    served: list[asyncio.Protocol] = []

    class Served(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            served.append(self)

    async def let_in(accepted: socket.socket) -> None:
        try:
            await door.let_in(Served, accepted)
        except OSError:
            accepted.close()

    async def accept() -> None:
        while True:
            accepted, _ = await loop.sock_accept(listening)
            accepted.setblocking(False)
            tasks.append(asyncio.create_task(let_in(accepted)))

    tasks: list[asyncio.Task[None]] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        tasks.append(asyncio.create_task(accept()))
        try:
            yield listening.getsockname()[1], served
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def test_H1_the_admin_port_is_verified_by_the_file_that_the_configuration_names(tmp_path: Path) -> None:
    files = made(tmp_path, name="gateway.example.com")
    (tmp_path / "other").mkdir()
    others = made(tmp_path / "other")

    async def steps() -> None:
        async with tls_scene(files) as s:
            host, port = s.app.admin_address[:2]
            text = {**s.texts, "server": {**s.texts["server"], "admin": f"{host}:{port}"}}
            config = tmp_path / "headworks.yaml"
            config.write_text(json.dumps(text))
            for name, value in ENVIRONMENT.items():
                os.environ[name] = value
            try:
                asked = admin_port(None, config)
            finally:
                for name in ENVIRONMENT:
                    del os.environ[name]
            assert asked.url == f"https://{host}:{port}"
            status, body = await asyncio.to_thread(asked.look, "/admin/snapshot")
            assert status == 200 and "pools" in body
            stranger = AdminPort(asked.url, None)
            with pytest.raises(Unasked, match="certificate verify failed"):
                await asyncio.to_thread(stranger.look, "/admin/snapshot")
            other = AdminPort(asked.url, None, trusting(others))
            with pytest.raises(Unasked, match="certificate verify failed"):
                await asyncio.to_thread(other.look, "/admin/snapshot")

    run("uvloop", steps())


def test_H1_tls_does_not_loosen_the_table_of_heads(tmp_path: Path) -> None:
    """The port behind the door is the same: a few of its raw payloads, over TLS."""
    files = made(tmp_path)
    payloads = {
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n": 400,
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n": 400,
        b"GET /v1/models HTTP/9.9\r\nHost: a\r\n\r\n": 505,
        get("/nowhere"): 404,
    }

    async def steps() -> None:
        async with tls_scene(files) as s:
            for payload, status in payloads.items():
                client = await connected(s, trusting(files))
                client.send(payload)
                assert (await client.answer()).status == status
                client.close()

    run("uvloop", steps())
