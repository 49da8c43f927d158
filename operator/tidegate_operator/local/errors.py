"""Errors of local pools; each message says what happened and what to do, fit to be shown as it is.

LocalError
├── AlreadyRunningError   another supervisor owns the pool
├── PortInUseError        the router's address is taken
├── UnknownPoolError      no such pool or process, or no way to tell which is meant
└── StateError            the state folder cannot be used
"""


class LocalError(Exception):
    """Base of what a person can mend."""


class AlreadyRunningError(LocalError):
    """Another supervisor owns the pool."""


class PortInUseError(LocalError):
    """The router's address is taken, or cannot be bound."""


class UnknownPoolError(LocalError):
    """No such pool or process, or no way to tell which is meant."""


class StateError(LocalError):
    """The state folder cannot be used."""
