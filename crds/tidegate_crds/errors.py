"""What a caller gets for a document that is not valid: one exception that carries every error in it.

    ManifestError(ValueError)     the document cannot be used; .errors says everywhere that it must change

Paths are written as a person would look them up: `spec.workers[0].replicas`, `metadata.labels["a.b/c"]`.
"""

import re
from dataclasses import dataclass

SHOWN_ERRORS = 50
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_LONGEST_KEY_SHOWN = 63


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing to change: where it is and what was expected there."""

    path: str
    """Empty for the document as a whole (syntax errors name their line in the message)."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ManifestError(ValueError):
    """A document is not what its kind asks for. `str()` has one line per error, ready to be printed."""

    def __init__(self, errors: tuple[FieldError, ...]) -> None:
        self.errors = errors
        lines = [str(error) for error in errors[:SHOWN_ERRORS]]
        if len(errors) > SHOWN_ERRORS:
            lines.append(f"… and {len(errors) - SHOWN_ERRORS} more errors")
        super().__init__("\n".join(lines))


def child_path(path: str, key: str | int) -> str:
    """The path of an item of the list, or of a field of the mapping, at `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{quoted(key, _LONGEST_KEY_SHOWN)}]"


def quoted(text: str, longest: int = 60) -> str:
    """`text` in double quotes on one line, cut at `longest` characters; unprintable characters are escaped."""
    shown = text if len(text) <= longest else text[: longest - 1] + "…"
    escaped = "".join(
        f"\\{character}" if character in '"\\' else character if character.isprintable() else _escape(character)
        for character in shown
    )
    return f'"{escaped}"'


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
