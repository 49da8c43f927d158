"""YAML text to plain data, strict where PyYAML is lax.

Scalars become what Kubernetes makes of them: dates stay text, `1e3` is a number, `1:30` is text. A key given twice, a
second document, an alias that contains itself and nesting or aliases without bound are errors with their line.
"""

import re
from collections.abc import Hashable

import yaml

from tidegate_crds.errors import FieldError, ManifestError, quoted

MAX_CHARACTERS = 1 << 20
"""Longest text accepted; etcd takes no larger object either."""
MAX_DEPTH = 64
MAX_NODES = 100_000
"""Values in a document after its aliases are expanded."""
_LONGEST_INTEGER = 100


_CORE = "tag:yaml.org,2002:"


class StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalar rules of this module."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Build one value; text that its explicit tag cannot hold (`!!int x`) is an error of the document."""
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            problem = f"{quoted(str(node.value))} does not fit the tag {node.tag.removeprefix(_CORE)}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


StrictLoader.yaml_constructors = {
    tag: constructor
    for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_CORE) in {"null", "bool", "float", "str", "seq", "map"}
}
StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":int", ":float"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
StrictLoader.add_implicit_resolver(
    f"{_CORE}int",
    re.compile(r"[-+]?(?:0|[1-9][0-9]*|0b[01]+|0o?[0-7]+|0x[0-9a-fA-F]+)$"),
    list("-+0123456789"),
)
StrictLoader.add_implicit_resolver(
    f"{_CORE}float",
    re.compile(
        r"[-+]?(?:[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.[0-9]+(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$"
        r"|\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    """A bounded integer: Python's own conversion takes quadratic time."""
    text = str(loader.construct_scalar(node))
    digits = text.lstrip("+-")
    if re.fullmatch(r"0[0-7]+", digits):  # YAML 1.1 octal, as Kubernetes reads it
        text = text.replace(digits, f"0o{digits[1:]}")
    if len(digits) > _LONGEST_INTEGER:
        raise yaml.constructor.ConstructorError(None, None, "an integer with too many digits", node.start_mark)
    return int(text, 0)


StrictLoader.add_constructor(f"{_CORE}int", _construct_int)


def load_yaml(text: str) -> object:
    """The one document in `text` as dicts, lists and scalars.

    Raises:
        ManifestError: not exactly one document, bad syntax, duplicate keys (all of them), or too large; each message
            begins with its line.
    """
    if len(text) > MAX_CHARACTERS:
        raise _whole(f"the document is longer than {MAX_CHARACTERS} characters")
    try:
        loader = StrictLoader(text.removeprefix("\ufeff"))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        raise _whole(f"line {line}: not valid YAML: unprintable character U+{int(error.character):04X}") from error
    try:
        root = _single_node(loader)
        _check_nodes(root)
        document: object = loader.construct_document(root)
    except ManifestError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise _whole(_at(mark, f"not valid YAML: {_one_line(problem)}")) from error
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise _whole(f"not valid YAML: {_one_line(str(error))}") from error
    except RecursionError as error:
        raise _whole(f"nested more than {MAX_DEPTH} levels deep") from error
    finally:
        loader.dispose()
    return document


def _single_node(loader: StrictLoader) -> yaml.Node:
    """The root of the only document that is not empty."""
    found: yaml.Node | None = None
    while loader.check_node():
        node = loader.get_node()
        if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
            continue
        if found is not None:
            raise _whole(_at(node.start_mark, "a second document begins here; expected exactly one"))
        found = node
    if found is None:
        raise _whole("the document is empty")
    return found


def _check_nodes(root: yaml.Node) -> None:
    """Every duplicate key; a bound on depth and on the size after aliases."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()
    duplicates: list[FieldError] = []

    def size_of(node: yaml.Node, depth: int) -> int:
        if id(node) in open_nodes:
            raise _whole(_at(node.start_mark, "an alias stands inside what it names"))
        if depth > MAX_DEPTH:
            raise _whole(_at(node.start_mark, f"nested more than {MAX_DEPTH} levels deep"))
        if id(node) in sizes:
            return sizes[id(node)]
        open_nodes.add(id(node))
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            duplicates.extend(_duplicate_keys(node))
            children = [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        size = 1 + sum(size_of(child, depth + 1) for child in children)
        if size > MAX_NODES:
            raise _whole(f"the document has more than {MAX_NODES} values")
        open_nodes.remove(id(node))
        sizes[id(node)] = size
        return size

    size_of(root, 0)
    if duplicates:
        raise ManifestError(tuple(duplicates))


def _duplicate_keys(node: yaml.MappingNode) -> list[FieldError]:
    first_line: dict[Hashable, int] = {}
    duplicates = []
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
            continue
        identity, line = (key.tag, key.value), key.start_mark.line + 1
        if identity in first_line:
            message = f"duplicate key {quoted(key.value)}, first given on line {first_line[identity]}"
            duplicates.append(FieldError("", f"line {line}: {message}"))
        else:
            first_line[identity] = line
    return duplicates


def _whole(message: str) -> ManifestError:
    return ManifestError((FieldError("", message),))


def _at(mark: yaml.Mark | None, message: str) -> str:
    return f"line {mark.line + 1}: {message}" if mark is not None else message


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
