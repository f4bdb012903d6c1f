"""What the decoder complains of, in a client's words: where, as a client would write it, and nothing of what was sent there."""

from __future__ import annotations

from headworks.gateway.dialects.fields import FAULT_TEXT_MAX, Unacceptable, invalid, not_allowed

AT = " - at `$"
OF_A_KEY = " - at `key` in `$"
"""How the decoder names the place of a fault, and of one in the keys of an object."""
QUOTES = ("Invalid value ", "Invalid enum value ")
"""Where it says what came, which may be a piece of a prompt and any length, and is not said again: neither in an answer nor in
what becomes of it in somebody's log."""


def translated(text: str) -> Unacceptable:
    """The decoder's complaint with the path written as a client would write it."""
    is_key = OF_A_KEY in text
    # The last one: a name or a value of the client's, which stands before it, may look like another.
    what, at, where = text.replace(OF_A_KEY, AT).rpartition(AT)
    what, where = (what, where) if at else (text, "")
    if what.startswith(QUOTES):
        what = "Invalid value"
    what = f"one of its keys: {what}" if is_key else what
    path = where.rstrip("`").removeprefix(".")
    if what.startswith("Object contains unknown field `"):
        name = what[len("Object contains unknown field `") : -1]
        return not_allowed(f"{path}.{name}" if path else name)
    path = path[:FAULT_TEXT_MAX]
    if what.startswith("Object missing required field `"):
        name = what[len("Object missing required field `") : -1]
        path = f"{path}.{name}" if path else name
        return invalid(f"{path} is missing.", path)
    if not path:
        return invalid(f"The body is not a JSON object: {what}.")
    if path.endswith("].type") and ".content" in path:
        what += " (only text is accepted here)"
    elif path.endswith(".source.type"):
        what += " (only text is accepted here, and images whose data is in the body)"
    return invalid(f"{path}: {what[:FAULT_TEXT_MAX]}.", path)
