"""What the issuer of tokens has to say about a configuration: the extra is there, and a file of keys has some.

`check` shows it. Keys at a URL are not asked for: nothing is, by that verb.
"""

from __future__ import annotations

from headworks.config import jwt
from headworks.config.load import Loaded
from headworks.config.problem import Problem


def jwt_notes(loaded: Loaded) -> list[Problem]:
    """All that would keep tokens from being taken."""
    section = loaded.config.jwt if loaded.config is not None else None
    if loaded.config is None or section is None:
        return []
    from headworks.gateway.issuer_watch import MISSING, IssuerError

    try:
        from headworks.gateway.issuer import Issuer
    except ImportError:
        return [Problem(loaded.file, 0, "jwt", f"a gateway will not start: {MISSING}")]
    if section.keys_file is None:
        return []
    try:
        with open(section.keys_file, "rb") as file:
            Issuer(jwt.token_rules(section), (), lambda: 0.0, lambda: 0.0).read(file.read(), 0.0)
    except (OSError, IssuerError) as error:
        return [Problem(loaded.file, 0, "jwt.keys_file", f"no token can be verified: {section.keys_file}: {error}")]
    return []
