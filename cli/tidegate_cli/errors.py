"""Errors of commands; each message is fit to be shown as it is.

CommandError
├── ManifestFileError   a manifest that cannot be used (exit code 2)
└── ConversationError   the demo's endpoint did not answer as it should (exit code 1)
"""


class CommandError(Exception):
    """Base of what a command tells a person instead of a traceback."""

    exit_code = 2


class ManifestFileError(CommandError):
    """A manifest that cannot be used; every line of the message names the file."""


class ConversationError(CommandError):
    """The demo's endpoint did not answer as it should."""

    exit_code = 1
