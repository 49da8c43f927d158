"""The engine as a real child process: streams, aborts, sudden deaths on either side."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import psutil
import pytest
import uvloop
from engine_builders import expected_tokens, make_submit
from tidegate_worker.engine.client import EngineClient, EngineClosedError, EngineStartError
from tidegate_worker.engine.messages import ChoiceOutput, StepOutput
from tidegate_worker.engine.settings import EngineSettings, SchedulerSettings, SimSettings
from tidegate_worker.sim.time_model import TimeModel

WAIT_SECONDS = 20.0


def make_settings(*, step_seconds: float = 0.0, **settings: object) -> EngineSettings:
    sim = SimSettings(time=TimeModel(base_seconds=step_seconds))
    return EngineSettings(**{"runner": "sim", "kv_blocks": 256, "sim": sim, **settings})  # type: ignore[arg-type]


@asynccontextmanager
async def running(settings: EngineSettings) -> AsyncIterator[EngineClient]:
    client = await EngineClient.start(settings)
    try:
        yield client
    finally:
        await client.close()


class Listener:
    """Collects one request's outputs."""

    def __init__(self) -> None:
        self.outputs: list[ChoiceOutput] = []
        self._heard = asyncio.Event()

    def __call__(self, output: ChoiceOutput) -> None:
        self.outputs.append(output)
        self._heard.set()

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def reasons(self) -> list[str]:
        return [output.finish_reason for output in self.outputs if output.finish_reason is not None]

    async def until(self, done: Callable[["Listener"], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not done(self):
                self._heard.clear()
                await self._heard.wait()


async def eventually(holds: Callable[[], bool], what: Callable[[], object]) -> None:
    """Poll for a state that no event announces; the last value is in the failure."""
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, what()
        await asyncio.sleep(0.01)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_a_request_streams_its_tokens_step_by_step() -> None:
    async with running(make_settings()) as client:
        assert client.ready.total_blocks == 256
        assert client.load.free_blocks == 256
        submit = make_submit("r", b"hello world" * 9, max_tokens=40, temperature=1.0, seed=5)
        listener = Listener()
        client.submit(submit, listener)
        assert listener.outputs == []  # never from inside submit
        await listener.until(lambda one: bool(one.reasons))
        assert listener.tokens == expected_tokens(submit)
        assert len(listener.outputs) == 40
        assert listener.reasons == ["length"]
        assert client.load.referenced_blocks == 0
        assert client.load.cached_blocks + client.load.free_blocks == 256


async def test_two_hundred_streams_at_once_each_get_their_own_text() -> None:
    async with running(make_settings()) as client:
        submits = [make_submit(f"r{i}", b"shared" * 10 + b"%d" % i, max_tokens=12) for i in range(200)]
        listeners = [Listener() for _ in submits]
        for submit, listener in zip(submits, listeners, strict=True):
            client.submit(submit, listener)
        for submit, listener in zip(submits, listeners, strict=True):
            await listener.until(lambda one: bool(one.reasons))
            assert listener.tokens == expected_tokens(submit)


async def test_abort_mid_way_frees_the_blocks_with_the_next_step_and_silences_the_request() -> None:
    async with running(make_settings(step_seconds=0.01)) as client:
        other, listener = Listener(), Listener()
        client.submit(make_submit("other", b"abc", max_tokens=400), other)
        client.submit(make_submit("r", b"hello world" * 30, n=2, max_tokens=1000), listener)
        await listener.until(lambda one: len(one.outputs) > 4)
        held = client.load.referenced_blocks
        assert held > 20
        steps: list[StepOutput] = []
        client.on_step.append(steps.append)
        client.abort("r")
        heard = len(listener.outputs)
        await eventually(lambda: client.load.referenced_blocks < 20, lambda: client.load)
        aborted = next(i for i, step in enumerate(steps) if any(c.finish_reason == "abort" for c in step.choices))
        assert aborted <= 2  # the step in which it arrived, and the one after it
        assert steps[aborted].load.referenced_blocks < 20
        assert len(listener.outputs) == heard
        client.abort("r")
        client.abort("never")
        client.abort("other")
        await eventually(lambda: client.load.referenced_blocks == 0, lambda: client.load)


async def test_one_choice_can_be_dropped_while_the_others_go_on() -> None:
    async with running(make_settings(step_seconds=0.005)) as client:
        listener = Listener()
        client.submit(make_submit("r", b"hello", n=3, max_tokens=30), listener)
        await listener.until(lambda one: len(one.outputs) > 3)
        client.abort("r", 1)
        await listener.until(lambda one: len(one.reasons) == 2)
        assert {output.index for output in listener.outputs if output.finish_reason} == {0, 2}


async def test_what_can_never_run_is_known_before_and_ends_with_an_error() -> None:
    async with running(make_settings(kv_blocks=4)) as client:
        submit = make_submit("r", b"x" * 60, max_tokens=8)
        assert "64 tokens per request" in (client.limits.refusal(submit) or "")
        listener = Listener()
        client.submit(submit, listener)
        await listener.until(lambda one: bool(one.reasons))
        assert listener.reasons == ["error"]
        assert "64 tokens per request" in (listener.outputs[0].error or "")


async def test_an_id_in_use_is_refused_by_the_client() -> None:
    async with running(make_settings(step_seconds=0.01)) as client:
        client.submit(make_submit("r", b"x", max_tokens=100), Listener())
        with pytest.raises(ValueError, match="in use"):
            client.submit(make_submit("r", b"y"), Listener())


async def test_a_killed_engine_ends_its_requests_and_says_how_it_died() -> None:
    async with running(make_settings(step_seconds=0.01)) as client:
        listener = Listener()
        client.submit(make_submit("r", b"hello", n=2, max_tokens=1000), listener)
        await listener.until(lambda one: len(one.outputs) > 4)
        os.kill(client.pid, signal.SIGKILL)
        await listener.until(lambda one: len(one.reasons) == 2)
        assert listener.reasons == ["error", "error"]
        async with asyncio.timeout(WAIT_SECONDS):
            failure = await client.failed
        assert failure.message == "the engine process was killed by signal 9"
        late = Listener()
        client.submit(make_submit("late", b"x"), late)
        await late.until(lambda one: bool(one.reasons))
        assert late.reasons == ["error"]


async def test_an_engine_that_is_stuck_is_seen_by_its_silence() -> None:
    async with running(make_settings(step_seconds=0.01)) as client:
        assert client.silent_seconds == 0
        listener = Listener()
        client.submit(make_submit("r", b"hello", max_tokens=1000), listener)
        await listener.until(lambda one: len(one.outputs) > 2)
        os.kill(client.pid, signal.SIGSTOP)
        try:
            await eventually(lambda: client.silent_seconds > 0.5, lambda: client.silent_seconds)
        finally:
            os.kill(client.pid, signal.SIGCONT)
        await eventually(lambda: client.silent_seconds < 0.5, lambda: client.silent_seconds)
        client.abort("r")
        assert client.silent_seconds == 0


async def test_a_handler_that_fails_hurts_only_its_own_request(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_output: ChoiceOutput) -> None:
        raise LookupError("a bug of the server")

    async with running(make_settings()) as client:
        good = Listener()
        client.submit(make_submit("bad", b"x", max_tokens=500), broken)
        client.submit(make_submit("good", b"y"), good)
        await good.until(lambda one: bool(one.reasons))
        await eventually(lambda: client.load.referenced_blocks == 0, lambda: client.load)
    assert [record.message for record in caplog.records] == ["an output handler failed, request dropped"]


async def test_settings_that_cannot_work_are_the_users_to_mend() -> None:
    with pytest.raises(EngineStartError, match="max_running must be at least 1") as caught:
        await EngineClient.start(make_settings(scheduler=SchedulerSettings(max_running=0)))
    assert caught.value.user_error


async def test_a_model_that_is_not_there_is_the_users_to_mend() -> None:
    with pytest.raises(EngineStartError) as caught:
        await EngineClient.start(EngineSettings(runner="torch", model_uri="/nowhere/model.gguf"))
    assert caught.value.user_error
    assert "/nowhere/model.gguf" in str(caught.value)


async def test_close_ends_open_requests_and_is_idempotent() -> None:
    client = await EngineClient.start(make_settings(step_seconds=0.01))
    listener = Listener()
    client.submit(make_submit("r", b"x", max_tokens=1000), listener)
    await listener.until(lambda one: bool(one.outputs))
    await client.close()
    assert listener.reasons == ["error"]
    assert has_ended(client.pid)
    assert not client.failed.done()
    await client.close()
    with pytest.raises(EngineClosedError):
        client.submit(make_submit("s", b"x"), Listener())


async def test_close_does_not_wait_for_a_step_without_end() -> None:
    client = await EngineClient.start(make_settings(step_seconds=3600.0))
    client.submit(make_submit("r", b"x"), Listener())
    async with asyncio.timeout(WAIT_SECONDS):
        await client.close(timeout_seconds=0.2)
    assert has_ended(client.pid)


async def test_cancelling_a_start_leaves_no_process() -> None:
    before = {child.pid for child in psutil.Process().children()}
    start = asyncio.create_task(EngineClient.start(make_settings()))
    await eventually(lambda: bool({c.pid for c in psutil.Process().children()} - before), lambda: "no child")
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE} <= before


async def test_signals_to_the_group_are_left_to_the_server() -> None:
    async with running(make_settings(step_seconds=0.005)) as client:
        listener = Listener()
        client.submit(make_submit("r", b"x", max_tokens=60), listener)
        await listener.until(lambda one: bool(one.outputs))
        os.kill(client.pid, signal.SIGINT)
        os.kill(client.pid, signal.SIGTERM)
        await listener.until(lambda one: bool(one.reasons))
        assert listener.reasons == ["length"]


SERVER = """
import asyncio, sys
import msgspec
from tidegate_worker.engine.client import EngineClient
from tidegate_worker.engine.messages import Submit
from tidegate_worker.engine.sampling_params import SamplingParams
from tidegate_worker.engine.settings import EngineSettings

async def main():
    client = await EngineClient.start(msgspec.json.decode(sys.argv[1], type=EngineSettings))
    client.submit(Submit("r", [1, 2, 3], SamplingParams(max_tokens=100)), lambda output: None)
    assert "torch" not in sys.modules
    print(client.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("step_seconds", [0.001, 3600.0], ids=["between steps", "within a step"])
async def test_the_engine_dies_with_a_server_that_is_killed(step_seconds: float) -> None:
    settings = msgspec.json.encode(make_settings(step_seconds=step_seconds)).decode()
    command = (sys.executable, "-c", SERVER, settings)
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    engine_pid = int(await server.stdout.readline())
    assert not has_ended(engine_pid)
    server.kill()
    await server.wait()
    await eventually(lambda: has_ended(engine_pid), lambda: psutil.Process(engine_pid))


def test_the_client_works_under_uvloop() -> None:
    async def stream() -> list[int]:
        async with running(make_settings()) as client:
            listener = Listener()
            client.submit(make_submit("r", b"hello", max_tokens=5), listener)
            await listener.until(lambda one: bool(one.reasons))
            return listener.tokens

    assert uvloop.run(stream()) == expected_tokens(make_submit("r", b"hello", max_tokens=5))
