"""TLS to engines and to the store (H1): only what is verified is spoken to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from app_scene import chat, fake_engine, run, scene
from tls_files import made, needs_openssl

from headworks.engines.base import EngineError
from headworks.testing import servers

pytestmark = needs_openssl


@contextlib.asynccontextmanager
async def tls_in_front_of(port: int, files: dict[str, str]) -> AsyncIterator[int]:
    """Ends TLS and passes bytes on, as a proxy beside an engine does."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, inner_writer), pass_on(inner_reader, writer), return_exceptions=True)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files["cert"], files["key"])
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("name", "ca", "is_served", "why"),
    [
        ("localhost", True, True, ""),
        ("localhost", False, False, "TLS: self-signed certificate"),
        ("engine.example.com", True, False, "TLS: Hostname mismatch"),
    ],
    ids=["verified", "unknown authority", "another name"],
)
def test_H1_an_engine_over_tls_is_served_only_when_verified(
    name: str, ca: bool, is_served: bool, why: str, tmp_path: Path
) -> None:
    files = made(tmp_path, name=name, at=False)

    async def steps() -> None:
        engine = fake_engine()
        await engine.start()
        try:
            async with tls_in_front_of(engine.port, files) as port:
                replica = {"url": f"https://localhost:{port}", **({"tls": {"ca": files["cert"]}} if ca else {})}
                async with scene(pool={"models": ["tiny"]}, replica=replica, settle=False) as s:
                    await s.until(lambda: bool(s.app.runner.samplers.failures()) or not s.app.obstacles())
                    answer = await s.ask(chat())
                    assert answer.status == (200 if is_served else 503)
                    if is_served:
                        assert s.app.models.capacity("llama/0").evidence == ("E1", "E3b", "E4"), "no clock proof over TLS"
                    else:
                        assert why in json.dumps(s.app.obstacles())
                    assert engine.requests == (1 if is_served else 0)
        finally:
            await engine.stop()

    run("uvloop", steps())


def test_H1_authorities_that_cannot_be_read_are_an_error_that_changes_nothing(tmp_path: Path) -> None:
    files = made(tmp_path)

    async def steps() -> None:
        async with scene() as s:
            version = s.app.policy.version
            kept = s.texts["pools"]["llama"]["replicas"]
            more = {"url": "https://127.0.0.1:1", "engine": "vllm", "tls": {"ca": files["key"]}}
            config = s.text(pools={"llama": {"replicas": [*kept, more]}})
            with pytest.raises(EngineError, match="holds no certificate authorities for https:"):
                await s.reload(config)
            assert s.app.policy.version == version and list(s.app.engines) == ["llama/0"]
            assert (await s.ask(chat())).status == 200

    run("uvloop", steps())


@pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())
@pytest.mark.parametrize("trusted", [True, False])
def test_H1_the_store_over_tls_is_verified(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = made(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", files["cert"] if trusted else "/dev/null")

    async def steps(port: int) -> None:
        async with tls_in_front_of(port, files) as tls_port:
            ledger = {"url": f"valkeys://127.0.0.1:{tls_port}/0", "lease_s": 5}
            async with scene(pool={"models": ["tiny"]}, ledger=ledger, settle=False) as s:
                if trusted:
                    await s.until(lambda: s.app.obstacles() == [])
                    assert (await s.ask(chat())).status == 200
                else:
                    await s.until(lambda: "is not trusted: self-signed certificate" in caplog.text)
                    answer = await s.ask(chat())
                    assert (answer.status, answer.code) == (503, "ledger_unavailable")

    with servers.single() as store:
        run("uvloop", steps(store.port))
