"""Checks plain data against an API type and says everything that is wrong with it, in a person's words.

`check(document, type)` walks msgspec's description of the type beside the document. It accepts what
`msgspec.convert` accepts, less what no file can say or no machine can use: NaN and infinities, integers beyond 64 bits,
text that is not Unicode, nesting or size without bound.
"""

import math
import re
from collections.abc import Callable
from functools import cache

import msgspec
from msgspec import inspect as mi

from tidegate_crds.errors import FieldError, child_path, quoted
from tidegate_crds.spelling import suggest

MAX_DEPTH = 64
MAX_VALUES = 100_000
_INT64 = 1 << 63


@cache
def describe_type(api_type: type[msgspec.Struct]) -> mi.StructType:
    """What msgspec knows of a struct type."""
    described = mi.type_info(api_type)
    if not isinstance(described, mi.StructType):
        raise TypeError(f"{api_type.__name__} is no msgspec struct")
    return described


def check(document: object, api_type: type[msgspec.Struct]) -> list[FieldError]:
    """Every error of `document` as an `api_type`, in the order of the document's types; empty when it is valid."""
    walk = _Walk()
    walk.visit(describe_type(api_type), document, "", 0)
    return walk.errors


class _Walk:
    """One pass over one document. Each `_check_*` method owns the errors of one kind of type."""

    def __init__(self) -> None:
        self.errors: list[FieldError] = []
        self._values_left = MAX_VALUES
        self._stopped = False

    def visit(self, expected: mi.Type, value: object, path: str, depth: int) -> None:
        if self._stopped:
            return
        self._values_left -= 1
        if self._values_left < 0 or depth > MAX_DEPTH:
            self._stopped = True
            too_deep = f"nested more than {MAX_DEPTH} levels deep"
            self._error(path, "too many values" if self._values_left < 0 else too_deep)
            return
        expected, nullable = without_null(expected)
        if value is not None or not nullable:
            self._check(expected, value, path, depth)

    def _check(self, expected: mi.Type, value: object, path: str, depth: int) -> None:
        words = ""
        if isinstance(expected, mi.Metadata):
            words, expected = _words(expected), expected.type
        match expected:
            case mi.StructType():
                self._check_struct(expected, value, path, depth)
            case mi.VarTupleType() | mi.ListType():
                self._check_list(expected, value, path, depth)
            case mi.DictType():
                self._check_dict(expected, value, path, depth)
            case mi.AnyType():
                self._check_free_form(expected, value, path, depth)
            case mi.LiteralType():
                self._check_literal(expected, value, path)
            case mi.StrType():
                self._check_text(expected, value, path, words)
            case mi.IntType():
                self._check_integer(expected, value, path)
            case mi.FloatType():
                self._check_number(expected, value, path)
            case mi.BoolType():
                self._check_bool(expected, value, path)
            case _:
                raise TypeError(f"{type(expected).__name__} has no place in an API type")

    def _error(self, path: str, message: str) -> None:
        self.errors.append(FieldError(path, message))

    def _check_struct(self, expected: mi.StructType, value: object, path: str, depth: int) -> None:
        if not isinstance(value, dict):
            what = "a mapping" if path else "a mapping with apiVersion and kind"
            self._error(path, f"expected {what}, got {show(value)}")
            return
        known = {field.encode_name: field for field in expected.fields}
        absent = {name for name in known if name not in value}
        for key in value:
            if not isinstance(key, str):
                self._error(path, f"expected field names as text, got {show(key)}")
            elif key not in known:
                guess = suggest(key, sorted(absent)) or suggest(key, known)
                absent.discard(guess or "")  # one slip, one error: a misspelt field is not missing as well
                hint = f'; did you mean "{guess}"?' if guess else ""
                self._error(child_path(path, key), f"unknown field{hint}")
        for name, field in known.items():
            if name in value:
                self.visit(field.type, value[name], child_path(path, name), depth + 1)
            elif field.required and name in absent:
                self._error(child_path(path, name), f"required field is missing; expected {expectation(field.type)}")

    def _check_list(self, expected: mi.VarTupleType | mi.ListType, value: object, path: str, depth: int) -> None:
        if not isinstance(value, (list, tuple)):
            self._error(path, f"expected a list, got {show(value)}")
            return
        if expected.min_length is not None and len(value) < expected.min_length:
            self._error(path, f"expected at least {_counted(expected.min_length, 'item')}, got {_length(value)}")
        if expected.max_length is not None and len(value) > expected.max_length:
            self._error(path, f"expected at most {_counted(expected.max_length, 'item')}, got {_length(value)}")
        for index, item in enumerate(value):
            self.visit(expected.item_type, item, child_path(path, index), depth + 1)

    def _check_dict(self, expected: mi.DictType, value: object, path: str, depth: int) -> None:
        if not isinstance(value, dict):
            self._error(path, f"expected a mapping, got {show(value)}")
            return
        for key, item in value.items():
            if not isinstance(key, str):
                self._error(path, f"expected keys as text, got {show(key)}{_quote_hint(key)}")
                continue
            if not _is_unicode(key):
                self._error(path, f"expected keys as Unicode text, got {show(key)}")
            self.visit(expected.value_type, item, child_path(path, key), depth + 1)

    def _check_literal(self, expected: mi.LiteralType, value: object, path: str) -> None:
        if any(type(value) is type(choice) and value == choice for choice in expected.values):
            return
        choices = [choice for choice in expected.values if isinstance(choice, str)]
        guess = suggest(value, choices) if isinstance(value, str) and len(choices) > 1 else None
        hint = f'; did you mean "{guess}"?' if guess else ""
        self._error(path, f"expected {expectation(expected)}, got {show(value)}{hint}")

    def _check_text(self, expected: mi.StrType, value: object, path: str, words: str) -> None:
        if not isinstance(value, str):
            self._error(path, f"expected {expectation(expected, words)}, got {show(value)}{_quote_hint(value)}")
            return
        too_long = expected.max_length is not None and len(value) > expected.max_length
        if not _is_unicode(value):
            self._error(path, f"expected Unicode text, got {show(value)}")
        elif expected.min_length is not None and len(value) < expected.min_length:
            self._error(path, f"expected {expectation(expected, words)}, got {show(value)}")
        elif too_long:
            self._error(path, f"expected at most {expected.max_length} characters, got {len(value)}")
        elif expected.pattern is not None and not _matches(expected.pattern, value):
            self._error(path, f"expected {expectation(expected, words)}, got {show(value)}")

    def _check_integer(self, expected: mi.IntType, value: object, path: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            self._error(path, f"expected {expectation(expected)}, got {show(value)}")
            return
        bound = _violated_bound(expected, value)
        if bound:
            self._error(path, f"expected an integer {bound}, got {show(value)}")
        elif not -_INT64 <= value < _INT64:
            self._error(path, f"expected an integer of at most 64 bits, got {show(value)}")

    def _check_number(self, expected: mi.FloatType, value: object, path: str) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._error(path, f"expected {expectation(expected)}, got {show(value)}")
            return
        bound = _violated_bound(expected, value)
        if bound:
            self._error(path, f"expected a number {bound}, got {show(value)}")
        elif not _is_finite(value):
            self._error(path, f"expected a finite number, got {show(value)}")

    def _check_bool(self, expected: mi.BoolType, value: object, path: str) -> None:
        if not isinstance(value, bool):
            self._error(path, f"expected {expectation(expected)}, got {show(value)}")

    def _check_free_form(self, expected: mi.AnyType, value: object, path: str, depth: int) -> None:
        """Anything that JSON can say."""
        if isinstance(value, dict):
            self._check_dict(mi.DictType(mi.StrType(), expected), value, path, depth)
        elif isinstance(value, (list, tuple)):
            self._check_list(mi.ListType(expected), value, path, depth)
        elif isinstance(value, str):
            self._check_text(mi.StrType(), value, path, "")
        elif isinstance(value, float):
            self._check_number(mi.FloatType(), value, path)
        elif isinstance(value, int) and not isinstance(value, bool):
            self._check_integer(mi.IntType(), value, path)
        elif value is not None and not isinstance(value, bool):
            self._error(path, f"expected text, a number, true, false, null, a list or a mapping, got {show(value)}")


def without_null(expected: mi.Type) -> tuple[mi.Type, bool]:
    """`(T, True)` for `T | None`, else `(T, False)`."""
    if isinstance(expected, mi.UnionType):
        others = [member for member in expected.types if not isinstance(member, mi.NoneType)]
        if len(others) != 1:
            raise TypeError("API types are T or T | None; a union of several types has no place in the CRD")
        return others[0], len(others) < len(expected.types)
    return expected, False


def expectation(expected: mi.Type, words: str = "") -> str:
    """What a value of this type looks like, in words."""
    expected, _ = without_null(expected)
    if isinstance(expected, mi.Metadata):
        return expectation(expected.type, _words(expected))
    if isinstance(expected, mi.StrType):
        return words or ("a non-empty string" if expected.min_length else "a string")
    if isinstance(expected, (mi.IntType, mi.FloatType)):
        noun = "an integer" if isinstance(expected, mi.IntType) else "a number"
        bounds = _bounds(expected)
        return f"{noun} {bounds[0][1]}" if bounds else noun
    if isinstance(expected, mi.LiteralType):
        choices = [show(choice) for choice in expected.values]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    names = {mi.BoolType: "true or false", mi.VarTupleType: "a list", mi.ListType: "a list", mi.AnyType: "any value"}
    return names.get(type(expected), "a mapping")


def show(value: object) -> str:
    """A value as it would be written in YAML, on one line and short; lists and mappings by their kind."""
    if isinstance(value, str):
        return quoted(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}[str(value)]
    if isinstance(value, (list, tuple)):
        return "a list"
    return "a mapping" if isinstance(value, dict) else f"a value of type {type(value).__name__}"


def _words(described: mi.Metadata) -> str:
    """What a field's `extra` says instead of its pattern."""
    return str((described.extra or {}).get("expected", ""))


def _bounds(expected: mi.IntType | mi.FloatType) -> list[tuple[Callable[[float], bool], str]]:
    """Each bound of a number: whether a value keeps it, and how it is written. The lower comes first."""
    bounds: list[tuple[Callable[[float], bool], str]] = []
    if (ge := expected.ge) is not None:
        bounds.append((lambda value: value >= ge, f"≥ {_plain(ge)}"))
    if (gt := expected.gt) is not None:
        bounds.append((lambda value: value > gt, f"> {_plain(gt)}"))
    if (le := expected.le) is not None:
        bounds.append((lambda value: value <= le, f"≤ {_plain(le)}"))
    if (lt := expected.lt) is not None:
        bounds.append((lambda value: value < lt, f"< {_plain(lt)}"))
    return bounds


def _violated_bound(expected: mi.IntType | mi.FloatType, value: float) -> str | None:
    return next((words for keeps, words in _bounds(expected) if not keeps(value)), None)


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _matches(pattern: str, text: str) -> bool:
    # `$` also matches before a final line break; Kubernetes' engine does not let that pass
    return re.search(pattern, text) is not None and not (pattern.endswith("$") and text.endswith("\n"))


def _quote_hint(value: object) -> str:
    return " (put it in quotes)" if isinstance(value, (bool, int, float)) else ""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _length(items: list[object] | tuple[object, ...]) -> str:
    return "an empty list" if not items else str(len(items))
