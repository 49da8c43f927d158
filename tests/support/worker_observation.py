"""Looking at a running worker from outside: its metrics, its event streams, and waiting for them to say something."""

import json
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from sim_worker_process import WorkerProcess
from waiting import eventually


def metrics(worker: WorkerProcess) -> dict[str, float]:
    """Every sample of the worker's `/metrics`: name, with the values of its labels but the model's, to value."""
    text = httpx.get(worker.url + "/metrics").text
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for key, value in sorted(sample.labels.items()) if key != "model_name"]
            values["/".join([sample.name, *labels])] = sample.value
    return values


def assert_idle(worker: WorkerProcess) -> None:
    """Nothing is held: no request in flight, no block referenced, none lost."""

    def idle(values: dict[str, float]) -> bool:
        return (
            values["tidegate_worker_requests_in_flight"] == 0
            and values["tidegate_worker_kv_blocks/referenced"] == 0
            and values["vllm:num_requests_running"] == 0
            and values["vllm:num_requests_waiting"] == 0
        )

    values = eventually(lambda: metrics(worker), idle)
    free_and_cached = values["tidegate_worker_kv_blocks/free"] + values["tidegate_worker_kv_blocks/cached"]
    assert free_and_cached == values["tidegate_worker_kv_blocks/total"]


def child_processes(pid: int) -> list[int]:
    """The direct children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def sse_events(text: str) -> list[Any]:
    """The events of a stream, JSON decoded; `[DONE]` as it is."""
    payloads = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]
