"""What can go wrong in local mode, with the exit status that the commands give it."""

from __future__ import annotations


class LocalError(Exception):
    """Local mode cannot do what was asked; the message says why and what to do about it."""

    exit_code = 1


class UsageError(LocalError):
    """The request itself is wrong (an option, a folder)."""

    exit_code = 2


class UnreachableError(LocalError):
    """A part that should answer does not."""

    exit_code = 4
