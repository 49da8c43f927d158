"""The worker's live view of itself for routers: `Telemetry.Watch` over gRPC.

`TelemetryHub` mirrors the engine's reusable blocks and load and hands every change to each `Watcher`; pure, on the
event loop, the clock passed in. A stream begins with a snapshot in parts and continues with changes, numbered without
gaps. A watcher that falls behind by `MAX_BACKLOG` events loses its backlog and gets a new snapshot, so that a slow
router costs bounded memory and never sees a wrong cache.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc.aio
from tidegate_proto.telemetry.v1 import telemetry_pb2 as pb
from tidegate_proto.telemetry.v1 import telemetry_pb2_grpc as pb_grpc

from tidegate_worker.engine.messages import (
    BlockEvent,
    BlockRemoved,
    BlockStored,
    CacheCleared,
    EngineLoad,
    EngineReady,
)
from tidegate_worker.server.metrics import WorkerCounts

LOAD_INTERVAL_SECONDS = 0.02
SNAPSHOT_PART_BLOCKS = 512
MAX_BACKLOG = 8192
MAX_WATCHERS = 64
"""Routers at once; each costs a copy of every event."""


class Watcher:
    """One stream: what it has not been sent yet."""

    def __init__(self, hub: "TelemetryHub", *, blocks: bool) -> None:
        self._hub = hub
        self._blocks = blocks
        self._backlog: deque[pb.Event] = deque()
        self._needs_snapshot = True
        self._load_changed = False
        self._next_load_at = 0.0
        self._sequence = 0
        self._wake = asyncio.Event()

    def offer_block(self, event: pb.Event) -> None:
        """A block event, shared between watchers and copied only when sent."""
        if self._blocks:
            self.offer(event)

    def offer(self, event: pb.Event) -> None:
        """Any event that must not be missed, unless a snapshot is due anyway."""
        if self._needs_snapshot:
            return
        if len(self._backlog) >= MAX_BACKLOG:
            self._backlog.clear()
            self._needs_snapshot = True
            self._hub.counts.telemetry_resyncs += 1
        else:
            self._backlog.append(event)
        self._wake.set()

    def offer_load(self) -> None:
        """The load changed; only its newest value is ever sent."""
        self._load_changed = True
        self._wake.set()

    def events(self, now: float) -> Iterator[pb.Event]:
        """Everything due, stamped with epoch and sequence."""
        if self._needs_snapshot:
            self._needs_snapshot = False
            self._load_changed = False
            for snapshot in self._hub.snapshot(blocks=self._blocks):
                yield self._stamp(pb.Event(snapshot=snapshot))
        while self._backlog:
            yield self._stamp(self._backlog.popleft())
        if self._load_changed and now >= self._next_load_at:
            self._load_changed = False
            self._next_load_at = now + LOAD_INTERVAL_SECONDS
            yield self._stamp(pb.Event(load=self._hub.load_message()))

    async def due(self, now: float) -> None:
        """Wait until `events` has something to give."""
        if self._needs_snapshot or self._backlog:
            return
        if self._load_changed:
            # A load is owed but too soon: other events may overtake it meanwhile.
            self._wake.clear()
            try:
                async with asyncio.timeout(max(0.0, self._next_load_at - now)):
                    while not (self._needs_snapshot or self._backlog):
                        await self._wake.wait()
                        self._wake.clear()
            except TimeoutError:
                pass
            return
        self._wake.clear()
        await self._wake.wait()

    def _stamp(self, event: pb.Event) -> pb.Event:
        stamped = pb.Event()
        stamped.CopyFrom(event)
        stamped.epoch = self._hub.epoch
        stamped.sequence = self._sequence
        self._sequence += 1
        return stamped


class TelemetryHub:
    """What every watcher is told. One engine life has one `epoch`."""

    def __init__(self, epoch: int, served_names: tuple[str, ...], counts: WorkerCounts) -> None:
        self.epoch = epoch
        self.counts = counts
        self._served_names = served_names
        self._ready: EngineReady | None = None
        self._load: EngineLoad | None = None
        self._blocks: dict[bytes, BlockStored] = {}
        self._watchers: set[Watcher] = set()

    def engine_ready(self, ready: EngineReady) -> None:
        """The engine is loaded: snapshots can be given from now on."""
        self._ready = ready
        if self._load is None:
            self._load = EngineLoad(0, 0, 0, 0, 0, ready.total_blocks, 0, 0, 0)

    def subscribe(self, *, blocks: bool) -> Watcher | None:
        """A new watcher, or None when there are too many."""
        if len(self._watchers) >= MAX_WATCHERS:
            return None
        watcher = Watcher(self, blocks=blocks)
        self._watchers.add(watcher)
        self.counts.telemetry_watchers = len(self._watchers)
        return watcher

    def unsubscribe(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        self.counts.telemetry_watchers = len(self._watchers)

    def on_step(self, block_events: list[BlockEvent], load: EngineLoad) -> None:
        """Take in what a step changed."""
        for event in block_events:
            self._mirror(event)
        if self._watchers:
            for message in map(self._block_message, block_events):
                for watcher in self._watchers:
                    watcher.offer_block(message)
        previous, self._load = self._load, load
        if previous is None or _told(previous) != _told(load):
            for watcher in self._watchers:
                watcher.offer_load()

    def request_finished(self, message: pb.RequestFinished) -> None:
        """A request ended, in whatever way."""
        event = pb.Event(request_finished=message)
        for watcher in self._watchers:
            watcher.offer(event)

    def load_message(self) -> pb.Load:
        load = self._load
        if load is None:
            return pb.Load()
        return pb.Load(
            waiting_requests=load.waiting_requests,
            running_requests=load.running_requests,
            waiting_tokens=load.waiting_tokens,
            referenced_blocks=load.referenced_blocks,
            cached_blocks=load.cached_blocks,
            free_blocks=load.free_blocks,
            total_blocks=self._ready.total_blocks if self._ready else 0,
        )

    def snapshot(self, *, blocks: bool) -> Iterator[pb.Snapshot]:
        """The state of this moment, in parts of at most `SNAPSHOT_PART_BLOCKS` blocks, parents before children.

        Parts are built one by one, so that a full cache does not hold up the event loop.
        """
        held = list(self._blocks.values()) if blocks else []
        for start in range(0, max(1, len(held)), SNAPSHOT_PART_BLOCKS):
            part = pb.Snapshot(more=start + SNAPSHOT_PART_BLOCKS < len(held), load=self.load_message())
            if self._ready is not None:
                part.max_model_tokens = self._ready.max_model_tokens
                part.block_size = self._ready.block_size
                part.total_blocks = self._ready.total_blocks
            part.served_names.extend(self._served_names)
            part.blocks.extend(self._stored_message(block) for block in held[start : start + SNAPSHOT_PART_BLOCKS])
            yield part

    def _mirror(self, event: BlockEvent) -> None:
        match event:
            case BlockStored():
                # Re-inserted at the end, so that a chain stored anew keeps its parents in front of it.
                self._blocks.pop(event.hash, None)
                self._blocks[event.hash] = event
            case BlockRemoved():
                self._blocks.pop(event.hash, None)
            case CacheCleared():
                self._blocks.clear()

    def _block_message(self, event: BlockEvent) -> pb.Event:
        match event:
            case BlockStored():
                return pb.Event(block_stored=self._stored_message(event))
            case BlockRemoved():
                return pb.Event(block_removed=pb.BlockRemoved(hash=event.hash, medium=pb.MEDIUM_DEVICE))
            case CacheCleared():
                return pb.Event(cleared=pb.Cleared())

    def _stored_message(self, block: BlockStored) -> pb.BlockStored:
        return pb.BlockStored(
            hash=block.hash,
            parent=block.parent,
            token_ids=block.token_ids,
            block_size=len(block.token_ids),
            adapter=block.adapter,
            salt=block.salt,
            medium=pb.MEDIUM_DEVICE,
        )


class TelemetryServicer(pb_grpc.TelemetryServicer):
    """The gRPC face of a hub."""

    def __init__(self, hub: TelemetryHub) -> None:
        self._hub = hub

    async def Watch(  # noqa: N802 (the name is the protocol's)
        self,
        request: pb.WatchRequest,
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> AsyncIterator[pb.Event]:
        watcher = self._hub.subscribe(blocks=request.blocks)
        if watcher is None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {MAX_WATCHERS} watchers")
        try:
            while True:
                for event in watcher.events(time.monotonic()):
                    yield event
                await watcher.due(time.monotonic())
        finally:
            self._hub.unsubscribe(watcher)


@contextlib.asynccontextmanager
async def serving_telemetry(hub: TelemetryHub, host: str, port: int) -> AsyncIterator[int]:
    """Serve the hub while inside; gives the port. Raises `OSError` when the address is taken."""
    # Without this option two workers could share a port, and a router would watch the wrong one.
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    pb_grpc.add_TelemetryServicer_to_server(TelemetryServicer(hub), server)
    bracketed = f"[{host}]" if ":" in host else host
    try:
        bound = server.add_insecure_port(f"{bracketed}:{port}")
    except RuntimeError as error:
        raise OSError(f"cannot listen on {host}:{port}") from error
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(grace=0.2)


def _told(load: EngineLoad) -> tuple[int, ...]:
    """The part of a load that watchers see."""
    return (
        load.waiting_requests,
        load.running_requests,
        load.waiting_tokens,
        load.referenced_blocks,
        load.cached_blocks,
        load.free_blocks,
    )
