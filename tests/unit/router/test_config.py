from pathlib import Path

import pytest
from tidegate_crds.errors import ManifestError
from tidegate_crds.router_spec import ListenSpec
from tidegate_router.config import ConfigError, StaticEndpoint, load_config, parse_listen, printed, static_endpoints
from tidegate_router.flags import build_parser

MINIMAL = """\
apiVersion: router.tidegate.dev/v1alpha1
kind: RouterConfig
endpoints:
  - url: http://127.0.0.1:9001
  - url: http://[::1]:9002/
    telemetry: "127.0.0.1:9102"
    name: second
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "router.yaml"
    path.write_text(text)
    return str(path)


def test_minimal_config_has_defaults_and_survives_printing(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, MINIMAL))
    assert config.retries.max_attempts == 3
    assert load_config(written(tmp_path, printed(config))) == config
    assert static_endpoints(config) == (
        StaticEndpoint("127.0.0.1:9001", "127.0.0.1", 9001, None),
        StaticEndpoint("second", "::1", 9002, "127.0.0.1:9102"),
    )


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("127.0.0.1:80", ListenSpec(host="127.0.0.1", port=80)),
        ("[::1]:0", ListenSpec(host="::1", port=0)),
        (":8080", ListenSpec(host="0.0.0.0", port=8080)),
    ],
)
def test_listen_flag_wins(tmp_path: Path, text: str, listen: ListenSpec) -> None:
    assert load_config(written(tmp_path, MINIMAL), text).listen == listen


@pytest.mark.parametrize("text", ["", "8080", "host:", "host:x", "host:70000", "::1:80", "host:-1", "host:٣"])
def test_bad_listen_says_what_is_expected(text: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        parse_listen(text)


def test_unreadable_files_are_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file or directory"):
        load_config(str(tmp_path / "missing.yaml"))
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot read"):
        load_config("nul\0byte")
    (tmp_path / "latin.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(str(tmp_path / "latin.yaml"))


@pytest.mark.parametrize(
    ("extra", "path"),
    [
        ("scheduling: {plugins: [{type: queue-scoer}]}", "scheduling.plugins[0].type"),
        ("scheduling: {plugins: [{type: queue-scorer, parameters: {x: 1}}]}", "scheduling.plugins[0].parameters.x"),
        ("retries: {maxAttempts: 0}", "retries.maxAttempts"),
        ("  - url: http://h:1\n    name: second", "endpoints[2].name"),
    ],
)
def test_errors_name_their_path(tmp_path: Path, extra: str, path: str) -> None:
    with pytest.raises(ManifestError) as caught:
        load_config(written(tmp_path, MINIMAL + extra + "\n"))
    assert [error.path for error in caught.value.errors] == [path]


def test_flags() -> None:
    flags = build_parser().parse_args(["--config", "f", "--listen", ":1", "--print-config"])
    assert (flags.config, flags.listen, flags.print_config) == ("f", ":1", True)
    with pytest.raises(SystemExit):
        build_parser().parse_args([])
