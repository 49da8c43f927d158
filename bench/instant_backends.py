"""Backends that answer at once: nginx with one fixed chat completion, so that a router's own cost is what shows."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.processes import PinnedProcess, await_http_ok, free_ports

MODEL = "instant"

_HTTP = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    keepalive_timeout 300;
    keepalive_requests 1000000000;
    client_max_body_size 64m;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    default_type application/json;
{servers}
}}
"""

# /model_info and /server_info are what sglang-router asks for when a worker registers.
_SERVER = """\
    server {{
        listen 127.0.0.1:{port};
        location = /v1/chat/completions {{ return 200 '{completion}'; }}
        location = /v1/models {{ return 200 '{models}'; }}
        location = /health {{ return 200 '{{}}'; }}
        location = /model_info {{ return 200 '{{}}'; }}
        location = /server_info {{ return 200 '{{}}'; }}
        location / {{ return 404 '{{}}'; }}
    }}
"""


def completion(index: int) -> str:
    """What backend `index` answers to every chat completion; its id names the backend."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 512, "completion_tokens": 2, "total_tokens": 514}
    return json.dumps(
        {
            "id": f"backend-{index}",
            "object": "chat.completion",
            "created": 1,
            "model": MODEL,
            "choices": [choice],
            "usage": usage,
        },
        separators=(",", ":"),
    )


@contextmanager
def instant_backends(count: int, *, core: int | None, folder: Path) -> Iterator[list[str]]:
    """Base URLs of `count` backends that one nginx process serves while the context lasts."""
    ports = free_ports(count)
    models = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}, separators=(",", ":"))
    servers = "".join(
        _SERVER.format(port=port, completion=completion(index), models=models) for index, port in enumerate(ports)
    )
    config = folder / "nginx.conf"
    config.write_text(_HTTP.format(folder=folder, servers=servers))
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with PinnedProcess(["nginx", "-c", str(config)], core=core, log=folder / "nginx.log") as process:
        for url in urls:
            await_http_ok(f"{url}/health", process)
        yield urls
