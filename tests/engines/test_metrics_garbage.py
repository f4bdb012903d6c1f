"""A page that was made to be slow to read is not (B4)."""

from __future__ import annotations

from headworks.engines.metrics_text import series


def test_B4_braces_that_never_close_cost_no_more_than_their_line() -> None:
    """Forty thousand of them took minutes: each was read to the end of the page (this would not end within a test's limit)."""
    page = b"DCGM_FI_PROF_SM_ACTIVE{\n" * 40_000 + b'DCGM_FI_PROF_SM_ACTIVE{gpu="0"} 0.5\n'
    assert list(series(page, b"DCGM_FI_PROF_SM_ACTIVE")) == [({"gpu": "0"}, 0.5)]
