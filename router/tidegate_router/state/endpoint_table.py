"""`EndpointTable`: who the endpoints are and how loaded; the only writer of the snapshot.

Invariants: a name belongs to one endpoint at a time; an endpoint keeps its slot until it is removed; a slot given to
a newcomer starts with clean load columns. The snapshot object changes only when something in it changed, so whoever
caches by identity or version never works for nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tidegate_router.state.endpoints import Endpoint, LoadColumns, Snapshot

MAX_WITHOUT_MODELS = 64
"""Models remembered as absent per endpoint; clients choose these names, so there is a bound."""

UNKNOWN_WAITING = -1


class EndpointTable:
    """Endpoints by slot; not thread-safe, one event loop owns it."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(version=0, endpoints=())
        self.load = LoadColumns()
        self._by_slot: dict[int, Endpoint] = {}
        self._slots_by_name: dict[str, int] = {}
        self._free_slots: list[int] = []

    def __len__(self) -> int:
        return len(self._by_slot)

    def get(self, slot: int) -> Endpoint | None:
        """The endpoint that holds a slot now, or None."""
        return self._by_slot.get(slot)

    def find(self, name: str) -> Endpoint | None:
        """The endpoint of a name, or None."""
        slot = self._slots_by_name.get(name)
        return None if slot is None else self._by_slot[slot]

    def add(self, name: str, host: str, port: int, telemetry: str | None = None) -> Endpoint:
        """Take in a new endpoint, not ready yet. The lowest free slot is used. ValueError: the name is taken."""
        if name in self._slots_by_name:
            raise ValueError(f"endpoint {name!r} exists already")
        endpoint = Endpoint(slot=self._take_slot(), name=name, host=host, port=port, telemetry=telemetry)
        self._slots_by_name[name] = endpoint.slot
        self._store(endpoint)
        return endpoint

    def remove(self, slot: int) -> Endpoint | None:
        """Forget an endpoint and free its slot; None when the slot is free already.

        Remove only an endpoint without requests in flight: their tickets still count on the slot.
        """
        endpoint = self._by_slot.pop(slot, None)
        if endpoint is None:
            return None
        del self._slots_by_name[endpoint.name]
        self._free_slots.append(slot)
        self._free_slots.sort(reverse=True)
        self._rebuild()
        return endpoint

    def set_ready(self, slot: int, ready: bool) -> bool:
        """Take an endpoint in or out; True when that changed anything.

        One that comes in may be another process, so its 404s are forgotten.
        """
        if ready:
            return self._change(slot, ready=True, without_models=frozenset())
        return self._change(slot, ready=False)

    def set_models(self, slot: int, models: Mapping[str, int | None] | Iterable[str]) -> bool:
        """Replace the names an endpoint serves (with their context in tokens) by its own list; forgets its 404s."""
        named = dict(models) if isinstance(models, Mapping) else dict.fromkeys(models)
        return self._change(slot, models=named, without_models=frozenset())

    def add_without_model(self, slot: int, model: str) -> bool:
        """Remember that an endpoint answered 404 for a model; at the bound, the memory starts afresh."""
        endpoint = self._by_slot.get(slot)
        if endpoint is None:
            return False
        known = endpoint.without_models
        if len(known) >= MAX_WITHOUT_MODELS and model not in known:
            known = frozenset()
        return self._change(slot, without_models=known | {model})

    def _take_slot(self) -> int:
        load = self.load
        if self._free_slots:
            slot = self._free_slots.pop()
            load.in_flight_requests[slot] = 0
            load.in_flight_tokens[slot] = 0
            load.waiting_requests[slot] = UNKNOWN_WAITING
            return slot
        load.in_flight_requests.append(0)
        load.in_flight_tokens.append(0)
        load.waiting_requests.append(UNKNOWN_WAITING)
        return len(load.in_flight_requests) - 1

    def _change(self, slot: int, **fields: object) -> bool:
        endpoint = self._by_slot.get(slot)
        if endpoint is None:
            return False
        changed = replace(endpoint, **fields)  # type: ignore[arg-type]  # dataclasses.replace is typed per field
        if changed == endpoint:
            return False
        self._store(changed)
        return True

    def _store(self, endpoint: Endpoint) -> None:
        self._by_slot[endpoint.slot] = endpoint
        self._rebuild()

    def _rebuild(self) -> None:
        endpoints = tuple(self._by_slot[slot] for slot in sorted(self._by_slot))
        self.snapshot = Snapshot(version=self.snapshot.version + 1, endpoints=endpoints)
