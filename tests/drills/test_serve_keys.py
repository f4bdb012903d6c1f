"""Keys among real processes: issued, used, revoked and outliving a kill (H2)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from processes import ask, configuration, engine, gateway, until

TENANTS = {"acme": {"classes": ["interactive", "bulk"]}}


def keys(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headworks.cli.main", "keys", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=30, check=True)


def test_H2_a_key_is_issued_used_survives_a_kill_and_is_revoked_within_five_seconds(tmp_path: Path) -> None:
    with engine() as upstream:
        configuration(tmp_path, upstream.url, ledger={"url": "sqlite:ledger.db"}, tenants=TENANTS)
        key = keys(tmp_path, "add", "--tenant", "acme", "--class", "bulk").stdout.strip()
        bearer = {"Authorization": f"Bearer {key}"}
        with gateway("--config", "headworks.yaml", directory=tmp_path) as front:
            assert ask(front.url, **bearer).status_code == 200
            assert ask(front.url).status_code == 401
            assert ask(front.url, **bearer, **{"Headworks-Class": "interactive"}).status_code == 403
            front.send(signal.SIGKILL)
            front.ended()
        with gateway("--config", "headworks.yaml", directory=tmp_path) as front:
            assert ask(front.url, **bearer).status_code == 200
            (kept,) = json.loads(keys(tmp_path, "list", "--json").stdout)["keys"]
            keys(tmp_path, "revoke", kept["id"])
            revoked_s = time.monotonic()
            until(lambda: ask(front.url, **bearer).status_code == 401)
            assert time.monotonic() - revoked_s < 5.0
            front.send(signal.SIGTERM)
            assert front.ended() == 0
