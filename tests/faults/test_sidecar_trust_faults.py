"""Faults of words that only the pool's picker may say (group G): lists without its seal."""

import time
from pathlib import Path
from typing import Any

import pytest

from epp.protocol import DECISION_ID, HANDOFF, PREFILLER
from epp.seals import Named, SealKeys
from tests.fakes.split_pool import COMPLETIONS, SplitPool, prompt, split_pool
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("each_relay")

KEY, NEXT = "s" * 32, "n" * 32
BODY = {"prompt": prompt("sealed"), "max_tokens": 4}


def seal(targets: str, key: str = KEY, *, at: float | None = None, **changes: Any) -> str:
    """What a picker of the pool says of these targets."""
    named = Named(**{"pool": "default/pool", "decision_id": "d-1", "prefill": targets, **changes})
    return SealKeys(key.encode()).seal(named, time.time_ns() / 1e9 if at is None else at, 60.0)


def key_file(directory: Path) -> Path:
    file = directory / "handoff-key"
    file.write_text(KEY)
    return file


async def sealed_post(pool: SplitPool, seal_: str | None, **headers: str) -> int:
    fields = headers if seal_ is None else {HANDOFF: seal_, **headers}
    status, _ = await pool.post(BODY, **fields)
    return status


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda _: None, "seal-missing"),
        (lambda _: "v1;exp=9999999999;mac=00", "seal-malformed"),
        (lambda to: seal(to, NEXT), "seal-key-unknown"),
        (lambda to: seal(to + ",10.0.0.9:1"), "seal-forged"),
        (lambda to: seal(to, decision_id="d-2"), "seal-forged"),
        (lambda to: seal(to, pool="default/other"), "seal-forged"),
        (lambda to: seal(to, at=time.time_ns() / 1e9 - 600), "seal-expired"),
    ],
)
async def test_G01_a_list_that_no_picker_sealed_names_nobody(
    make: Any, reason: str, tmp_path: Path
) -> None:
    """Protected by `Trust.judged`, which drops every list whose seal is not genuine, and by
    `SealKeys.error`; red when an unsealed list is believed. Never an error for the client."""
    async with split_pool(tmp_path, handoff_key_file=key_file(tmp_path)) as pool:
        assert await sealed_post(pool, make(pool.targets)) == 200
        assert pool.prefill.bodies == []
        await pool.decode.counted({("whole", reason): 1})
        assert pool.decode.metric("prefill_targets_refused_total", reason=reason) == 1


async def test_G01_two_seals_or_two_ids_are_no_seal(tmp_path: Path) -> None:
    """Protected by the count of both in `Trust._error`: which of two a proxy meant is a guess."""
    async with split_pool(tmp_path, handoff_key_file=key_file(tmp_path)) as pool:
        good = seal(pool.targets)
        for more in ((HANDOFF, good), (DECISION_ID, "d-1")):
            fields = [
                ("content-type", "application/json"),
                (PREFILLER, pool.targets),
                (DECISION_ID, "d-1"),
                (HANDOFF, good),
                more,
            ]
            url = pool.decode.url + COMPLETIONS
            async with pool.session.post(url, json=BODY, headers=fields[1:]) as response:
                assert response.status == 200
        await pool.settle()
        await pool.decode.counted({("whole", "seal-malformed"): 2})


async def test_a_sealed_list_needs_no_list_of_members(tmp_path: Path) -> None:
    settings = {"handoff_key_file": key_file(tmp_path), "endpoints_file": None}
    async with split_pool(tmp_path, **settings) as pool:
        assert await sealed_post(pool, seal(pool.targets)) == 200
        await pool.decode.counted({("answered", "split"): 1})


async def test_a_sealed_list_does_not_lead_home(tmp_path: Path) -> None:
    settings = {"handoff_key_file": key_file(tmp_path), "endpoints_file": None}
    async with split_pool(tmp_path, **settings) as pool:
        me = pool.decode.address
        status, _ = await pool.post(BODY, targets=me, **{HANDOFF: seal(me)})
        assert status == 200
        await pool.decode.counted({("whole", "target-self"): 1})


async def test_keys_change_without_a_request_that_is_not_split(tmp_path: Path) -> None:
    """First the new key is accepted besides, then it seals, then the old one is gone."""
    file = key_file(tmp_path)
    async with split_pool(tmp_path, handoff_key_file=file) as pool:
        trust = pool.decode.sidecar.trust
        assert await sealed_post(pool, seal(pool.targets)) == 200
        file.write_text(f"{KEY}\n{NEXT}\n")
        await until(lambda: trust.keys is not None and trust.keys.previous is not None)
        for key in (KEY, NEXT):
            assert await sealed_post(pool, seal(pool.targets, key)) == 200
        file.write_text(f"{NEXT}\n")
        await until(lambda: trust.keys is not None and trust.keys.previous is None)
        assert await sealed_post(pool, seal(pool.targets, NEXT)) == 200
        await pool.decode.counted({("answered", "split"): 4})
        assert await sealed_post(pool, seal(pool.targets, KEY)) == 200
        await pool.decode.counted({("answered", "split"): 4, ("whole", "seal-key-unknown"): 1})


async def test_leg_keys_change_without_a_leg_that_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "changing"
    file.write_text(KEY)
    async with split_pool(tmp_path, leg_key_file=file) as pool:
        doors = [station.sidecar.door for station in pool.stations]
        for text in (f"{KEY}\n{NEXT}", f"{NEXT}\n{KEY}", NEXT):
            file.write_text(text)
            first, *others = text.split()

            def read(first: str = first, count: int = len(others)) -> bool:
                found = [(door.keys.current, door.keys.previous) for door in doors if door.keys]
                return all(
                    one == first.encode() and (other is not None) == bool(count)
                    for one, other in found
                )

            await until(read)
            assert (await pool.post(BODY))[0] == 200
        await pool.decode.counted({("answered", "split"): 3})
        assert pool.prefill.metric("legs_refused_total") == 0
