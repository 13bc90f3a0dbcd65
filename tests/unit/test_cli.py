"""The command line: flags, and one clear line for what a user can mend."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from epp import cli
from epp.config.serve import ServeSettings
from epp.config.token import read_token
from epp.errors import EppError

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    stdout: str
    stderr: str


Epp = Callable[..., Ended]


@pytest.fixture
def epp(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Epp:
    """Run the command line in this process."""

    def run(*arguments: str, code: int = 0) -> Ended:
        monkeypatch.setattr(sys, "argv", ["epp", *arguments])
        # Logs would go on to this test's captured stderr, which is closed when the next one runs.
        monkeypatch.setattr("epp.observe.logs.configure", lambda *_: None)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert (ended.value.code or 0) == code, said.err
        return Ended(code, said.out, said.err)

    return run


@pytest.fixture
def unused_ports() -> dict[str, str]:
    """Flags of `epp serve` that let the system choose its ports, on loopback."""
    names = ("--grpc-port", "--grpc-health-port", "--metrics-port", "--admin-port", "--state-port")
    return {"--host": "127.0.0.1"} | dict.fromkeys(names, "0")


def test_the_version_is_that_of_the_distribution(epp: Epp) -> None:
    assert epp("--version").stdout == epp("version").stdout
    assert epp("version").stdout.strip() == version("gie-epp")
    assert json.loads(epp("version", "--json").stdout) == {
        "version": version("gie-epp"),
        "compiled": False,
    }


def test_every_setting_of_serve_has_a_flag_with_its_description(epp: Epp) -> None:
    text = " ".join(epp("serve", "--help").stdout.split())
    for name, field in ServeSettings.model_fields.items():
        flag = "--" + name.replace("_", "-").removesuffix("-s")
        assert flag in text
        assert field.description
        assert field.description.replace("- ", "-") in text.replace("- ", "-")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "--endpoints-file", "no-such-file"], "no-such-file"),
        (["serve", "--endpoints-file", "x", "--grpc-port", "99999"], "--grpc-port"),
        (["serve", "--endpoints-file", "x", "--store", "redis"], "--redis-url"),
        (["serve", "--pool-name", "x"], "nobody says which endpoints there are"),
        (["serve", "--kubeconfig", "gone"], "gone cannot be read"),
        (["serve", "--endpoints-file", "x", "-config-file=y", "--config-text=z"], "exclude"),
        (["serve", "--endpoints-file", "x", "--config-text=z", "--split=never"], "--split"),
        (["check", "no-such-file"], "no-such-file cannot be read"),
        (["serve", "--endpoints-file", "x", "--zap-encoder", "xml"], "--zap-encoder"),
        (["sidecar", "--pool-name", "p", "--name", "n", "--engine-url", "ftp://x"], "--engine-url"),
        (["sidecar", "--pool-name", "p", "--name", "n", "--tls-cert-file", "x"], "--tls-key-file"),
        (["sidecar", "--pool-name", "a|b", "--name", "n"], "--pool-name: expected 1 to 253"),
        (["sidecar", "--pool-name", "p", "--name", "n", "--answer-timeout", "0"], "--answer-time"),
        (["sidecar", "--pool-name", "p", "--name", "n", "--state-token-file", "gone"], "gone"),
        (["doctor", "no-such-folder"], "no-such-folder: "),
        (["manifests", "--pool", "A_b", "--model", "m", "--out", "o"], "--pool: expected 1 to 63"),
        (["manifests", "--pool", "a", "--model", "", "--out", "o"], "--model: expected a name"),
        (
            ["manifests", "--pool", "a", "--model", "m", "--out", "o", "--engine-arg", "x"],
            "--engine-arg: expected --name",
        ),
        (
            ["manifests", "--pool", "a", "--model", "m", "--out", "o", "--engine-arg", "--port=1"],
            "--engine-arg: '--port=1' is set for you",
        ),
        (["local", "engine", "--block-tokens", "0"], "block_tokens must be 1 to 4096"),
        (["local", "up", "--engines", "0"], "--engines must be between"),
        (["local", "up", "--port-base", "80"], "--port-base must be between"),
        (["local", "up", "--prefill", "1"], "--prefill and --decode belong together"),
        (["local", "up", "--engines", "1", "--prefill", "1", "--decode", "1"], "leave it out"),
        (
            ["local", "up", "--engine", "vllm", "--vllm-venv", "gone", "--auto-ports"],
            "make setup-vllm",
        ),
        (["local", "demo", "--engine", "vllm", "--vllm-venv", "gone"], "make setup-vllm"),
        (["local", "engine", "--kv-role", "both", "--lease", "0"], "lease_s must be positive"),
    ],
)
def test_a_fault_of_the_user_is_one_line_and_exit_code_2(
    epp: Epp, arguments: list[str], says: str
) -> None:
    done = epp(*arguments, code=2)
    assert says in done.stderr
    assert done.stderr.startswith("epp: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_one_line_that_names_its_flag(
    epp: Epp, tmp_path: Path, unused_ports: dict[str, str]
) -> None:
    members = tmp_path / "endpoints.yaml"
    members.write_text("endpoints:\n  - {name: a, address: 127.0.0.1, port: 8000}\n")
    for flag in ("--grpc-port", "--grpc-health-port", "--metrics-port", "--admin-port"):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            at = f"127.0.0.1:{taken.getsockname()[1]}"
            ports = unused_ports | {flag: at.partition(":")[2]}
            words = [word for pair in ports.items() for word in pair]
            said = epp("serve", "--endpoints-file", str(members), *words, code=2).stderr
        last = said.strip().splitlines()[-1]
        assert last.startswith("epp: cannot listen for")
        assert f" on {at}: " in last
        assert f"; {flag} names another port" in last
        assert "Traceback" not in said


def test_a_certificate_that_is_missing_is_one_line(
    epp: Epp, tmp_path: Path, unused_ports: dict[str, str]
) -> None:
    members = tmp_path / "endpoints.yaml"
    members.write_text("endpoints:\n  - {name: a, address: 127.0.0.1, port: 8000}\n")
    words = [word for pair in unused_ports.items() for word in pair]
    gone = str(tmp_path / "gone")
    said = epp("serve", "--endpoints-file", str(members), *words, "--cert-path", gone, code=2)
    assert "gone" in said.stderr.strip().splitlines()[-1]
    assert "Traceback" not in said.stderr


def test_a_fault_that_no_user_can_mend_keeps_its_trace(
    epp: Epp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ExceptionGroup("tasks", [EppError("a port is taken"), ZeroDivisionError("ours")])

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr(sys, "argv", ["epp", "check"])
    with pytest.raises(ExceptionGroup) as raised:
        cli.main()
    assert raised.group_contains(ZeroDivisionError)


def test_what_a_sidecar_is_given_is_not_quoted_when_it_is_wrong(epp: Epp) -> None:
    url = "redis://:s3cr3t@127.0.0.1:x/0"
    said = epp("sidecar", "--pool-name", "p", "--name", "n", "--state-url", url, code=2).stderr
    assert "s3cr3t" not in said


@pytest.mark.parametrize("group", [[], ["local"], ["bench"]])
def test_every_command_is_listed_with_a_whole_sentence(epp: Epp, group: list[str]) -> None:
    listed = epp(*group, "--help").stdout.partition("Commands:\n")[2].strip().splitlines()
    assert listed
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def test_bytes_that_are_no_text_are_told_in_words(epp: Epp, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_bytes(b"a: 1\nb: \xff\xfe\x00")
    for command in ("check", "doctor"):
        said = epp(command, str(file), code=2).stderr
        assert "file.yaml" in said
        assert "not allow" in said
        assert "Error" not in said


def test_a_doctor_without_a_cluster_says_what_it_could_look_at(
    epp: Epp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    assert "name a folder of objects, or --kubeconfig" in epp("doctor", code=2).stderr


def test_what_was_written_of_a_pool_is_told_to_machines(epp: Epp, tmp_path: Path) -> None:
    words = ("--pool", "llama", "--model", "m", "--engines", "1", "--out", str(tmp_path / "o"))
    told = json.loads(epp("manifests", *words, "--json").stdout)
    assert told["namespace"] == "llama"
    assert "handoff" in told["keys"]
    assert [name for name in told["files"] if not (tmp_path / "o" / name).is_file()] == []


def test_unknown_words_are_refused_with_the_known_ones(epp: Epp) -> None:
    assert "memory" in epp("serve", "--endpoints-file", "x", "--store", "disk", code=2).stderr
    assert "No such command" in epp("sreve", code=2).stderr
    assert "--grpc-port" in epp("serve", "--grpc-prot", "1", code=2).stderr


@pytest.mark.parametrize("command", [[], ["serve"], ["check"], ["local"], ["local", "up"]])
def test_help_may_be_asked_for_as_in_go(epp: Epp, command: list[str]) -> None:
    assert epp(*command, "-h").stdout == epp(*command, "--help").stdout


def test_a_password_of_redis_need_not_be_on_the_command_line(epp: Epp) -> None:
    assert "EPP_REDIS_URL" in epp("serve", "--help").stdout
    assert "EPP_STATE_URL" in epp("sidecar", "--help").stdout


@pytest.mark.parametrize("command", [["version"], ["local", "--help"], ["sidecar", "--help"]])
def test_a_command_imports_only_what_it_needs(command: list[str]) -> None:
    script = (
        "import sys\n"
        "from epp import cli\n"
        f"sys.argv[1:] = {command!r}\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'grpc', 'aiohttp', 'redis', 'uvloop', 'zmq', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stderr.strip() == "[]"


def test_the_token_of_a_file_is_read_without_its_line_end(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    assert read_token(path) == "s3cret"
