"""The router's configuration: read from its file once, checked as a whole, immutable afterwards.

    ManifestError    the document is wrong; every error with its path
    ConfigError      the file cannot be read, or a flag is wrong

Both are ValueErrors whose text is meant for the person who started the router.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from tidegate_crds.decoding import load_router_config
from tidegate_crds.encoding import dump_router_config
from tidegate_crds.errors import FieldError, ManifestError
from tidegate_crds.router_config import EndpointSpec, RouterConfig
from tidegate_crds.router_spec import ListenSpec

from tidegate_router.scheduling.profile import Profile, build_profile

MAX_CONFIG_BYTES = 16 << 20


class ConfigError(ValueError):
    """The configuration cannot be had; the text says which file or flag, and why."""


@dataclass(frozen=True, slots=True)
class StaticEndpoint:
    """A worker of the config's list, its URL taken apart."""

    name: str
    host: str
    """Without brackets when it is an IPv6 address."""
    port: int
    telemetry: str | None


def load_config(path: str, listen: str | None = None) -> RouterConfig:
    """The checked config of a file (`-` is standard input), with `--listen HOST:PORT` put over it.

    Raises:
        ConfigError: the file cannot be read, or `listen` is no address.
        ManifestError: the document is wrong.
    """
    config = load_router_config(_read(path))
    if listen is not None:
        config = msgspec.structs.replace(config, listen=parse_listen(listen))
    errors: list[FieldError] = []
    try:
        build_profile(config.scheduling)
    except ManifestError as error:
        errors += error.errors
    errors += _name_errors(config)
    if errors:
        raise ManifestError(tuple(errors))
    return config


def profile_of(config: RouterConfig) -> Profile:
    """The scheduling profile of a config that `load_config` returned."""
    return build_profile(config.scheduling)


def static_endpoints(config: RouterConfig) -> tuple[StaticEndpoint, ...]:
    """The endpoints that a config lists, in its order."""
    return tuple(_endpoint(spec) for spec in config.endpoints)


def printed(config: RouterConfig) -> str:
    """The config as YAML with every default filled in; loading it gives an equal config."""
    return dump_router_config(config)


def parse_listen(text: str) -> ListenSpec:
    """The address in `HOST:PORT`, `[IPV6]:PORT` or `:PORT` (every interface). ConfigError: it is none of these."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    valid_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535
    if not colon or not valid_port or (":" in host and not bracketed):
        raise ConfigError(f"--listen: expected HOST:PORT with a port from 0 to 65535, got {text!r}")
    return ListenSpec(host=host.strip("[]") or "0.0.0.0", port=int(port))


def _read(path: str) -> str:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_CONFIG_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"--config: cannot read {path!r}: {reason}") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"--config: {path!r} is larger than {MAX_CONFIG_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config: {path!r} is not UTF-8 text (byte {error.start})") from error


def _endpoint(spec: EndpointSpec) -> StaticEndpoint:
    parts = urlsplit(spec.url)
    host, port = parts.hostname or "", parts.port or 80
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return StaticEndpoint(name=spec.name or shown, host=host, port=port, telemetry=spec.telemetry)


def _name_errors(config: RouterConfig) -> list[FieldError]:
    """Names that collide only once the unset ones are filled in."""
    seen: dict[str, int] = {}
    errors = []
    for index, endpoint in enumerate(static_endpoints(config)):
        first = seen.setdefault(endpoint.name, index)
        if first != index:
            message = f"the name {endpoint.name!r} is that of endpoints[{first}] already; give one a name"
            errors.append(FieldError(f"endpoints[{index}]", message))
    return errors
