"""Routes: which paths the router answers itself, which go to workers, and with which methods.

    GET  /health                 200 while the process runs
    GET  /ready                  200 while an endpoint is ready and the router is not draining, else 503
    GET  /metrics                Prometheus text
    GET  /v1/models[/{model}]    the union of what the endpoints serve
    POST /v1/chat/completions, /v1/completions     scheduled by prompt and load
    POST /v1/…, /tokenize, /detokenize             any ready worker, by load

Anything else is 404; a known path with another method is 405.
"""

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec
from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_router.gateway import answer_bytes
from tidegate_router.gateway.openai_request import MODELS_PATH
from tidegate_router.gateway.request_head import RequestHead
from tidegate_router.state.endpoint_table import EndpointTable

_PASSED_PATHS = frozenset({"/tokenize", "/detokenize"})
_METRICS_TYPE = b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n"
_MODEL_PREFIX = MODELS_PATH + "/"


class LocalAnswer(NamedTuple):
    """A complete answer of the router's own."""

    status: int
    fields: bytes
    body: bytes
    error: ApiError | None = None


class LocalAnswers:
    """Answers everything that needs no worker."""

    def __init__(
        self,
        table: EndpointTable,
        expose_metrics: Callable[[], bytes],
        is_draining: Callable[[], bool],
        started_at: int,
    ) -> None:
        self._table = table
        self._expose_metrics = expose_metrics
        self._is_draining = is_draining
        self._started_at = started_at

    def answer(self, head: RequestHead) -> LocalAnswer | None:
        """The router's own answer, None when a worker is to give it."""
        path, method = head.path, head.method
        if path in _GETS or path.startswith(_MODEL_PREFIX):
            allowed = b"GET, HEAD, OPTIONS"
            if method in (b"GET", b"HEAD"):
                return self._get(path)
        elif path.startswith("/v1/") or path in _PASSED_PATHS:
            allowed = b"POST, OPTIONS"
            if method == b"POST":
                return None
        else:
            return _error(ApiError(ApiErrorKind.NOT_FOUND, f"no such path: {_shown(path)}"))
        if method == b"OPTIONS":
            return LocalAnswer(204, b"allow: " + allowed + b"\r\n", b"")
        error = ApiError(ApiErrorKind.METHOD_NOT_ALLOWED, f"{_shown(path)} takes {allowed.decode()}")
        return _error(error, b"allow: " + allowed + b"\r\n")

    @property
    def is_ready(self) -> bool:
        """Whether a request could be served now."""
        return not self._is_draining() and any(each.ready for each in self._table.snapshot.endpoints)

    def _get(self, path: str) -> LocalAnswer:
        if path == "/health":
            return LocalAnswer(200, answer_bytes.JSON, b'{"status":"ok"}')
        if path == "/ready":
            if self.is_ready:
                return LocalAnswer(200, answer_bytes.JSON, b'{"status":"ready"}')
            why = "the router is shutting down" if self._is_draining() else "no worker is ready"
            # A probe's true answer, not a request that failed: no error to count.
            return _error(ApiError(ApiErrorKind.UNAVAILABLE, why))._replace(error=None)
        if path == "/metrics":
            return LocalAnswer(200, _METRICS_TYPE, self._expose_metrics())
        if path == MODELS_PATH:
            models = [self._model(name, length) for name, length in self._models().items()]
            return LocalAnswer(200, answer_bytes.JSON, msgspec.json.encode({"object": "list", "data": models}))
        # `org/name` is sent as it is by some clients and as `org%2Fname` by others.
        name = unquote_to_bytes(path[len(_MODEL_PREFIX) :].encode("latin-1")).decode("utf-8", "replace")
        known = self._models()
        if name in known:
            return LocalAnswer(200, answer_bytes.JSON, msgspec.json.encode(self._model(name, known[name])))
        return _error(ApiError(ApiErrorKind.MODEL_NOT_FOUND, f"model: no worker serves {_shown(name)}", param="model"))

    def _models(self) -> dict[str, int | None]:
        """Names that endpoints serve, in the workers' own order, with the shortest context of those that serve them.

        Known from lists they gave at some time; a worker that is down counts too.
        """
        union: dict[str, int | None] = {}
        for endpoint in self._table.snapshot.endpoints:
            for name, length in (endpoint.models or {}).items():
                known = union.get(name)
                union[name] = length if known is None else min(known, length or known)
        return union

    def _model(self, name: str, context_tokens: int | None) -> dict[str, str | int]:
        model: dict[str, str | int] = {
            "id": name,
            "object": "model",
            "created": self._started_at,
            "owned_by": "tidegate",
        }
        if context_tokens is not None:
            model["max_model_len"] = context_tokens
        return model


PROBE_PATHS = frozenset({"/health", "/ready", "/metrics"})
_GETS = PROBE_PATHS | {MODELS_PATH}


def _error(error: ApiError, fields: bytes = b"") -> LocalAnswer:
    return LocalAnswer(error.status, answer_bytes.error_fields(error) + fields, error.body(), error)


def _shown(text: str) -> str:
    return text if len(text) <= 128 else text[:125] + "..."
