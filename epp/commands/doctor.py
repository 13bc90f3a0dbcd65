"""`epp doctor`: what would not work together, in a rendered folder or a live namespace."""

# ruff: noqa: PLC0415 - imports wait for the command that needs them

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epp.errors import ConfigError

from .flags import AsJson, run

if TYPE_CHECKING:
    from epp.control.kube.access import Access
    from epp.doctor.cluster import Seen

KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
SUFFIXES = {".yaml", ".yml", ".json"}
RENDER_S = 120
NO_OBJECTS = "has no Kubernetes objects: each needs an apiVersion and a kind"


def doctor(
    where: Annotated[
        Path | None,
        typer.Argument(
            help="Folder or file with the objects; a kustomization is rendered; -: read from "
            "stdin. Without it: a live cluster."
        ),
    ] = None,
    *,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the live cluster.")
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(envvar="KUBECONFIG", help="The cluster (default: ~/.kube/config)."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Warnings count as errors for the exit code.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find what would not work together in a deployment.

    Labels, roles, ports, block size, events, usage, header stripping, certificate, RBAC, and owners
    of replicas; each finding says how to mend it. Exit 0: no errors; 1: some; 2: nothing could be
    looked at."""
    import json
    from datetime import UTC

    from epp.doctor.cluster import Seen
    from epp.doctor.examine import examined
    from epp.doctor.findings import Level, document, ordered, shown
    from epp.doctor.workloads import Deployed

    if where is None:
        seen = run(_live(_access(kubeconfig), namespace or _own_namespace()))
        deployed = seen.deployed
    else:
        if namespace is not None:
            raise ConfigError("", "--namespace is of a live cluster: leave it out, or the folder")
        seen = Seen()
        deployed = Deployed.of(_given(where))
    found = ordered([*seen.notes, *examined(deployed, _today().astimezone(UTC))])
    number = len(deployed.objects)
    text = json.dumps(document(found, number)) + "\n" if as_json else shown(found, number)
    typer.echo(text, nl=False)
    bad = {Level.ERROR, Level.WARNING} if strict else {Level.ERROR}
    if any(one.level in bad for one in found):
        raise typer.Exit(1)


def _today() -> Any:
    from datetime import UTC, datetime

    return datetime.now(UTC)  # noqa: TID251 - when certificates end is a question about the calendar


def _given(where: Path) -> Iterator[dict[str, Any]]:
    """Raises ConfigError for what is no YAML, and for nothing."""
    from epp.doctor.folder import objects

    if str(where) == "-":
        texts = [("stdin", sys.stdin.buffer.read())]
    elif where.is_dir() and any((where / name).is_file() for name in KUSTOMIZATIONS):
        texts = [(str(where), _rendered(where))]
    else:
        texts = [(str(path), path.read_bytes()) for path in _files(where)]
    found = [one for name, text in texts for one in objects(text, name)]
    if not found:
        raise ConfigError(texts[0][0] if str(where) == "-" else str(where), NO_OBJECTS)
    yield from found


def _files(where: Path) -> Iterator[Path]:
    if not where.is_dir():
        yield where
        return
    yield from sorted(path for path in where.rglob("*") if path.suffix in SUFFIXES)


def _rendered(folder: Path) -> bytes:
    """As `kubectl apply -k` would apply it. Raises ConfigError."""
    import shutil
    import subprocess

    beside = Path(sys.executable).with_name("kubectl")
    program = shutil.which("kubectl") or (str(beside) if beside.is_file() else None)
    if program is None:
        what = "is a kustomization, and there is no kubectl: kubectl kustomize … | epp doctor -"
        raise ConfigError(str(folder), what)
    try:
        made = subprocess.run(  # noqa: S603 - a program and a folder that the user has named
            [program, "kustomize", str(folder)], check=False, capture_output=True, timeout=RENDER_S
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(str(folder), f"was not rendered within {RENDER_S} s") from None
    if made.returncode != 0:
        said = made.stderr.decode(errors="replace").strip().splitlines()
        raise ConfigError(str(folder), f"cannot be rendered: {said[-1] if said else 'no word'}")
    return made.stdout


def _access(kubeconfig: Path | None) -> "Access":
    from epp.control.kube.access import in_cluster
    from epp.control.kube.kubeconfig import read_kubeconfig

    if kubeconfig is not None:
        return read_kubeconfig(kubeconfig)
    own = Path.home() / ".kube" / "config"
    found = in_cluster(os.environ)
    if found is None and not own.is_file():
        what = "is not there, and we run in no cluster: name a folder of objects, or --kubeconfig"
        raise ConfigError(str(own), what)
    if found is None or own.is_file():
        return read_kubeconfig(own)
    return found


def _own_namespace() -> str:
    return os.environ.get("NAMESPACE") or "default"


async def _live(access: "Access", namespace: str) -> "Seen":
    from epp.control.kube.api import Api
    from epp.doctor.cluster import seen

    api = Api(access)
    try:
        return await seen(api, namespace)
    finally:
        await api.close()
