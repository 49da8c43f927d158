"""What an exchange says when it has no answer of a worker to give; no address or inside of a worker is in it."""

from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_router.upstream.faults import Fault


def model_not_found(model: str) -> ApiError:
    """Nobody has the model."""
    shown = model if len(model) <= 128 else model[:125] + "..."
    return ApiError(ApiErrorKind.MODEL_NOT_FOUND, f"model: no worker serves {shown!r}; see /v1/models", param="model")


def attempts_failed(fault: Fault) -> ApiError:
    """Every attempt failed before the answer began; the fault is the last one's."""
    return ApiError(fault.error_kind, f"no worker answered; the last attempt ended with: {fault.value}")


def answer_broken(fault: Fault) -> ApiError:
    """The answer broke after the client got part of it."""
    return ApiError(fault.error_kind, f"the worker's answer broke off: {fault.value}; what was sent is not complete")


def nobody_ready() -> ApiError:
    """No endpoint came in while the request waited."""
    return ApiError(ApiErrorKind.UNAVAILABLE, "no worker is ready; try again soon")


def shutting_down() -> ApiError:
    """The router drains."""
    return ApiError(ApiErrorKind.UNAVAILABLE, "the router is shutting down")
