"""The engine process: builds the runner, then steps while there is work and sleeps while there is none.

Started by `EngineClient` as `python -m tidegate_worker.engine.process --fd N --settings JSON`, where N is one end of a
socket pair. The other end's closing ends this process at once, in the middle of a step or of loading a model, so
that it never outlives its server, whatever became of it. Signals that a terminal or a supervisor sends to the whole
process group are ignored: the server drains first and then says `Shutdown`.
"""

import argparse
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue

import msgspec

from tidegate_worker.engine.batch import ModelInfo, ModelRunner
from tidegate_worker.engine.engine import Engine
from tidegate_worker.engine.frames import FrameDecoder, frame
from tidegate_worker.engine.messages import Abort, EngineFailed, EngineReady, FromEngine, Shutdown, Submit, ToEngine
from tidegate_worker.engine.settings import EngineSettings

_READ_BYTES = 1 << 18
_SIM_CONTEXT_TOKENS = 8192
_SIM_BLOCKS = 1024

_logger = logging.getLogger(__name__)


class ServerLink:
    """This process's end of the socket pair. A thread reads commands; whoever steps sends.

    When the server's end closes, the process exits on the spot: nobody is left to compute for.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._encoder = msgspec.msgpack.Encoder()
        self.commands: SimpleQueue[ToEngine] = SimpleQueue()

    def start_reading(self) -> None:
        """Begin to fill `commands`."""
        threading.Thread(target=self._read, name="server-link", daemon=True).start()

    def send(self, message: FromEngine) -> None:
        """Send one message; waits only if the server does not read."""
        try:
            self._connection.sendall(frame(self._encoder.encode(message)))
        except OSError:
            os._exit(0)

    def _read(self) -> None:
        frames = FrameDecoder()
        decoder = msgspec.msgpack.Decoder(ToEngine)
        try:
            while data := self._connection.recv(_READ_BYTES):
                for payload in frames.feed(data):
                    self.commands.put(decoder.decode(payload))
        except OSError:
            pass  # a reset: the server is gone, just as at the end of the stream
        except (ValueError, msgspec.DecodeError):
            # Without this thread no command would ever arrive again: better an end that the server sees.
            _logger.exception("the server sent what is no command")
            os._exit(1)
        os._exit(0)


def serve(engine: Engine, link: ServerLink) -> None:
    """Obey commands and step until told to shut down. Blocks while idle, never while there is work."""
    while True:
        if not engine.has_work and not _obey(engine, link.commands.get()):
            return
        while True:
            try:
                command = link.commands.get_nowait()
            except Empty:
                break
            if not _obey(engine, command):
                return
        link.send(engine.step())


def create_runner(settings: EngineSettings) -> ModelRunner:
    """The runner that these settings ask for; torch is imported here and nowhere before.

    Raises:
        ModelError: the model cannot be served as asked (of `tidegate_worker.model.errors`).
    """
    if settings.runner == "sim":
        from tidegate_worker.sim.runner import SIM_EOS_TOKEN_ID, SIM_VOCABULARY_SIZE, SimRunner

        info = ModelInfo(
            max_model_tokens=settings.context_tokens or _SIM_CONTEXT_TOKENS,
            vocabulary_size=SIM_VOCABULARY_SIZE,
            eos_token_ids=(SIM_EOS_TOKEN_ID,),
            block_size=settings.block_size,
            total_blocks=settings.kv_blocks or _SIM_BLOCKS,
        )
        return SimRunner(info, settings.sim, time.sleep)
    from tidegate_worker.runner import create

    return create.create_runner(
        create.RunnerSettings(
            model_uri=settings.model_uri,
            dtype=settings.dtype,
            context_tokens=settings.context_tokens,
            kv_blocks=settings.kv_blocks,
            kv_memory_bytes=settings.kv_memory_bytes,
            threads=settings.threads,
            device=settings.device,
            block_size=settings.block_size,
        ),
    )


def main(arguments: Sequence[str]) -> int:
    """Run the engine process; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="tidegate-engine")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--settings", required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    link = ServerLink(socket.socket(fileno=options.fd))
    link.start_reading()
    settings = msgspec.json.decode(options.settings, type=EngineSettings)

    engine = _start(settings, link)
    if engine is None:
        return 1
    try:
        serve(engine, link)
    except Exception as error:
        _logger.exception("engine step failed")
        link.send(EngineFailed(f"the engine failed in a step: {_in_words(error)}", user_error=False))
        return 1
    return 0


def _start(settings: EngineSettings, link: ServerLink) -> Engine | None:
    from tidegate_worker.model.errors import ModelError

    began = time.perf_counter()
    try:
        runner = create_runner(settings)
        engine = Engine(runner, settings.scheduler, time.perf_counter)
    except (ModelError, ValueError) as error:
        link.send(EngineFailed(str(error), user_error=True))
        return None
    except MemoryError:
        link.send(EngineFailed("not enough memory for the model and its KV cache", user_error=True))
        return None
    except Exception as error:
        _logger.exception("engine start failed")
        link.send(EngineFailed(f"the engine cannot start: {_in_words(error)}", user_error=False))
        return None
    # What start-up made lives as long as the process: the collector need not walk it between steps.
    gc.collect()
    gc.freeze()
    link.send(
        EngineReady(
            max_model_tokens=engine.limits.max_model_tokens,
            block_size=runner.info.block_size,
            total_blocks=runner.info.total_blocks,
            vocabulary_size=runner.info.vocabulary_size,
            eos_token_ids=runner.info.eos_token_ids,
            load_seconds=time.perf_counter() - began,
        ),
    )
    return engine


def _obey(engine: Engine, command: ToEngine) -> bool:
    """Apply a command; False for `Shutdown`."""
    match command:
        case Submit():
            engine.submit(command)
        case Abort(request_id, index):
            engine.abort(request_id, index)
        case Shutdown():
            return False
    return True


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
