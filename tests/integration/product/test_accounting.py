"""What the router says of itself adds up: one access log line and one count per request, and never a prompt."""

import asyncio
import json

from chat_load import Chat, Ending, run_load
from faulty_worker import FaultyWorker
from malformed_requests import CHAT
from raw_http import ask, get, post
from router_process import RouterProcess, scrape, total
from waiting import eventually
from worker_faults import Fault

PRIVATE = "the-prompt-that-nobody-else-may-read"


async def test_every_request_is_counted_once_and_logged_once() -> None:
    with FaultyWorker() as one, FaultyWorker() as two, RouterProcess([one.url, two.url]) as router:
        chats = [Chat(f"counted-{n}", stream=n % 2 == 0) for n in range(60)]
        outcome = await run_load(router.port, chats, connections=8)
        assert outcome.endings == {Ending.OK: 60}, outcome.summary()
        for _ in range(5):
            ask(router.port, post(CHAT, b"not JSON"))
        for _ in range(3):
            ask(router.port, post(CHAT, Chat("x", stream=False, model="unknown").body()))
        samples = router.metrics()
        counts = {code: total(samples, "tidegate_router_requests_total", code=code) for code in ("200", "400", "404")}
        inference = {"200": 60, "400": 5, "404": 3}
        assert {code: counts[code] for code in ("400", "404")} == {"400": 5, "404": 3}
        assert counts["200"] >= inference["200"]
        lines = await asyncio.to_thread(
            eventually,
            lambda: [line for line in router.access_log() if line["path"] == CHAT],
            lambda found: len(found) >= 68,
        )
        assert len(lines) == 68
        assert len({line["id"] for line in lines}) == 68
        assert sorted(line["status"] for line in lines) == [200] * 60 + [400] * 5 + [404] * 3
        assert {line["attempts"] for line in lines if line["status"] == 200} == {1}
        assert one.received.completions + two.received.completions == 60
        router.assert_idle()
        router.assert_clean_log()


async def test_a_retry_is_one_request_and_two_attempts() -> None:
    with FaultyWorker(Fault.SERVER_ERROR) as bad, FaultyWorker() as good, RouterProcess([bad.url, good.url]) as router:
        outcome = await run_load(router.port, [Chat(f"again-{n}", stream=False) for n in range(12)], connections=1)
        assert outcome.endings == {Ending.OK: 12}, outcome.summary()
        retried = bad.received.completions
        assert retried > 0
        samples = router.metrics()
        assert total(samples, "tidegate_router_requests_total", code="200") >= 12
        assert total(samples, "tidegate_router_retries_total") == retried
        assert total(samples, "tidegate_router_upstream_faults_total") == retried
        assert total(samples, "tidegate_router_attempts_total") == 12 + retried


def test_no_prompt_or_key_is_in_logs_metrics_or_errors() -> None:
    with FaultyWorker() as worker, RouterProcess([worker.url]) as router:
        good = {"model": "echo", "messages": [{"role": "user", "content": PRIVATE}], "user": PRIVATE}
        key = f"authorization: Bearer {PRIVATE}"
        answers = [
            ask(router.port, post(CHAT, json.dumps({**good, "messages": PRIVATE}).encode(), key)),
            ask(router.port, post(CHAT, json.dumps(good).encode()[:-1], key)),
            ask(router.port, get("/nowhere", key)),
        ]
        assert all(answer is not None and PRIVATE.encode() not in answer.body for answer in answers)
        worker.fault = Fault.RESET_BEFORE_FIRST_BYTE
        ask(router.port, post(CHAT, json.dumps(good).encode(), key))
        eventually(router.access_log, lambda lines: len(lines) >= 4)
        assert PRIVATE not in json.dumps(router.access_log())
        assert PRIVATE not in router.log()
        assert not [labels for _, labels in scrape(router.port) if PRIVATE in str(labels)]
        router.assert_clean_log()


def test_unknown_models_and_paths_do_not_grow_the_metrics() -> None:
    with FaultyWorker() as worker, RouterProcess([worker.url]) as router:
        ask(router.port, post(CHAT, Chat("x", stream=False, model="first-unknown").body()))
        before = len(router.metrics())
        for number in range(100):
            ask(router.port, post(CHAT, Chat("x", stream=False, model=f"unknown-{number}").body()))
            ask(router.port, get(f"/v1/models/unknown-{number}"))
        assert len(router.metrics()) <= before + 12
        assert "unknown-7" not in str(list(router.metrics()))
