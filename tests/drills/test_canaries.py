"""Planted secrets, and everything that a gateway of real processes says or writes: none of them is in any of it (I37, H2)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from processes import Engine, configuration, engine, until

from headworks.testing import servers

CANARIES = {
    "ACME_KEY": "canary-tenant-key-0123456789abcdef",
    "ADMIN_KEY": "canary-admin-key-0123456789abcdef",
    "ENGINE_KEY": "canary-engine-key-0123456789abcd",
    "STORE_PASSWORD": "canary-store-password-0123456789",
    "PEPPER": "canary-pepper-0123456789abcdef0123456789",
}
PROMPT = "canary-prompt-0123456789"
WRONG_KEY = "canary-wrong-key-0123456789"
CLIENT = httpx.Client(timeout=60, trust_env=False)
"""A machine that runs many tests at once is slow."""
MARK = "canary-"
TOLD_ON_PURPOSE = "canary-named-request"
"""What a client calls its own request is repeated: it is how it asks for it."""
READS = (
    *("/livez", "/readyz", "/metrics", "/openapi.json", "/dashboard", "/admin/snapshot", "/admin/state", "/admin/ledger"),
    *("/admin/ledger/audit", "/admin/keys", "/admin/replicas", "/admin/cost?by=tenant,client", "/admin/orders"),
    *("/admin/cost?format=html", "/admin/cost?format=csv", "/admin/cost?period=x", f"/admin/explain/{TOLD_ON_PURPOSE}"),
    *("/admin/explain/none", "/admin/snapshot?version=x"),
)
VERBS = (
    *(("check",), ("ledger", "show", "--json"), ("keys", "list", "--json"), ("explain", TOLD_ON_PURPOSE), ("cost",)),
    ("top", "--once"),
)


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Takes spans and metrics over OTLP, and keeps them as they came."""
    heard: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
    finally:
        server.shutdown()
        server.server_close()


class Said:
    """Everything that was said or written, with where."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    def add(self, where: str, text: str | bytes) -> None:
        self.texts.append((where, text.decode("utf-8", "replace") if isinstance(text, bytes) else text))

    def answer(self, where: str, answer: httpx.Response) -> httpx.Response:
        self.add(where, f"{answer.headers!r}\n{answer.text}")
        return answer

    def files(self, directory: Path) -> set[str]:
        """What kinds of them there are."""
        found = [file for file in directory.rglob("*") if file.is_file() and file.name != "headworks.yaml"]
        for file in found:
            self.add(str(file), file.read_bytes())
        return {file.name.partition("-")[0] for file in found}

    def telling(self) -> list[str]:
        """Where a canary stands, and around it."""
        return [
            f"{where}: …{text[max(0, at - 80) : at + 60]!r}…"
            for where, text in self.texts
            if (at := text.replace(TOLD_ON_PURPOSE, "x" * len(TOLD_ON_PURPOSE)).find(MARK)) >= 0
        ]


def chat(url: str, key: str, *, path: str = "/v1/chat/completions", **more: Any) -> httpx.Response:
    body = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": f"one {PROMPT}"}], **more}
    headers = {"Authorization": f"Bearer {key}", "X-Request-Id": TOLD_ON_PURPOSE}
    return CLIENT.post(url + path, json=body, headers=headers)


def bad_requests(url: str, said: Said) -> None:
    """Refusals of each kind, whose prompts and keys are in them."""
    good = CANARIES["ACME_KEY"]
    said.answer("wrong key", chat(url, WRONG_KEY))
    said.answer("no such model", chat(url, good, model="nothing"))
    said.answer("too much", chat(url, good, max_tokens=4_000, n=100))
    said.answer("wrong field", chat(url, good, api_base=f"http://{PROMPT}"))
    said.answer("wrong value", chat(url, good, messages=[{"role": PROMPT, "content": PROMPT}]))
    said.answer("wrong kind", chat(url, good, tools=PROMPT, stop=[1]))
    said.answer(
        "no JSON", CLIENT.post(url + "/v1/completions", content=b'{"prompt": "' + PROMPT.encode(), headers=bearer(good))
    )
    said.answer("another port's key", chat(url, CANARIES["ADMIN_KEY"]))
    said.answer("in the query", CLIENT.get(f"{url}/v1/models?key={quote(good)}"))
    said.answer("anthropic", chat(url, good, path="/v1/messages", system=7))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


def good_requests(url: str, said: Said, upstream: Engine) -> None:
    """Those that run, one that is left, and some whose engine fails. What an engine answers is the client's own."""
    good = CANARIES["ACME_KEY"]
    assert chat(url, good).status_code == 200
    assert chat(url, good, path="/v1/completions", prompt=PROMPT, messages=None).status_code in (200, 400)
    with CLIENT.stream("POST", url + "/v1/chat/completions", headers=bearer(good), content=streamed(2_000)) as answer:
        next(answer.iter_lines())
    for kind in ("error", "break", "garbage"):
        CLIENT.post(f"{upstream.url}/fake/fault?kind={kind}&after_tokens=1&times=1")
        said.add("failed", repr(chat(url, good).headers))
    for own in ("usage", f"explain/{TOLD_ON_PURPOSE}", "cost"):
        said.answer(own, CLIENT.get(f"{url}/v1/headworks/{own}", headers=bearer(good)))


def streamed(tokens: int) -> bytes:
    body = {"model": "tiny", "max_tokens": tokens, "stream": True, "messages": [{"role": "user", "content": PROMPT}]}
    return json.dumps(body).encode()


def settings(directory: Path, upstream: Engine, telemetry: str, ledger: dict[str, Any]) -> Path:
    replica = {"url": upstream.url, "engine": "vllm", "api_key": "env:ENGINE_KEY"}
    return configuration(
        directory,
        upstream.url,
        server={"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "admin_key": "env:ADMIN_KEY", "drain_s": 2},
        ledger=ledger,
        log={"decisions": str(directory / "log")},
        tenants={"acme": {"keys": ["env:ACME_KEY"]}},
        telemetry={"otlp_url": telemetry, "traces_ratio": 1.0},
        pools={"llama": {"replicas": [replica]}},
    )


@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())
def test_I37_no_planted_secret_comes_out_anywhere(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    said = Said()
    password = CANARIES["STORE_PASSWORD"]
    with servers.single() as store, engine() as upstream, collector() as (telemetry, spans):
        store.ask("CONFIG", "SET", "requirepass", password)
        url = f"valkey://:{password}@127.0.0.1:{store.port}/0"
        file = settings(tmp_path, upstream, telemetry, {"url": "env:STORE_URL", "keys_secret": "env:PEPPER"})
        environment = {**os.environ, **CANARIES, "STORE_URL": url, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            words = [sys.executable, "-m", "headworks.cli.main", "serve", "--config", str(file), "--json"]
            child = subprocess.Popen(words, cwd=tmp_path, stdout=out, stderr=err, env=environment)
            try:
                lived(child, tmp_path, said, upstream, file, environment)
                store.kill()
                said.answer("without its store", chat(front(tmp_path)["listening"].removesuffix("/v1"), CANARIES["ACME_KEY"]))
                child.send_signal(signal.SIGABRT)
                child.wait(20)
            finally:
                child.kill()
                child.wait(5)
        until(lambda: spans)
        for span in spans:
            said.add("telemetry", span)
    broken(tmp_path, said, file, environment)
    assert said.files(tmp_path) >= {"out", "err", "decisions", "usage"}
    assert len(said.texts) > 50
    assert "Fatal Python error" in (tmp_path / "err").read_text(), "it has said how it crashed"
    assert said.telling() == []


def front(directory: Path) -> Any:
    return json.loads((directory / "out").read_text().splitlines()[0])


def lived(
    child: subprocess.Popen[bytes], directory: Path, said: Said, upstream: Engine, file: Path, env: dict[str, str]
) -> None:
    """Asked well and badly, on both ports and by every verb."""
    until(lambda: (directory / "out").read_text().count("\n") and child.poll() is None)
    addresses = front(directory)
    url, admin = addresses["listening"].removesuffix("/v1"), addresses["admin"]
    until(lambda: CLIENT.get(admin + "/readyz").status_code == 200)
    bad_requests(url, said)
    good_requests(url, said, upstream)
    headers = bearer(CANARIES["ADMIN_KEY"])
    for path in READS:
        said.answer(path, CLIENT.get(admin + path, headers=headers))
        said.answer(f"{path} without a key", CLIENT.get(admin + path, headers=bearer(WRONG_KEY)))
    with CLIENT.stream("GET", admin + "/admin/feed", headers=headers) as feed:
        said.add("feed", next(feed.iter_text()))
    for asked in ({"tenant": PROMPT}, {"tenant": "acme", "classes": [PROMPT]}, [PROMPT]):
        said.add("keys", repr(CLIENT.post(admin + "/admin/keys", json=asked, headers=headers).headers))
    for verb in VERBS:
        words = [sys.executable, "-m", "headworks.cli.main", *verb, *([str(file)] if verb == ("check",) else [])]
        told = subprocess.run(words, cwd=directory, env=env, capture_output=True, timeout=60, check=False)
        said.add(" ".join(verb), told.stdout + told.stderr)


def broken(directory: Path, said: Said, file: Path, environment: dict[str, str]) -> None:
    """Starts that fail: a store that is not there, a file with secrets where none belong, an address that is none."""
    text = json.loads(file.read_text())
    wrong = [
        {"server": {**text["server"], "admin_key": CANARIES["ADMIN_KEY"]}},
        {"ledger": {"url": f"valkey://:{CANARIES['STORE_PASSWORD']}@h:x/0"}},
        {"tenants": {"acme": {"keys": [CANARIES["ACME_KEY"]]}}},
        {"pools": {"llama": {"replicas": [{"url": f"http://me:{CANARIES['ENGINE_KEY']}@h/", "engine": "vllm"}]}}},
    ]
    for number, part in enumerate(wrong):
        place = directory / f"wrong-{number}"
        place.mkdir()
        (place / "headworks.yaml").write_text(json.dumps({**text, **part}))
        words = [sys.executable, "-m", "headworks.cli.main", "serve", "--config", "headworks.yaml"]
        told = subprocess.run(words, cwd=place, env=environment, capture_output=True, timeout=60, check=False)
        assert told.returncode == 2, told
        said.add(f"wrong {number}", told.stdout + told.stderr)
