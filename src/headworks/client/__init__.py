"""Bounded back-off for those who call a server that may refuse: transports for httpx, and so for the OpenAI SDK (F8).

    with httpx.Client(transport=RetryTransport()) as client: ...
    OpenAI(http_client=client, max_retries=0)

And `session`, a budget for a series of calls (B14).

Stands alone: of this package it imports nothing else, and of others httpx only.
"""

from headworks.client.policy import OverloadError, RetryPolicy
from headworks.client.session import Session, async_session, session
from headworks.client.transport import AsyncRetryTransport, RetryTransport

__all__ = ["AsyncRetryTransport", "OverloadError", "RetryPolicy", "RetryTransport", "Session", "async_session", "session"]
