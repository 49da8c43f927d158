"""What answers of workers mean."""

import pytest
from tidegate_router.upstream.answer_head import read_answer_head
from tidegate_router.upstream.faults import (
    Fault,
    Verdict,
    names_missing_model,
    retry_after_seconds,
    verdict_on_status,
)


@pytest.mark.parametrize(
    ("status", "retry_after", "verdict"),
    [
        (200, None, Verdict.PASS),
        (204, None, Verdict.PASS),
        (302, None, Verdict.FAULT),
        (400, None, Verdict.PASS),
        (404, None, Verdict.PASS),
        (408, None, Verdict.PASS),
        (422, b"1", Verdict.PASS),
        (429, None, Verdict.BUSY),
        (500, None, Verdict.FAULT),
        (501, None, Verdict.PASS),
        (503, None, Verdict.FAULT),
        (503, b"2", Verdict.BUSY),
        (599, None, Verdict.FAULT),
    ],
)
def test_verdicts(status: int, retry_after: bytes | None, verdict: Verdict) -> None:
    assert verdict_on_status(status, retry_after) is verdict


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        (b'{"error":{"code":"model_not_found","message":"x"}}', True),
        (b'{"error":{"code":404,"message":"The model `a` does not exist."}}', True),
        (b'{"object":"error","message":"model not found: a"}', True),
        (b'{"detail":"Not Found"}', False),
        (b'{"error":"no"}', False),
        (b"[]", False),
        (b"<html>", False),
        (b"[" * 100_000, False),
    ],
)
def test_404_about_the_model_is_told_from_others(body: bytes, missing: bool) -> None:
    assert names_missing_model(body) is missing


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"3", 3),
        (b" 7 ", 7),
        (None, None),
        (b"", None),
        (b"-1", None),
        (b"1.5", None),
        (b"9999999", None),
        (b"Tue", None),
    ],
)
def test_retry_after(value: bytes | None, seconds: int | None) -> None:
    assert retry_after_seconds(value) == seconds


def test_only_moving_away_is_held_against_nobody() -> None:
    assert [fault for fault in Fault if not fault.counts] == [Fault.UNHEALTHY]


def test_head_passes_on_what_is_end_to_end() -> None:
    fields = [
        (b"Content-Type", b"application/json"),
        (b"Connection", b"keep-alive"),
        (b"Server", b"uvicorn"),
        (b"X-Request-Id", b"worker's"),
        (b"X-Tidegate-Endpoint", b"spoof"),
        (b"Content-Length", b"12"),
        (b"X-Thing", b"kept"),
        (b"Retry-After", b"2"),
    ]
    head = read_answer_head(200, fields)
    assert head.passed == b"Content-Type: application/json\r\nX-Thing: kept\r\nRetry-After: 2\r\n"
    assert (head.content_length, head.retry_after, head.ends_with_connection) == (12, b"2", False)
