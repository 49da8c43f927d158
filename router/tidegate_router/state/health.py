"""`HealthBoard`: which endpoints are in, which are out, and when each is to be checked next. Pure: `now` is passed in.

    out ── healthy_threshold good checks in a row ─────────────────────────▶ in
    in  ── unhealthy_threshold failed checks, or faults of requests, in a row ─▶ out

An endpoint starts out and is checked at once. While out it is probed often, doubling from 0.1 s to at most 1 s. One
that was put out by faults although its checks pass is held out 0.2 s at first, doubling to 2 s while no request of it
succeeds in between, and its first fault after coming back puts it out again. When every endpoint is out, nothing is
held: all are due at once (`due` says so by itself), for any of them is better than none.

Only faults of the worker count. What is a fault is the caller's knowledge: connect errors, broken answers, 5xx and
time-outs are; 4xx and 429 never are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

FIRST_PROBE_SECONDS = 0.1
MAX_PROBE_SECONDS = 1.0
FIRST_HOLD_SECONDS = 0.2
MAX_HOLD_SECONDS = 2.0
JITTER = 0.1
"""Part of the interval by which a check may come sooner or later."""
DARK_PROBE_SECONDS = 0.05
"""Between two checks of an endpoint while every endpoint is out and requests are waiting for one."""

Cause = Literal["check", "fault"]


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """Thresholds and pace; the fields of `spec.router.healthCheck`."""

    interval_seconds: float = 1.0
    unhealthy_threshold: int = 2
    healthy_threshold: int = 1


@dataclass(frozen=True, slots=True)
class Transition:
    """An endpoint came in or went out."""

    slot: int
    ready: bool
    cause: Cause
    cache_lost: bool
    """Its process is gone (connection refused or reset): whatever it had cached went with it."""


@dataclass(slots=True)
class _Endpoint:
    due_at: float
    ready: bool = False
    checking: bool = False
    good_checks: int = 0
    failed_checks: int = 0
    faults: int = 0
    gone: bool = False
    probe_seconds: float = FIRST_PROBE_SECONDS
    hold_seconds: float = FIRST_HOLD_SECONDS
    held_until: float = 0.0
    admitted_at: float = 0.0
    checked_at: float = float("-inf")


class HealthBoard:
    """Health of all endpoints by slot; not thread-safe, one event loop owns it."""

    def __init__(self, policy: HealthPolicy, randomness: Callable[[], float] = lambda: 0.5) -> None:
        """`randomness` gives numbers in [0, 1): they keep checks of many routers and workers from falling together."""
        self._policy = policy
        self._randomness = randomness
        self._endpoints: dict[int, _Endpoint] = {}
        self._ready = 0

    @property
    def is_dark(self) -> bool:
        """Every endpoint is out."""
        return self._ready == 0

    def add(self, slot: int, now: float) -> None:
        """Watch an endpoint from now on: out, its first check due at once."""
        self._endpoints[slot] = _Endpoint(due_at=now)

    def remove(self, slot: int) -> None:
        """Stop watching an endpoint; a check still running for it is ignored when it ends."""
        endpoint = self._endpoints.pop(slot, None)
        if endpoint is not None and endpoint.ready:
            self._ready -= 1

    def due(self, now: float) -> list[int]:
        """Slots whose check is to start now; each counts as being checked until it passes or fails."""
        started = []
        for slot, endpoint in self._endpoints.items():
            if not endpoint.checking and endpoint.due_at <= now:
                endpoint.checking = True
                endpoint.checked_at = now
                started.append(slot)
        return started

    def next_due(self) -> float | None:
        """When `due` will next have something; None while nothing is watched or all are being checked."""
        return min((each.due_at for each in self._endpoints.values() if not each.checking), default=None)

    def hurry(self, now: float) -> float | None:
        """Ask for checks because a request found nobody ready; when they are due. Does nothing unless all are out."""
        if self.is_dark:
            self._hurry_all(now)
        return self.next_due()

    def check_passed(self, slot: int, now: float) -> Transition | None:
        """A check was answered well."""
        endpoint = self._endpoints.get(slot)
        if endpoint is None:
            return None
        endpoint.checking = False
        endpoint.failed_checks = 0
        if endpoint.ready:
            endpoint.due_at = now + self._interval()
            return None
        endpoint.good_checks += 1
        endpoint.due_at = max(now + FIRST_PROBE_SECONDS, endpoint.held_until)
        held = now < endpoint.held_until and not self.is_dark
        if held or endpoint.good_checks < self._policy.healthy_threshold:
            return None
        return self._admit(slot, endpoint, now)

    def check_failed(self, slot: int, now: float, *, gone: bool = False) -> Transition | None:
        """A check failed or timed out; `gone` when the connection was refused or reset."""
        endpoint = self._endpoints.get(slot)
        if endpoint is None:
            return None
        endpoint.checking = False
        endpoint.good_checks = 0
        endpoint.failed_checks += 1
        endpoint.gone = endpoint.gone or gone
        if endpoint.ready and endpoint.failed_checks >= self._policy.unhealthy_threshold:
            return self._eject(slot, endpoint, now, "check")
        endpoint.due_at = now + min(endpoint.probe_seconds, self._policy.interval_seconds)
        if not endpoint.ready:
            endpoint.probe_seconds = min(endpoint.probe_seconds * 2, MAX_PROBE_SECONDS)
        return None

    def answered(self, slot: int) -> None:
        """A request was answered well, or with a 4xx: the worker works."""
        endpoint = self._endpoints.get(slot)
        if endpoint is not None and endpoint.ready:
            endpoint.faults = 0
            endpoint.hold_seconds = FIRST_HOLD_SECONDS

    def fault(self, slot: int, now: float, started_at: float, *, gone: bool = False) -> Transition | None:
        """A request that was sent at `started_at` failed by the worker's fault.

        What was sent before the endpoint last came back says nothing about it now and does not count.
        """
        endpoint = self._endpoints.get(slot)
        if endpoint is None or not endpoint.ready or started_at < endpoint.admitted_at:
            return None
        endpoint.faults += 1
        endpoint.gone = endpoint.gone or gone
        if endpoint.faults < self._policy.unhealthy_threshold:
            endpoint.due_at = min(endpoint.due_at, now)
            return None
        endpoint.held_until = now + endpoint.hold_seconds
        endpoint.hold_seconds = min(endpoint.hold_seconds * 2, MAX_HOLD_SECONDS)
        return self._eject(slot, endpoint, now, "fault")

    def _interval(self) -> float:
        """Seconds to the next check of an endpoint that is in."""
        return self._policy.interval_seconds * (1.0 + JITTER * (2.0 * self._randomness() - 1.0))

    def _admit(self, slot: int, endpoint: _Endpoint, now: float) -> Transition:
        cache_lost = endpoint.gone
        endpoint.ready, endpoint.gone = True, False
        endpoint.admitted_at = now
        endpoint.probe_seconds = FIRST_PROBE_SECONDS
        endpoint.due_at = now + self._interval()
        # On probation after faults: until a request succeeds, one more fault is enough.
        endpoint.faults = self._policy.unhealthy_threshold - 1 if endpoint.held_until else 0
        endpoint.held_until = 0.0
        self._ready += 1
        return Transition(slot, ready=True, cause="check", cache_lost=cache_lost)

    def _eject(self, slot: int, endpoint: _Endpoint, now: float, cause: Cause) -> Transition:
        endpoint.ready = False
        endpoint.good_checks = 0
        endpoint.probe_seconds = FIRST_PROBE_SECONDS
        endpoint.due_at = max(now, endpoint.held_until)
        self._ready -= 1
        if self.is_dark:
            self._hurry_all(now)
        return Transition(slot, ready=False, cause=cause, cache_lost=endpoint.gone)

    def _hurry_all(self, now: float) -> None:
        for endpoint in self._endpoints.values():
            endpoint.due_at = min(endpoint.due_at, max(now, endpoint.checked_at + DARK_PROBE_SECONDS))
