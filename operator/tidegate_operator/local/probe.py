"""Asking a process over HTTP whether it is ready, without an HTTP library."""

import asyncio
import contextlib
from urllib.parse import urlsplit


async def ready(url: str, timeout_seconds: float) -> bool:
    """Whether GET `url`/ready answers 200 within the time-out."""
    target = urlsplit(url)
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _status(target.hostname or "", target.port or 80) == 200
    except (OSError, TimeoutError, ValueError):
        return False


async def _status(host: str, port: int) -> int:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET /ready HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        _version, status, *_ = (await reader.readline()).split()
        return int(status)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
