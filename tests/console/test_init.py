"""`headworks init URL`: what it finds out, what it writes, and that what it writes can be used (issue of the first day)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from app_scene import SIZES, fake_engine, get, run
from http_port import Client, until

from headworks.cli.main import run as headworks
from headworks.config import build
from headworks.config.load import load
from headworks.gateway.app import App
from headworks.testing.fake.llamacpp import FakeLlamaServer
from headworks.testing.fake.settings import FakeSettings
from headworks.testing.fake.sglang import FakeSglang
from headworks.testing.fake_engine import FakeEngine
from tests.console.engines import LLAMA_CPP, OTHER, answering

Capture = pytest.CaptureFixture[str]
KEY = "a-key-of-the-example-tenant"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_KEY", KEY)


async def init(*words: str) -> int:
    return await asyncio.to_thread(headworks, ["init", *words])


def written(engine: dict[str, Any], out: Path, *words: str) -> dict[str, Any]:
    """The file for a server of these answers."""

    async def steps() -> None:
        async with answering(engine) as url:
            assert await init(url, "--out", str(out), *words) == 0

    run("asyncio", steps())
    found: dict[str, Any] = yaml.safe_load(out.read_text())
    return found


def test_F6_limits_are_four_fifths_of_what_vllm_says_it_can_hold(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "headworks.yaml"

    async def steps() -> None:
        engine = fake_engine()
        async with engine as url:
            assert await init(url, "--out", str(out)) == 0

    run("asyncio", steps())
    pool = yaml.safe_load(out.read_text())["pools"]["tiny"]
    assert pool["active_tokens_max"] == 6_544  # 512 blocks of 16 tokens are 8,192; 0.8 of them are 409 whole ones
    assert pool["models"] == ["tiny"]
    assert pool["replicas"][0]["engine"] == "vllm"
    assert (pool["active_requests_max"], pool["evidence_min"], pool["kv_ratio_max"]) == ("auto", "E3", 0.85)
    text = out.read_text()
    assert "# [engine] 0.8 of 8,192 tokens of memory, in whole blocks" in text
    assert "# [engine] one request can be 2,048 tokens long, answer included" in text
    assert "# [engine] vLLM 0.32.0: proves a stop by E1, E3a, E3b, E4" in text
    told = capsys.readouterr().out
    assert f"{out} written: vLLM 0.32.0, tiny; context 2,048, 8,192 tokens of memory, of which 6,544 may be reserved" in told
    assert f"headworks serve --config {out}" in told
    assert KEY not in told + text


@pytest.mark.parametrize("engine", [LLAMA_CPP, OTHER])
def test_every_value_says_where_it_comes_from(engine: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "h.yaml"
    written(engine, out)
    for line in out.read_text().splitlines():
        value = line.strip().partition("#")[0].strip()
        if value and not value.endswith(":"):
            assert any(source in line for source in ("  # [engine] ", "  # [default] ", "  # [measure] ")), line


def test_the_file_passes_check_and_a_gateway_started_with_it_serves(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "headworks.yaml"

    async def steps() -> None:
        engine = fake_engine()
        async with engine as url:
            assert await init(f"{url}/v1/", "--out", str(out)) == 0
            assert await asyncio.to_thread(headworks, ["check", str(out)]) == 0
            text = out.read_text().replace("127.0.0.1:8080", "127.0.0.1:0").replace("127.0.0.1:8081", "127.0.0.1:0")
            out.write_text(text.replace("decisions: decisions/", f"decisions: {tmp_path}/decisions"))
            config = load(str(out), {"ACME_KEY": KEY}).config_or_raise()
            app = App(build.policy(config, number=1), build.settings(config, {"ACME_KEY": KEY}))
            await app.start()
            try:
                client = Client(*await asyncio.open_connection(*app.address[:2]))
                await until(lambda: app.obstacles() == [])
                client.send(get("/v1/models", f"Authorization: Bearer {KEY}"))
                answer = await client.answer()
                client.close()
                assert [model["id"] for model in answer.json()["data"]] == ["tiny"]
                assert app.snapshot()["pools"]["tiny"]["tokens_limit"] == 6_544
            finally:
                await app.stop()

    run("asyncio", steps())
    assert "can be used" in capsys.readouterr().out


def test_llama_cpp_without_metrics_is_known_by_its_slots(tmp_path: Path) -> None:
    pool = written(LLAMA_CPP, tmp_path / "h.yaml")["pools"]["tiny"]
    assert pool["replicas"][0]["engine"] == "openai"
    assert pool["active_requests_max"] == 3  # 0.8 of 4 slots
    assert pool["active_tokens_max"] == 1_638  # 0.8 of 2,048, which they may share
    assert pool["evidence_min"] == "E1"
    text = (tmp_path / "h.yaml").read_text()
    assert "llama.cpp's server b6100" in text
    assert "# note: with --metrics its stops could be proved (engine: llamacpp)" in text


def file_for(engine: FakeEngine, out: Path) -> dict[str, Any]:
    async def steps() -> None:
        async with engine as url:
            assert await init(url, "--out", str(out)) == 0

    run("asyncio", steps())
    assert headworks(["check", str(out)]) == 0
    found: dict[str, Any] = yaml.safe_load(out.read_text())
    return found


def test_F6_llama_cpp_with_metrics_has_its_own_adapter_and_all_its_slots(tmp_path: Path) -> None:
    engine = FakeLlamaServer(FakeSettings(engine=replace(SIZES, running_max=4), context_tokens=2048))
    found = file_for(engine, tmp_path / "h.yaml")
    pool = found["pools"]["tiny"]
    assert pool["replicas"][0]["engine"] == "llamacpp"
    assert (pool["active_requests_max"], pool["active_tokens_max"], pool["over_commit"]) == ("auto", "auto", 1.0)
    assert (pool["evidence_min"], found["tenants"]["acme"]["active_tokens_max"]) == ("E3", 2048)
    text = (tmp_path / "h.yaml").read_text()
    assert "llama.cpp's server b0-fake: proves a stop by E1, E3a, E3b, E4" in text
    assert "# [engine] its 4 slots: what came beyond would wait inside it" in text
    assert "# [measure] 4.0 if each slot has as many tokens of its own" in text


def test_F6_sglang_is_known_by_its_loads(tmp_path: Path) -> None:
    found = file_for(FakeSglang(FakeSettings(engine=SIZES, context_tokens=2048)), tmp_path / "h.yaml")
    pool = found["pools"]["tiny"]
    assert pool["replicas"][0]["engine"] == "sglang"
    assert pool["active_requests_max"] == 6  # 0.8 of 8 places
    assert pool["active_tokens_max"] == 6_544
    assert (pool["evidence_min"], pool["kv_ratio_max"]) == ("E3", 0.85)
    assert "SGLang 0.5.23-fake: proves a stop by E1, E3b, E4" in (tmp_path / "h.yaml").read_text()


def test_what_nobody_has_said_is_marked_as_to_be_measured(tmp_path: Path) -> None:
    found = written(OTHER, tmp_path / "h.yaml")
    assert found["pools"]["some-model.v2"]["active_tokens_max"] == "auto"
    assert found["pools"]["some-model.v2"]["models"] == ["org/Some-Model.v2"]
    assert "active_tokens_max" not in found["tenants"]["acme"]
    text = (tmp_path / "h.yaml").read_text()
    assert "    active_tokens_max: auto                 # [measure] the engine does not say what it holds" in text
    assert "    active_requests_max: auto               # [measure] the engine does not say how many it runs at once" in text


def test_H3_what_an_engine_says_of_itself_cannot_write_configuration(tmp_path: Path) -> None:
    evil = "b1\nserver: {listen: '0.0.0.0:80'}"
    engine = {
        "/v1/models": {"data": [{"id": "tiny"}, {"id": "a\n  evil: 1"}, {"id": '"]},x:{'}, {"id": "{a: b}"}]},
        "/props": {**LLAMA_CPP["/props"], "build_info": evil},  # type: ignore[dict-item]
    }
    found = written(engine, tmp_path / "h.yaml")
    assert found["server"]["listen"] == "127.0.0.1:8080"
    assert list(found["pools"]) == ["tiny"]
    assert found["pools"]["tiny"]["models"] == ["tiny", '"]},x:{']
    assert "2 of its models are left out" in (tmp_path / "h.yaml").read_text()


def test_nothing_is_overwritten_unless_that_is_said(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "h.yaml"
    out.write_text("mine")

    async def steps() -> None:
        async with answering(OTHER) as url:
            assert await init(url, "--out", str(out)) == 2
            assert out.read_text() == "mine"
            assert "is there already; --force writes over it" in capsys.readouterr().err
            assert await init(url, "--out", str(out), "--force", "--json") == 0

    run("asyncio", steps())
    told = json.loads(capsys.readouterr().out)
    assert (told["file"], told["pool"], told["active_tokens_max"]) == (str(out), "some-model.v2", None)
    assert told["tenant"]["key_variable"] == "ACME_KEY"
    assert out.read_text().startswith("# headworks before an OpenAI-compatible server at http://127.0.0.1:")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:1/v1/models: no connection"),
        ("http://127.0.0.1:1/engine", "without a path"),
        ("ftp://127.0.0.1", "http://HOST:PORT or https://HOST:PORT is allowed"),
    ],
)
def test_an_engine_that_cannot_be_asked_is_said_and_nothing_is_written(
    url: str, said: str, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "h.yaml"
    assert headworks(["init", url, "--out", str(out)]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_server_that_is_no_engine_is_said_to_be_none(tmp_path: Path, capsys: Capture) -> None:
    async def steps() -> None:
        async with answering({"/": {}}) as url:
            assert await init(url, "--out", str(tmp_path / "h.yaml")) == 2

    run("asyncio", steps())
    assert "/v1/models: status 404, expected 200. Is an engine there, and ready?" in capsys.readouterr().err


def test_H2_the_engines_own_key_is_named_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "the-engines-own-secret")
    found = written(OTHER, tmp_path / "h.yaml", "--api-key", "env:ENGINE_KEY")
    assert found["pools"]["some-model.v2"]["replicas"][0]["api_key"] == "env:ENGINE_KEY"
    assert "the-engines-own-secret" not in (tmp_path / "h.yaml").read_text()
