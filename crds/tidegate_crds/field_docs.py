"""The sentences under each field of an API type, read from its source; `kubectl explain` and the docs show them too."""

import ast
import inspect
import re
import textwrap
from functools import cache

import msgspec

_SNAKE_IN_TICKS = re.compile(r"`([a-z]+(?:_[a-z0-9]+)+)`")


@cache
def field_docs(api_type: type[msgspec.Struct]) -> dict[str, str]:
    """Field name in Python → its docstring on one line, inherited fields included; fields without one are absent."""
    docs: dict[str, str] = {}
    for owner in reversed(api_type.__mro__):
        if owner not in (object, msgspec.Struct) and issubclass(owner, msgspec.Struct):
            docs |= _own_field_docs(owner)
    return docs


def struct_doc(api_type: type) -> str:
    """The class docstring on one line, fields named as on the wire."""
    return _on_the_wire(inspect.getdoc(api_type) or "")


def _own_field_docs(owner: type[msgspec.Struct]) -> dict[str, str]:
    definition = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    if not isinstance(definition, ast.ClassDef):
        raise TypeError(f"{owner.__name__} is not defined by a class statement")
    docs = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[statement.target.id] = _on_the_wire(str(following.value.value))
    return docs


def _on_the_wire(text: str) -> str:
    """One line, with `snake_case` field names in back-ticks as the camelCase that documents use."""
    one_line = " ".join(text.split())
    return _SNAKE_IN_TICKS.sub(lambda match: f"`{_camel(match.group(1))}`", one_line)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)
