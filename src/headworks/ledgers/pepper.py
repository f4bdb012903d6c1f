"""The secret under which keys are hashed, and where it lives (docs/decisions/0011).

It is not in the database: a stolen database or backup then holds nothing a guess could be tried on, and who can only write
to the database cannot put in a key that works. So it is either given by the operator (`ledger.keys_secret: env:NAME`, as
several gateways of one store need it), or made once, in a file beside the database that only its owner can read.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat

from headworks.config.secret import KEYS_SECRET_LENGTH_MIN
from headworks.ledgers.key_rules import KeyStoreError

RANDOM_BYTES = 32
SUFFIX = ".pepper"
_OTHERS = 0o077


class PepperError(KeyStoreError):
    """The pepper cannot be used. The text says why and what would help."""


class Pepper:
    """Where one database's pepper is. It shows itself in no message and no `repr`."""

    def __init__(self, database: str, given: str | None) -> None:
        self.path = database + SUFFIX
        self._given = given
        self.origin = self.path if given is None else "ledger.keys_secret"
        """Where it comes from, for messages."""
        if given is not None and len(given) < KEYS_SECRET_LENGTH_MIN:
            raise PepperError(f"ledger.keys_secret has fewer than {KEYS_SECRET_LENGTH_MIN} characters and can be guessed.")

    def load(self) -> bytes | None:
        """The pepper, or None if there is none yet."""
        if self._given is not None:
            return self._given.encode()
        try:
            with open(self.path, "rb") as stream:
                mode = os.fstat(stream.fileno()).st_mode
                written = stream.read(4 * RANDOM_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PepperError(f"The pepper {self.path} cannot be read: {error.strerror}.") from error
        if not stat.S_ISREG(mode) or mode & _OTHERS:
            raise PepperError(f"The pepper {self.path} can be read by others than its owner: chmod 600 it.")
        if re.fullmatch(rb"[0-9a-f]{%d}\n?" % (2 * RANDOM_BYTES), written) is None:
            raise PepperError(f"The pepper {self.path} is damaged: put it back from where it was kept.")
        return bytes.fromhex(written.decode())

    def load_or_make(self) -> bytes:
        """The pepper; made now if there is none."""
        found = self.load()
        if found is None:
            self._make()
            found = self.load()
            assert found is not None, "it was made or was there"
        return found

    def _make(self) -> None:
        """Written under another name and then linked, so that nobody ever reads half of one, and the first one stays."""
        made = f"{self.path}.{secrets.token_hex(4)}"
        try:
            handle = os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            try:
                os.write(handle, secrets.token_hex(RANDOM_BYTES).encode() + b"\n")
                os.fsync(handle)
            finally:
                os.close(handle)
            with contextlib.suppress(FileExistsError):  # another process was first: that one is the pepper
                os.link(made, self.path)
            os.unlink(made)
        except OSError as error:
            raise PepperError(f"The pepper {self.path} cannot be written: {error.strerror}.") from error
