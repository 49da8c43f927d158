"""Choosing and checking TCP ports on this machine."""

import errno
import random
import socket

from tidegate_operator.local.errors import PortInUseError
from tidegate_operator.plan.local import LOOPBACK

# Below the range that the kernel hands to outgoing connections (Linux: from 32768): a worker's port must still be free
# when the worker is restarted, and no outgoing connection may have borrowed it meanwhile.
_FIRST_PORT = 20_000
_LAST_PORT = 32_767
_MAX_TRIES = 512


def check_bindable(host: str, port: int) -> None:
    """Raise PortInUseError when a server could not listen on `host:port` now."""
    error = _bind_error(host, port)
    if error is None:
        return
    if error.errno == errno.EADDRINUSE:
        raise PortInUseError(
            f"port {port} on {host} is in use by another program; stop it, or set another spec.router.listen.port"
        )
    raise PortInUseError(
        f"cannot listen on {host}:{port}: {error.strerror or error}; check spec.router.listen in the manifest"
    )


def choose_ports(
    count: int, rng: random.Random, *, host: str = LOOPBACK, avoid: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """`count` different ports, none in `avoid`, that are free now and that the kernel gives to nobody by itself."""
    chosen: list[int] = []
    for _ in range(_MAX_TRIES + count):
        if len(chosen) == count:
            break
        port = rng.randint(_FIRST_PORT, _LAST_PORT)
        if port not in avoid and port not in chosen and _bind_error(host, port) is None:
            chosen.append(port)
    if len(chosen) < count:
        raise PortInUseError(f"no {count} free ports between {_FIRST_PORT} and {_LAST_PORT} on {host}")
    return tuple(chosen)


def _bind_error(host: str, port: int) -> OSError | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return error
    with socket.socket(family, kind, protocol) as probe:
        # As servers do, so that connections in TIME_WAIT are not taken for a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            # Two binds with SO_REUSEADDR agree until one listens: only listening tells.
            probe.listen(1)
        except OSError as error:
            return error
    return None
