"""`Telemetry.Watch` against a real worker: what a router learns from it alone."""

import asyncio

import grpc.aio
import httpx
from sim_worker_process import WorkerProcess, sim_worker
from tidegate_proto.hashing import chain_hashes
from tidegate_proto.telemetry.v1 import telemetry_pb2 as pb
from tidegate_proto.telemetry.v1 import telemetry_pb2_grpc as pb_grpc

PROMPT = "a prompt of some length that fills a few blocks of sixteen bytes each"


async def complete(worker: WorkerProcess, request_id: str, prompt: str = PROMPT) -> None:
    async with httpx.AsyncClient(base_url=worker.url) as client:
        answer = await client.post(
            "/v1/completions",
            json={"model": "sim", "prompt": prompt, "max_tokens": 3},
            headers={"x-request-id": request_id},
        )
        assert answer.status_code == 200


class Watch:
    """A stream and what it taught."""

    def __init__(self, channel: grpc.aio.Channel, *, blocks: bool) -> None:
        self._call = pb_grpc.TelemetryStub(channel).Watch(pb.WatchRequest(blocks=blocks))
        self.blocks: set[bytes] = set()
        self.events: list[pb.Event] = []

    async def until_finished(self, request_id: str) -> pb.RequestFinished:
        while True:
            event = await self._next()
            if event.HasField("block_stored"):
                self.blocks.add(event.block_stored.hash)
            if event.HasField("block_removed"):
                self.blocks.discard(event.block_removed.hash)
            if event.HasField("request_finished") and event.request_finished.request_id == request_id:
                return event.request_finished

    async def snapshot(self) -> pb.Snapshot:
        return (await self._next()).snapshot

    async def _next(self) -> pb.Event:
        event = await asyncio.wait_for(self._call.read(), 10)
        assert isinstance(event, pb.Event), "the stream ended"
        assert event.sequence == len(self.events)
        self.events.append(event)
        self.blocks |= {block.hash for block in event.snapshot.blocks}
        return event

    def kinds(self) -> set[str | None]:
        return {event.WhichOneof("event") for event in self.events}


async def test_a_router_learns_blocks_load_and_what_requests_cost() -> None:
    with sim_worker("--served-name", "sim", "--served-name", "alias", "--kv-blocks", "64") as worker:
        async with grpc.aio.insecure_channel(worker.telemetry) as channel:
            watch = Watch(channel, blocks=True)
            snapshot = await watch.snapshot()
            assert list(snapshot.served_names) == ["sim", "alias"]
            assert (snapshot.block_size, snapshot.total_blocks) == (16, 64)
            assert snapshot.load.free_blocks == 64
            await complete(worker, "first")
            finished = await watch.until_finished("first")
            assert (finished.prompt_tokens, finished.cached_tokens) == (len(PROMPT), 0)
            assert (finished.completion_tokens, finished.finish_reason) == (3, "length")
            await complete(worker, "second")
            assert (await watch.until_finished("second")).cached_tokens == len(PROMPT) // 16 * 16
            assert set(chain_hashes(list(PROMPT.encode()), 16)) <= watch.blocks
            assert "load" in watch.kinds()

            late, blind = Watch(channel, blocks=True), Watch(channel, blocks=False)
            await late.snapshot()
            await blind.snapshot()
            assert late.blocks == watch.blocks
            assert {event.epoch for event in late.events} == {event.epoch for event in watch.events}
            await complete(worker, "third", "something else " * 5)
            await blind.until_finished("third")
            assert blind.blocks == set()
            assert blind.kinds() <= {"snapshot", "load", "request_finished"}


async def test_a_router_s_blocks_follow_evictions() -> None:
    with sim_worker("--kv-blocks", "32") as worker:
        async with grpc.aio.insecure_channel(worker.telemetry) as channel:
            watch = Watch(channel, blocks=True)
            for number in range(12):
                await complete(worker, str(number), f"{number} " * 60)
            await watch.until_finished("11")
            late = Watch(channel, blocks=True)
            snapshot = await late.snapshot()
            assert snapshot.load.cached_blocks == len(late.blocks)
            assert late.blocks == watch.blocks


async def test_two_lives_of_a_worker_have_two_epochs() -> None:
    epochs = set()
    for _ in range(2):
        with sim_worker() as worker:
            async with grpc.aio.insecure_channel(worker.telemetry) as channel:
                watch = Watch(channel, blocks=False)
                await watch.snapshot()
                epochs.add(watch.events[0].epoch)
    assert len(epochs) == 2
    assert 0 not in epochs
