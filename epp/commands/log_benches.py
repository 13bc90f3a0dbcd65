"""`epp bench store` and `epp bench follow`: what the log weighs, and what following it costs."""

# ruff: noqa: PLC0415 - imports wait for their command

from typing import Annotated

import typer

from .flags import AsJson, run


def bench_store(
    redis_url: Annotated[str, typer.Argument(help="A Redis for this alone: redis://host:port/db.")],
    *,
    endpoints: Annotated[int, typer.Option(min=1, max=10_000, help="Engines.")] = 100,
    own_blocks: Annotated[
        int, typer.Option(min=1, max=100_000, help="Blocks of 64 tokens that each of them holds.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="Of the tokens.")] = 1,
    as_json: AsJson = False,
) -> None:
    """What snapshots weigh in Redis, and how long reading takes.

    That is, how soon a fresh replica knows what they say."""
    from epp.commands.store import bench, shown
    from epp.state.store.place import read_access

    found = run(
        bench(read_access(redis_url), endpoints=endpoints, own_blocks=own_blocks, seed=seed)
    )
    typer.echo(shown(found, as_json=as_json))


def bench_follow(
    redis_url: Annotated[str, typer.Argument(help="A Redis for this alone: redis://host:port/db.")],
    *,
    endpoints: Annotated[int, typer.Option(min=1, max=10_000, help="Engines.")] = 1000,
    keys_per_s: Annotated[
        int, typer.Option(min=1, help="Blocks that come and go, of all engines together.")
    ] = 600_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="For how long.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Of the blocks.")] = 1,
    as_json: AsJson = False,
) -> None:
    """What following a pool's engines costs a picker.

    And how soon it knows of an event."""
    from uuid import uuid4

    from epp.commands.follow import Load, bench, shown
    from epp.framework import PoolId
    from epp.state.store.place import read_access

    pool = PoolId(f"bench/{uuid4().hex}")
    load = Load(endpoints=endpoints, keys_per_s=keys_per_s, seconds=seconds, pool=pool)
    found = run(bench(read_access(redis_url), load, seed=seed))
    typer.echo(shown(found, as_json=as_json))
