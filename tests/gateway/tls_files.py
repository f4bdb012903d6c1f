"""Certificates made for a test, by the openssl command."""

from __future__ import annotations

import shlex
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with the openssl command")


def made(folder: Path, name: str = "localhost", at: bool = True) -> dict[str, str]:
    """A certificate that signs itself, for a name and, if `at`, for 127.0.0.1; and its key."""
    cert, key = folder / "server.pem", folder / "server.key"
    subprocess.run(
        shlex.split(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
            f" -subj /CN={name} -addext subjectAltName=DNS:{name}{',IP:127.0.0.1' if at else ''} -keyout {key} -out {cert}"
        ),
        check=True,
        capture_output=True,
    )
    return {"cert": str(cert), "key": str(key)}


def trusting(files: dict[str, str]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files["cert"])
