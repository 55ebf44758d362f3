"""The bearer token of the admin API."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

ENV_ADMIN_TOKEN = "PACELINE_ADMIN_TOKEN"


class AdminToken:
    """From a file, read again whenever it changes (a mounted Secret is replaced in place), or else from the
    environment.
    """

    def __init__(self, file: Path | None = None, value: str | None = None) -> None:
        self._file = file
        self._value = (value or "").strip()
        self._seen: tuple[int, int] | None = None
        self._from_file = ""

    @classmethod
    def from_environment(cls, file: Path | None) -> AdminToken:
        """The token of this process."""
        return cls(file, os.environ.get(ENV_ADMIN_TOKEN))

    def current(self) -> str:
        """The token to compare with; empty when there is none, which refuses everybody."""
        if self._file is None:
            return self._value
        try:
            stat = self._file.stat()
            seen = (stat.st_mtime_ns, stat.st_ino)
            if seen != self._seen:
                self._from_file = self._file.read_text().strip()
                self._seen = seen
        except (OSError, UnicodeDecodeError):
            # Not mounted yet, removed, or no text: a token that was revoked must not live on.
            self._seen, self._from_file = None, ""
        return self._from_file

    def matches(self, authorization: str | None) -> bool:
        """Whether an `Authorization` header has the token; takes the same time however much of it is right."""
        token = self.current()
        scheme, _, given = (authorization or "").partition(" ")
        if not token or scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip().encode(), token.encode())
