"""A page that was made to be slow to read is not (B4)."""

from __future__ import annotations

import pytest

from headworks.engines.metrics_text import series, value


def test_B4_braces_that_never_close_cost_no_more_than_their_line() -> None:
    """Forty thousand of them took minutes: each was read to the end of the page (this would not end within a test's limit)."""
    page = b"DCGM_FI_PROF_SM_ACTIVE{\n" * 40_000 + b'DCGM_FI_PROF_SM_ACTIVE{gpu="0"} 0.5\n'
    assert list(series(page, b"DCGM_FI_PROF_SM_ACTIVE")) == [({"gpu": "0"}, 0.5)]


@pytest.mark.parametrize("lie", [b"-1", b"-0.001", b"NaN", b"+Inf", b"-Inf", b"1e300", b"9007199254740993e3"])
def test_K33_what_can_be_no_count_is_as_if_it_were_not_there(lie: bytes) -> None:
    page = b"running %b\nwaiting 2\n" % lie
    assert value(page, b"running") is None
    assert value(page, b"waiting") == 2.0
