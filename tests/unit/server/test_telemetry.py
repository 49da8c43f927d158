"""A watcher's stream: snapshot first, changes in order, numbers without gaps, bounded when it is slow."""

from hypothesis import given
from hypothesis import strategies as st
from server_builders import block_name, load, ready, stored
from tidegate_proto.telemetry.v1 import telemetry_pb2 as pb
from tidegate_worker.engine.messages import BlockEvent, BlockRemoved, CacheCleared
from tidegate_worker.server import telemetry
from tidegate_worker.server.metrics import WorkerCounts
from tidegate_worker.server.telemetry import LOAD_INTERVAL_SECONDS, MAX_BACKLOG, MAX_WATCHERS, TelemetryHub, Watcher


def make_hub() -> TelemetryHub:
    hub = TelemetryHub(77, ("m", "alias"), WorkerCounts())
    hub.engine_ready(ready())
    return hub


def watch(hub: TelemetryHub, *, blocks: bool = True) -> Watcher:
    watcher = hub.subscribe(blocks=blocks)
    assert watcher is not None
    return watcher


def kinds(events: list[pb.Event]) -> list[str]:
    return [event.WhichOneof("event") or "" for event in events]


class Mirror:
    """What a router knows from a stream alone."""

    def __init__(self) -> None:
        self.blocks: set[bytes] = set()
        self.sequence = -1

    def read(self, events: list[pb.Event]) -> None:
        fresh = True
        for event in events:
            self.sequence += 1
            assert event.sequence == self.sequence
            assert event.epoch == 77
            match event.WhichOneof("event"):
                case "snapshot":
                    if fresh:
                        self.blocks.clear()
                    fresh = not event.snapshot.more
                    self.blocks |= {block.hash for block in event.snapshot.blocks}
                case "block_stored":
                    self.blocks.add(event.block_stored.hash)
                case "block_removed":
                    self.blocks.discard(event.block_removed.hash)
                case "cleared":
                    self.blocks.clear()


def test_a_stream_begins_with_a_snapshot_in_parts_parents_first() -> None:
    hub = make_hub()
    total = telemetry.SNAPSHOT_PART_BLOCKS + 3
    hub.on_step([stored(number, number - 1 if number else None) for number in range(total)], load(cached=7, running=2))
    first, second = list(watch(hub).events(0.0))
    assert [len(part.snapshot.blocks) for part in (first, second)] == [telemetry.SNAPSHOT_PART_BLOCKS, 3]
    assert [part.snapshot.more for part in (first, second)] == [True, False]
    assert list(first.snapshot.served_names) == ["m", "alias"]
    assert (first.snapshot.block_size, first.snapshot.total_blocks, first.snapshot.max_model_tokens) == (16, 64, 100)
    assert (first.snapshot.load.cached_blocks, first.snapshot.load.running_requests) == (7, 2)
    assert first.snapshot.blocks[1].parent == block_name(0)
    assert (first.sequence, second.sequence, first.epoch) == (0, 1, 77)


def test_an_empty_worker_still_sends_a_snapshot() -> None:
    assert kinds(list(watch(make_hub()).events(0.0))) == ["snapshot"]


def test_without_blocks_only_load_and_finished_requests_follow() -> None:
    hub = make_hub()
    hub.on_step([stored(1)], load())
    watcher = watch(hub, blocks=False)
    (snapshot,) = watcher.events(0.0)
    assert not snapshot.snapshot.blocks
    hub.on_step([stored(2), BlockRemoved(block_name(1))], load(cached=1))
    hub.request_finished(pb.RequestFinished(request_id="r", finish_reason="stop"))
    assert kinds(list(watcher.events(1.0))) == ["request_finished", "load"]


def test_load_goes_out_on_change_and_at_most_every_interval() -> None:
    hub = make_hub()
    watcher = watch(hub)
    list(watcher.events(0.0))
    hub.on_step([], load(running=1))
    assert [event.load.running_requests for event in watcher.events(1.0)] == [1]
    hub.on_step([], load(running=1))
    assert list(watcher.events(2.0)) == []
    hub.on_step([], load(running=2))
    (_,) = watcher.events(2.0)
    hub.on_step([], load(running=3))
    hub.on_step([], load(running=4))
    assert list(watcher.events(2.0 + LOAD_INTERVAL_SECONDS / 2)) == []
    assert [event.load.running_requests for event in watcher.events(2.0 + LOAD_INTERVAL_SECONDS)] == [4]


def test_a_slow_watcher_gets_a_snapshot_instead_of_its_backlog() -> None:
    hub = make_hub()
    watcher, prompt_watcher = watch(hub), watch(hub)
    mirror, prompt_mirror = Mirror(), Mirror()
    mirror.read(list(watcher.events(0.0)))
    for number in range(MAX_BACKLOG + 10):
        hub.on_step([stored(number)], load())
        if number % 100 == 0:
            prompt_mirror.read(list(prompt_watcher.events(0.0)))
    assert hub.counts.telemetry_resyncs == 1
    events = list(watcher.events(0.0))
    assert kinds(events)[0] == "snapshot"
    mirror.read(events)
    prompt_mirror.read(list(prompt_watcher.events(0.0)))
    assert mirror.blocks == prompt_mirror.blocks == {block_name(number) for number in range(MAX_BACKLOG + 10)}


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 9)),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.sampled_from(["clear", "read", "join"]), st.just(0)),
    ),
    max_size=40,
)


@given(ACTIONS)
def test_every_watcher_ends_with_the_engine_s_blocks_whenever_it_joined(actions: list[tuple[str, int]]) -> None:
    hub = make_hub()
    truth: set[bytes] = set()
    watchers = [(watch(hub), Mirror())]
    for action, number in actions:
        events: list[BlockEvent] = []
        match action:
            case "store":
                events, truth = [stored(number)], truth | {block_name(number)}
            case "remove":
                events, truth = [BlockRemoved(block_name(number))], truth - {block_name(number)}
            case "clear":
                events, truth = [CacheCleared()], set()
            case "read":
                watcher, mirror = watchers[-1]
                mirror.read(list(watcher.events(0.0)))
            case "join":
                watchers.append((watch(hub), Mirror()))
        hub.on_step(events, load())
    for watcher, mirror in watchers:
        mirror.read(list(watcher.events(9.0)))
        assert mirror.blocks == truth


async def test_a_watcher_waits_until_something_is_due() -> None:
    hub = make_hub()
    watcher = watch(hub)
    await watcher.due(0.0)
    list(watcher.events(0.0))
    hub.on_step([], load(running=1))
    await watcher.due(0.0)
    list(watcher.events(0.0))
    hub.on_step([], load(running=2))
    await watcher.due(0.0)  # returns once the interval is over
    assert kinds(list(watcher.events(LOAD_INTERVAL_SECONDS))) == ["load"]


def test_watchers_are_bounded_and_leave_nothing_behind() -> None:
    hub = make_hub()
    watchers = [watch(hub) for _ in range(MAX_WATCHERS)]
    assert hub.subscribe(blocks=True) is None
    for watcher in watchers:
        hub.unsubscribe(watcher)
    assert hub.counts.telemetry_watchers == 0
    assert hub.subscribe(blocks=True) is not None
