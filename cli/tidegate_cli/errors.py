"""Errors of commands; each message is fit to be shown as it is, and the command ends with exit code 2.

CommandError
├── ManifestFileError   a manifest that cannot be used
└── ConversationError   the demo's endpoint did not answer as it should
"""


class CommandError(Exception):
    """Base of what a command tells a person instead of a traceback."""


class ManifestFileError(CommandError):
    """A manifest that cannot be used; every line of the message names the file."""


class ConversationError(CommandError):
    """The demo's endpoint did not answer as it should."""
