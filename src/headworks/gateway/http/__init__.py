"""The public HTTP port: framing, limits and flow, and nothing of what the bytes ask for."""

from headworks.gateway.http.answer import header_lines
from headworks.gateway.http.exchange import Exchange
from headworks.gateway.http.limits import EdgeLimits, Headers, HttpError
from headworks.gateway.http.server import Counters, Server

__all__ = ["Counters", "EdgeLimits", "Exchange", "Headers", "HttpError", "Server", "header_lines"]
