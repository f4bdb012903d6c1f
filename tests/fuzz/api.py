"""schemathesis over the document of both ports, against real processes: a fake engine and `headworks serve`.

Called by `scripts/fuzz api`. Exit 1: an answer that the document does not describe, or a fault of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "drills")]

import httpx  # noqa: E402
from processes import Engine, Gateway, configuration, engine, gateway, until  # noqa: E402

from headworks.gateway.openapi import document  # noqa: E402

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method"
KEYS = {"ACME_KEY": "acme-key-of-the-fuzzer-0123", "ADMIN_KEY": "admin-key-of-the-fuzzer-012"}
ENDLESS = "/admin/feed"
UNSAFE = (
    "/admin/tenants/freeze",
    "/admin/mode/observe",
    "/admin/replicas/drain",
    "/admin/replicas/withdraw",
    "/admin/ledger/withdraw",
)
"""They would end the run; `tests/gateway` has them."""
SEED = "1"


def main(command: str, seconds: str) -> int:
    with tempfile.TemporaryDirectory() as folder, engine(0, "--speed", "50", "--natural-tokens", "4") as model:
        directory = Path(folder)
        file = configuration(
            directory,
            model.url,
            server={"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "admin_key": "env:ADMIN_KEY"},
            ledger={"url": f"sqlite:{directory}/l.db"},
            log={"decisions": str(directory / "log")},
            tenants={"acme": {"keys": ["env:ACME_KEY"]}},
        )
        with gateway("--config", str(file), directory=directory, **KEYS) as served:
            command = str(Path(command).absolute())
            found = [ported(command, seconds, served.url, "ACME_KEY", directory, public=True)]
            found.append(ported(command, seconds, served.admin, "ADMIN_KEY", directory, public=False))
            return max(*found, faults(served, model))


def ported(command: str, seconds: str, url: str, key: str, directory: Path, *, public: bool) -> int:
    told = document(public=public, admin=not public)
    for path in (ENDLESS, *UNSAFE):
        told["paths"].pop(path, None)
    schema = directory / ("public.json" if public else "admin.json")
    schema.write_text(json.dumps(told))
    words = [
        command,
        "run",
        str(schema),
        "--url",
        url,
        "--checks",
        CHECKS,
        "--phases",
        "examples,coverage,fuzzing",
        "--seed",
        SEED,
    ]
    words += [
        "--header",
        f"Authorization: Bearer {KEYS[key]}",
        "--max-time",
        seconds,
        "--request-timeout",
        "10",
        "--continue-on-failure",
    ]
    words += ["--suppress-health-check", "all", "--max-examples", "200", "--generation-database", "none", "--warnings", "off"]
    return subprocess.run(words, cwd=directory, env={**os.environ, "NO_COLOR": "1"}, check=False).returncode


def faults(served: Gateway, model: Engine) -> int:
    """Nothing is held, the books are right, and no answer was a fault of ours."""
    admin = {"Authorization": f"Bearer {KEYS['ADMIN_KEY']}"}

    def held() -> tuple[int, object, int]:
        ledger = [
            httpx.get(served.admin + path, headers=admin, timeout=10).json()
            for path in ("/admin/ledger", "/admin/ledger/audit")
        ]
        return int(ledger[0]["charged"]), ledger[1]["differences"], model.inside()

    until(lambda: held() == (0, [], 0))
    print(f"charged, differences and inside the engine: {held()}")
    shown = [line for line in served.get("/metrics").text.splitlines() if "gateway_fault" in line and not line.startswith("#")]
    print("\n".join(shown))
    return int(any(float(line.split()[-1]) for line in shown))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
