"""Reads HTTP requests from a client's bytes: the httptools callbacks, and the bounds on what one client may send.

Feeds on whatever the socket gives, hands out each request when it is complete, and stops for good at the first thing
that is not HTTP or beyond a bound: after that nothing on the connection means what it seems to.

A head that was read in full before is not parsed again (`KnownHeads`): the reader takes the body by its length. All
else, and whatever follows, goes through the parser, which between two messages is as if the known one had not been.
"""

import logging
from collections.abc import Callable

import httptools
from tidegate_crds.router_spec import LimitsSpec
from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_router.gateway import request_bounds
from tidegate_router.gateway.request_head import RequestHead, read_head
from tidegate_router.upstream.known_heads import KnownHeads, Parts, take_apart

logger = logging.getLogger(__name__)

Arrived = tuple[RequestHead, bytes, ApiError | None]
"""A request that is complete, or the head (as far as it got) of one that is refused, with the error."""


class Refusal(Exception):  # noqa: N818 - it ends parsing from inside a callback, and is caught in this module
    """Stops the parser; carries the answer."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class RequestReader:
    """A parser and the request that it is in. `in_message` from the first byte of a request to its last."""

    __slots__ = (
        "_body",
        "_chunks",
        "_closing",
        "_completed",
        "_feed_bytes",
        "_fields",
        "_head",
        "_head_bytes",
        "_known",
        "_limits",
        "_missing",
        "_on_request",
        "_parser",
        "_parts",
        "_refusal",
        "_target",
        "_unknown",
        "_upgrade_head",
        "began_head",
        "body_bytes",
        "expects_continue",
        "in_message",
        "refused",
    )

    def __init__(
        self,
        limits: LimitsSpec,
        on_request: Callable[[Arrived], None],
        known: KnownHeads[RequestHead] | None = None,
    ) -> None:
        """`known` is for readers of the same limits to share."""
        self._limits = limits
        self._known = known or KnownHeads()
        self._parts: Parts | None = None
        self._unknown: Parts | None = None
        self._missing = 0
        self._closing = False
        self._on_request = on_request
        self._parser = httptools.HttpRequestParser(self)
        self._fields: list[tuple[bytes, bytes]] = []
        self._head: RequestHead | None = None
        self._target = b""
        self._head_bytes = 0
        self._body: bytes = b""
        self._chunks: bytearray | None = None
        self._upgrade_head: RequestHead | None = None
        self._refusal: ApiError | None = None
        self._completed = 0
        self._feed_bytes = 0
        self.body_bytes = 0
        self.in_message = False
        self.began_head = False
        """A request has begun whose head is not complete; whoever acts on it sets it back."""
        self.expects_continue = False
        """The client waits for `100 Continue`; whoever sends it sets it back."""
        self.refused = False

    @property
    def in_body(self) -> bool:
        """The head is complete and the body is not."""
        return self._head is not None

    def take_whole(self, data: bytes) -> Arrived | None:
        """The request that `data` is, if it is exactly one with a known head; if not, `feed` is to have `data`."""
        if self.in_message or self.refused or self._closing:
            return None
        parts = take_apart(data)
        if parts is not None:
            key, head, body, length, request_id = parts
            known = self._known.get(key)
            if known is not None and len(body) == length and self._allows(len(head) + 4, length):
                return known.again(length, request_id), body, None
        self._parts = parts
        return None

    def feed(self, data: bytes) -> None:
        """Take bytes from the socket."""
        if self.refused:
            return
        parts, self._parts = self._parts, None
        if self._missing:
            self._feed_body(data)
            return
        if parts is not None:
            key, head, body, length, request_id = parts
            known = self._known.get(key)
            if known is not None and self._allows(len(head) + 4, length):
                self._begin_known(known.again(length, request_id), body)
                return
        self._parse(data, parts)

    def _allows(self, head_bytes: int, content_length: int) -> bool:
        """Whether a known head is within the bounds; where it is not, the parser says how."""
        limits = self._limits
        return head_bytes <= limits.max_header_bytes and 0 < content_length <= limits.max_body_bytes

    def _begin_known(self, head: RequestHead, data: bytes) -> None:
        self._head = head
        self._missing = head.content_length or 0
        self.in_message = True
        self.body_bytes = 0
        if data:
            self._feed_body(data)

    def _feed_body(self, data: bytes) -> None:
        """More of the body of a request whose head was known, and what follows it."""
        missing = self._missing
        self._missing = max(0, missing - len(data))
        self.on_body(data if len(data) <= missing else data[:missing])
        if not self._missing:
            self.on_message_complete()
            if len(data) > missing:
                self.feed(data[missing:])

    def _parse(self, data: bytes, parts: Parts | None) -> None:
        self._unknown = parts
        in_head = self.in_message and self._head is None
        completed = self._completed
        self._feed_bytes = self._head_bytes + len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            if self._refusal is None:
                logger.exception("reading a request failed")
            self._refuse(self._refusal or ApiError(ApiErrorKind.INVALID, "the request is not valid HTTP/1.1"))
        except httptools.HttpParserInvalidMethodError:
            self._refuse(ApiError(ApiErrorKind.INVALID, "the request's method is not one of HTTP/1.1"))
        except httptools.HttpParserError as error:
            self._refuse(ApiError(ApiErrorKind.INVALID, f"the request is not valid HTTP/1.1: {error}"))
        else:
            if self.in_message and self._head is None:
                self._bound_partial_head(len(data) if in_head or completed == self._completed else 0)
        self._unknown = None

    def _bound_partial_head(self, size: int) -> None:
        """Count what arrived of a head that is not complete: one field without end never reaches a callback."""
        self._head_bytes += size
        if self._head_bytes > self._limits.max_header_bytes:
            self._refuse(request_bounds.headers_too_large(self._limits))

    def refuse(self, error: ApiError) -> Arrived:
        """Give up the request that is being read; what there is of it, with the error."""
        self.refused = True
        self.in_message = False
        self.expects_continue = False
        head = self._head or self._partial_head()
        self._head = None
        self._chunks = None
        return head, b"", error

    def _refuse(self, error: ApiError) -> None:
        self._on_request(self.refuse(error))

    def _partial_head(self) -> RequestHead:
        head = RequestHead(b"", self._target or b"/", http10=False, keep_alive=False)
        read_head(head, [(name, value) for name, value in self._fields if name.lower() == b"x-request-id"])
        return head

    # --- what the parser saw ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.in_message = True
        self.began_head = True
        if self._fields:
            self._fields = []
        self._target = b""
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))
        if len(self._fields) > self._limits.max_headers:
            self._stop(request_bounds.too_many_headers(self._limits))

    def on_headers_complete(self) -> None:
        if self._upgrade_head is not None:
            self._head, self._upgrade_head = self._upgrade_head, None
            return
        fields = self._fields
        parser = self._parser
        method = parser.get_method()
        version = parser.get_http_version()
        if self._feed_bytes > self._limits.max_header_bytes:
            size = len(self._target) + sum([len(name) + len(value) + 4 for name, value in fields])
            if size > self._limits.max_header_bytes:
                self._stop(request_bounds.headers_too_large(self._limits))
        if version not in ("1.1", "1.0"):
            self._stop(ApiError(ApiErrorKind.INVALID, "only HTTP/1.1 and HTTP/1.0 are spoken here"))
        head = RequestHead(method, self._target, http10=version == "1.0", keep_alive=parser.should_keep_alive())
        self._head = head
        self.body_bytes = 0
        self.began_head = False
        error = read_head(head, fields) or request_bounds.check_length(head, self._limits)
        if error is not None:
            self._stop(error)
        self.expects_continue = head.expects_continue and head.has_body
        self._closing = not head.keep_alive
        if self._unknown is not None:
            if head.may_recur:
                self._known.keep(self._unknown, head)
            self._unknown = None

    def on_body(self, body: bytes) -> None:
        self.body_bytes = size = self.body_bytes + len(body)
        self.expects_continue = False
        if size > self._limits.max_body_bytes:
            self._stop(request_bounds.body_too_large(self._limits))
        if self._chunks is not None:
            self._chunks += body
        elif not self._body:
            self._body = body
        else:
            # One growing buffer: a body sent byte by byte would cost fifty times its size as a list of pieces.
            self._chunks = bytearray(self._body)
            self._chunks += body

    def on_message_complete(self) -> None:
        head = self._head
        if head is None:
            return
        if head.upgrade and head.has_body and not self.body_bytes and self._upgrade_head is None:
            self._upgrade_head = head
            head.upgrade = False
            return
        body = self._body if self._chunks is None else bytes(self._chunks)
        self._head = None
        self._body = b""
        self._chunks = None
        self.body_bytes = 0
        self.in_message = False
        self.expects_continue = False
        if self._fields:
            self._fields = []
        self._completed += 1
        self._on_request((head, body, None))

    # --- ends -------------------------------------------------------------------------------------------------------

    def _stop(self, error: ApiError) -> None:
        self._refusal = error
        raise Refusal(error)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 after a request that offered another protocol (RFC 9110, section 7.8).

        The parser has skipped that request's body, taking it for the other protocol; a fresh one is told its framing.
        """
        head = self._upgrade_head
        if head is not None:
            framing = (
                b"transfer-encoding: chunked" if head.chunked else b"content-length: %d" % (head.content_length or 0)
            )
            self._parser = httptools.HttpRequestParser(self)
            rest = b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing + rest
        if rest:
            self.feed(rest)
