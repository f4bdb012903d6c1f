"""`headworks explain ID --policy`: on the log of a whole gateway (F2)."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from app_scene import chat, first_event, rest_of_stream, run, scene

from headworks.cli.main import run as headworks

REFUSES = {"interactive": {"on_tenant_full": "refuse", "slo": {"ttft_s": 20}, "queue": {"wait_s_max": 20}}}


def test_F2_explain_says_what_another_policy_would_have_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wider = tmp_path / "wider.yaml"

    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "active_requests_max": 1}}
        async with scene(tenants=tenants, classes=REFUSES) as s:
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", key="ACME_KEY", stream=True, tokens=600))
            await first_event(client)
            assert (await s.ask(chat("Idempotency-Key: k2", key="ACME_KEY", tokens=5))).status == 429
            await rest_of_stream(client)
            client.close()
            await s.settled()
            assert s.app.log is not None
            s.app.log.flush()
            shutil.copytree(s.app.log.directory, tmp_path / "log")
            changed = {**s.texts, "tenants": {"acme": {"keys": ["env:ACME_KEY"], "active_requests_max": 2}}}
            await asyncio.to_thread(wider.write_text, json.dumps(changed))

    run("uvloop", steps())
    status = headworks(["explain", "k2", "--policy", str(wider), "--log", str(tmp_path / "log")])
    text = capsys.readouterr().out
    assert status == 0, text
    before, _, after = text.partition("Under policy ")
    assert "it was refused at once: tenant acme would have 2 sequences running, and may have 1" in before
    assert "it was admitted at once" in after and "cannot be relied on" not in after
    status = headworks(["explain", "k2", "--policy", str(wider), "--log", str(tmp_path / "log"), "--json"])
    (other,) = json.loads(capsys.readouterr().out)["otherwise"]
    assert status == 0 and other["holds"] and other["line"]["record"]["outcome"] == "admit"
    assert headworks(["explain", "nobody", "--policy", str(wider), "--log", str(tmp_path / "log")]) == 1
