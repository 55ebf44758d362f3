"""The error of books that do not add up."""

from __future__ import annotations


class IntegrityError(Exception):
    """The books do not add up: a block is lost, doubled or freed twice."""
