"""The worker's HTTP routes as one Starlette application."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp
from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_worker.server.endpoints import (
    DetokenizeEndpoint,
    GenerateEndpoint,
    HealthEndpoint,
    MetricsEndpoint,
    ModelsEndpoint,
    ReadyEndpoint,
    TokenizeEndpoint,
)
from tidegate_worker.server.plan import plan_chat, plan_completion
from tidegate_worker.server.service import WorkerService


def build_app(service: WorkerService, max_body_bytes: int) -> Starlette:
    """All routes over one service."""
    chat = GenerateEndpoint(service, plan_chat, max_body_bytes)
    completions = GenerateEndpoint(service, plan_completion, max_body_bytes)
    routes = [
        _route("/v1/chat/completions", chat, ["POST"]),
        _route("/v1/completions", completions, ["POST"]),
        _route("/v1/models", ModelsEndpoint(service), ["GET"]),
        _route("/v1/models/{name:path}", ModelsEndpoint(service), ["GET"]),
        _route("/tokenize", TokenizeEndpoint(service, max_body_bytes), ["POST"]),
        _route("/detokenize", DetokenizeEndpoint(service, max_body_bytes), ["POST"]),
        _route("/health", HealthEndpoint(service), ["GET"]),
        _route("/ready", ReadyEndpoint(service), ["GET"]),
        _route("/metrics", MetricsEndpoint(service), ["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={404: _not_found, 405: _wrong_method})


def _route(path: str, endpoint: ASGIApp, methods: Sequence[str]) -> Route:
    return Route(path, endpoint, methods=list(methods))


def _not_found(request: Request, _: Exception) -> Response:
    # The path is the client's text: shown back in JSON only, cut short.
    path = request.url.path[:200]
    return _answer(ApiError(ApiErrorKind.NOT_FOUND, f"there is no {path} here", code="not_found"))


def _wrong_method(request: Request, error: Exception) -> Response:
    response = _answer(ApiError(ApiErrorKind.METHOD_NOT_ALLOWED, f"{request.method} is not allowed here"))
    allow = (getattr(error, "headers", None) or {}).get("Allow")
    if allow:
        response.headers["allow"] = allow
    return response


def _answer(error: ApiError) -> Response:
    return Response(error.body(), error.status, media_type="application/json")
