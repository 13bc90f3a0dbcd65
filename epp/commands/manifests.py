"""`epp manifests`: a pool's overlay, ready for `kubectl apply -k`."""

# ruff: noqa: PLC0415 - imports wait for the command that needs them

import sys
from pathlib import Path
from typing import Annotated

import typer

from epp.errors import ConfigError
from epp.manifests.gateways import Gateway

from .flags import AsJson

KEYS = ("handoff", "leg", "salt", "redis-picker", "redis-vllm", "redis-prefill", "redis-decode")
"""Of the Secret `epp-keys`, which whoever installs a pool makes once."""
INSTALLED = "manifests/shipped"
"""Where the wheel has the parts."""


def manifests(
    *,
    pool: Annotated[str, typer.Option(help="Name of the pool, and of its InferencePool.")],
    model: Annotated[str, typer.Option(help="What vLLM serves, in the same words on all pods.")],
    out: Annotated[Path, typer.Option(help="Folder to write, which must not be there yet.")],
    namespace: Annotated[
        str | None, typer.Option(help="A namespace for this pool alone (default: its name).")
    ] = None,
    engines: Annotated[int, typer.Option(help="Pods that compute prompts and answers.")] = 0,
    prefill: Annotated[int, typer.Option(help="Pods that compute prompts for others.")] = 0,
    decode: Annotated[int, typer.Option(help="Pods that answer.")] = 0,
    gateway: Annotated[
        Gateway, typer.Option(help="Whose gateway: see manifests/README.md.")
    ] = "standalone",
    monitoring: Annotated[
        bool, typer.Option("--monitoring", help="Monitors for the Prometheus operator.")
    ] = False,
    gpus: Annotated[int, typer.Option(help="GPUs of each engine.")] = 1,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(help="One more for vLLM, such as --max-model-len=8192; as often as needed."),
    ] = None,
    registry: Annotated[
        str, typer.Option(help="Where our images are, such as registry.example.com/team.")
    ] = "",
    tag: Annotated[str, typer.Option(help="Their tag (default: of this release).")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Write over what is there, your changes too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write one pool's kustomize overlay for Kubernetes.

    Picker, Redis, gateway, and vLLM with sidecars."""
    import json

    from epp.manifests.overlay import WITHOUT_KINDS, Wanted, written

    wanted = Wanted(
        pool=pool,
        namespace=namespace or pool,
        model=model,
        gateway=gateway,
        engines=engines,
        prefill=prefill,
        decode=decode,
        monitoring=monitoring,
        gpus=gpus,
        engine_args=tuple(engine_arg or ()),
        registry=registry,
        tag=tag,
    )
    if out.exists() and not force:
        raise ConfigError(str(out), "is there already; --force writes over it")
    files = written(wanted, shipped(), " ".join(["epp", *sys.argv[1:]]))
    for path, data in files.items():
        place = out / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    if as_json:
        told = {"out": str(out), "namespace": wanted.namespace, "keys": KEYS}
        typer.echo(json.dumps(told | {"files": sorted(files)}))
        return
    typer.echo(_next(wanted.namespace, out, kinds=gateway not in WITHOUT_KINDS), nl=False)


def shipped(package: Path = Path(__file__).parents[1]) -> dict[str, bytes]:
    """The parts: in an installed wheel within the package `epp`, else beside it in the checkout.
    Raises ConfigError where they are neither."""
    for place in (package / INSTALLED, package.parent / "manifests"):
        if (place / "base").is_dir():
            files = (path for path in place.rglob("*") if path.is_file())
            return {path.relative_to(place).as_posix(): path.read_bytes() for path in files}
    raise ConfigError(str(package), "the shipped manifests are missing from this installation")


def _next(namespace: str, out: Path, *, kinds: bool) -> str:
    first = "the kinds that gateways need, and " if kinds else ""
    install = f"  kubectl apply -k {out}/gie-epp/crds\n" if kinds else ""
    return f"""Once, {first}the keys of the pool:

{install}  kubectl create namespace {namespace}
  kubectl -n {namespace} create secret generic epp-keys $(for key in {" ".join(KEYS)};
    do echo "--from-literal=$key=$(openssl rand -hex 32)"; done)

Then:

  kubectl apply -k {out}
"""
