"""What the configuration tests share: an environment, and reading a text as if it were a file called `h.yaml`."""

from __future__ import annotations

from pathlib import Path

from headworks.config.load import Loaded, load_bytes

ENVIRONMENT = {
    "HEADWORKS_ADMIN_KEY": "admin-0123456789abcdef0123",
    "ACME_KEY": "acme-0123456789abcdef0123",
    "BATCHCO_KEY": "batch-0123456789abcdef012",
    "ENGINE_KEY": "engine-0123456789abcdef01",
    "CLOUD_KEY": "cloud-0123456789abcdef012",
    "HEADWORKS_KEYS_SECRET": "pepper-0123456789abcdef0123456789",
}
EXAMPLE = Path(__file__).parents[2] / "docs" / "config.example.yaml"
POOL = 'pools: {llama: {models: [a, b], replicas: [{url: "http://127.0.0.1:8000", engine: vllm}]}}\n'


def read(text: str, environment: dict[str, str] | None = None, *, exposed_ok: bool = False) -> Loaded:
    """Load a text."""
    return load_bytes(text.encode(), "h.yaml", ENVIRONMENT if environment is None else environment, exposed_ok=exposed_ok)


def problems(text: str, environment: dict[str, str] | None = None, *, exposed_ok: bool = False) -> list[str]:
    """Its problems as they are printed."""
    return [str(problem) for problem in read(text, environment, exposed_ok=exposed_ok).problems]
