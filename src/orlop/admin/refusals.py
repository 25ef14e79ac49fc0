"""Reasons why a request of an operator is not carried out, as whole sentences. Each has its own exit code."""

from __future__ import annotations


class ChangeRefused(Exception):
    """The request is refused, for the reason in the message."""


class UnknownObject(Exception):
    """What the operator named does not exist."""


class WrongUse(Exception):
    """The words of the operator are not understood, or match several objects."""
