"""What is beyond the bounds on one client's request, in words that say what to change. Pure."""

from tidegate_crds.router_spec import LimitsSpec
from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_router.gateway.request_head import RequestHead

_METHODS_WITH_BODY = frozenset({b"POST", b"PUT", b"PATCH"})


def check_length(head: RequestHead, limits: LimitsSpec) -> ApiError | None:
    """What is wrong with the length that a head announces; None when it is fine."""
    if head.content_length is None and not head.chunked:
        if head.method in _METHODS_WITH_BODY:
            return ApiError(ApiErrorKind.LENGTH_REQUIRED, "content-length: say how long the body is, or send chunks")
        return None
    if head.content_length is not None and head.content_length > limits.max_body_bytes:
        return body_too_large(limits)
    return None


def body_too_large(limits: LimitsSpec) -> ApiError:
    """413."""
    return ApiError(
        ApiErrorKind.TOO_LARGE,
        f"the body is larger than {limits.max_body_bytes} bytes; send less, or raise limits.maxBodyBytes",
    )


def headers_too_large(limits: LimitsSpec) -> ApiError:
    """431, by bytes."""
    return ApiError(
        ApiErrorKind.HEADERS_TOO_LARGE,
        f"the request line and headers are larger than {limits.max_header_bytes} bytes",
    )


def too_many_headers(limits: LimitsSpec) -> ApiError:
    """431, by number."""
    return ApiError(ApiErrorKind.HEADERS_TOO_LARGE, f"the request has more than {limits.max_headers} header fields")
