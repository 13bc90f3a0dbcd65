"""A plugin of one's own: docs/plugins-howto.md, followed to the letter by somebody who is offline.

The reader's virtual environment lies on top of the tests' own. Commands run as they stand, but for
addresses and ports, which others may use on this machine.
"""

import asyncio
import os
import sysconfig
import venv
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import epp
from epp import protocol
from tests.fakes import extproc_messages as envoy
from tests.fakes.extproc_client import call, channel
from tests.fakes.howto import Step, steps
from tests.fakes.picker_process import PickerProcess, ports_of
from tests.timing import scaled

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "plugins-howto.md"
EXAMPLE = ROOT / "examples" / "own-scorer"
FREE = "--grpc-port 0 --grpc-health-port 0 --metrics-port 0 --admin-port 0 --state-port 0"
FLEX = {"x-service-tier": "flex"}
BODY = b'{"model": "m", "prompt": "Once upon a time"}'

pytestmark = pytest.mark.timeout(scaled(120))


def environment(directory: Path) -> dict[str, str]:
    """Variables of a reader whose virtual environment sees everything that the tests' has."""
    venv.create(directory, with_pip=False, symlinks=True)
    below = sysconfig.get_path("purelib")
    within = {"base": str(directory), "platbase": str(directory)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=within))
    (site / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    program = directory / "bin" / "epp"
    run = "from epp.cli import main; main()"
    program.write_text(f"#!/bin/sh\nexec '{directory}/bin/python' -c '{run}' \"$@\"\n")
    program.chmod(0o755)
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(epp.__file__).parents[1]),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # as pip reads it: no isolation
    }


@dataclass
class Reader:
    """Somebody in a directory of their own."""

    directory: Path
    variables: Mapping[str, str]
    loopback: str
    """Stands for 127.0.0.1 wherever the page gives an endpoint's address."""
    picker: PickerProcess | None = None
    said: str = ""
    """What the last command printed."""
    running: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def follow(self, step: Step) -> None:
        text = self._here(step.text)
        match step.kind:
            case "file":
                (self.directory / step.name).write_text(text)
            case "says":
                lines = [line.strip().rstrip(",") for line in self.said.splitlines()]
                assert text in lines, f"{text!r} is not in\n{self.said}"
            case _ if text.startswith("epp serve "):
                self.picker = await self.serve(text)
            case _ if step.stays:
                await self._start(f"exec {text}", self.directory / "background.log")
            case _:
                await self.run(text)

    async def run(self, command: str) -> None:
        log = self.directory / "command.log"
        process = await self._start(command, log)
        async with asyncio.timeout(scaled(60)):
            status = await process.wait()
        self.said = log.read_text()
        assert status == 0, f"{command}\n{self.said}"

    async def serve(self, command: str) -> PickerProcess:
        """Once both endpoints are ready."""
        log = self.directory / "picker.log"
        process = await self._start(f"exec {command} {FREE}", log)
        picker = PickerProcess(process, await ports_of(process, log), log)
        await picker.until_metric("llm_d_epp_ready_endpoints", 2)
        return picker

    async def end(self) -> None:
        for process in self.running:
            if process.returncode is None:
                process.terminate()
            await process.wait()

    def _here(self, text: str) -> str:
        if self.picker is not None:
            text = text.replace("127.0.0.1:9091", f"localhost:{self.picker.ports['admin']}")
        return text.replace("127.0.0.1", self.loopback)

    async def _start(self, command: str, log: Path) -> asyncio.subprocess.Process:
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *("sh", "-c", command),
                cwd=self.directory,
                env=dict(self.variables),
                stdout=output,
                stderr=output,
            )
        self.running.append(process)
        return process


@asynccontextmanager
async def reading(directory: Path) -> AsyncIterator[Reader]:
    """An address of loopback of its own keeps the page's ports from being anybody else's."""
    pid = os.getpid()
    loopback = f"127.{1 + pid % 250}.{pid // 250 % 250}.{1 + pid // 62_500 % 250}"
    reader = Reader(directory / "price-scorer", environment(directory / "venv"), loopback)
    reader.directory.mkdir()
    try:
        yield reader
    finally:
        await reader.end()


async def chosen(picker: PickerProcess, count: int, headers: Mapping[str, str]) -> list[str]:
    """Where as many requests go, one after the other, by what the gateway is told."""
    found: list[str] = []
    async with channel(picker.ports["grpc"]) as gateway:
        for _ in range(count):
            stream = call(gateway)
            await stream.send(envoy.request_headers(headers), envoy.request_body(BODY, end=True))
            first, _ = await stream.replies(2)
            mutation = first.request_headers.response.header_mutation
            found.append(envoy.set_in(mutation)[protocol.DESTINATION].rpartition(":")[2])
            await stream.done_writing()
            assert await stream.reply() is None
    return found


ON_DEMAND, SPOT = "8101", "8102"


def test_the_page_and_the_example_hold_the_same_files() -> None:
    found = list(steps(PAGE))
    assert {step.kind for step in found} == {"file", "command", "says"}
    written = {step.name: step.text for step in found if step.kind == "file"}
    beside = {"README.md", "__pycache__"}
    stand = {path.name: path.read_text() for path in EXAMPLE.iterdir() if path.name not in beside}
    assert written == stand
    assert len((EXAMPLE / "README.md").read_text().splitlines()) <= 60


BROKEN = '''\
from dataclasses import dataclass
from time import thread_time

from epp.framework import Candidates, Request


@dataclass(kw_only=True)
class Broken:
    """Would send everything to the endpoint that costs more, if it were heard."""

    how: str

    def score(self, request: Request, candidates: Candidates, /) -> list[float]:
        wish = [float(address.endswith(":8101")) for address in candidates.addresses]
        match self.how:
            case "raises":
                raise RuntimeError("once upon a time")
            case "is-nan":
                return [float("nan") if each == 0.0 else each for each in wish]
            case "is-short":
                return wish[:1]
        until = thread_time() + 0.05
        while thread_time() < until:
            pass
        return wish
'''
FAULTS = {
    "raises": "raised",
    "is-nan": "not-finite",
    "is-short": "wrong-shape",
    "is-slow": "slow",
}


def with_broken_ones(config: str) -> str:
    """The configuration with scorers of weight 100 that fail, each in a way of its own."""
    entries = "".join(
        f"  - {{type: broken-scorer, name: {how}, parameters: {{how: {how}}}}}\n" for how in FAULTS
    )
    uses = "".join(f"      - {{pluginRef: {how}, weight: 100}}\n" for how in FAULTS)
    return config.replace("plugins:\n", "plugins:\n" + entries, 1) + uses


async def test_the_page_leads_to_a_scorer_that_decides_and_mistakes_cost_it_only_its_vote(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(reading(tmp_path))
        for step in steps(PAGE):
            await reader.follow(step)
        picker = reader.picker
        assert picker is not None
        assert await chosen(picker, 10, FLEX) == [SPOT] * 10
        assert set(await chosen(picker, 60, {})) == {ON_DEMAND, SPOT}  # equal, and drawn by lot
        picker.terminate()
        assert await picker.ended(20) == 0

        await install_broken(reader)
        config = (EXAMPLE / "config.yaml").read_text()
        (reader.directory / "broken.yaml").write_text(with_broken_ones(config))
        picker = await reader.serve(
            "epp serve --endpoints-file endpoints.yaml --config-file broken.yaml"
            " --no-secure-serving"
        )
        assert await chosen(picker, 5, FLEX) == [SPOT] * 5
        for plugin, why in FAULTS.items():
            series = f'epp_plugin_failures_total{{plugin="{plugin}",why="{why}"}}'
            assert await picker.metric(series) == 5, series
        told = [line for line in picker.said() if line["event"] == "plugin lost its vote"]
        assert {line["plugin"]: line["why"] for line in told} == FAULTS
        assert "once upon a time" not in picker.log.read_text()


async def install_broken(reader: Reader) -> None:
    package = reader.directory.parent / "broken"
    package.mkdir()
    project = (EXAMPLE / "pyproject.toml").read_text()
    for ours, theirs in (
        ('"epp-price-scorer"', '"epp-broken-scorer"'),
        ('price-scorer = "price_scorer:Price"', 'broken-scorer = "broken_scorer:Broken"'),
        ('"price_scorer"', '"broken_scorer"'),
    ):
        assert ours in project
        project = project.replace(ours, theirs)
    (package / "pyproject.toml").write_text(project)
    (package / "broken_scorer.py").write_text(BROKEN)
    await reader.run(f"python -m pip install {package}")
