"""The files that a sidecar reads."""

import asyncio
from pathlib import Path

import pytest

from epp.errors import ConfigError
from sidecar.transfer.files import Followed, read_endpoints, read_leg_keys
from tests.fakes.waiting import until

ONE, TWO = "1" * 32, "2" * 40


@pytest.mark.parametrize(
    ("text", "keys"),
    [(ONE, (ONE, None)), (f"{ONE}\n", (ONE, None)), (f"\n {ONE} \r\n\n{TWO}\n", (ONE, TWO))],
)
def test_the_first_key_signs_and_a_second_one_is_accepted(
    text: str, keys: tuple[str, str | None], tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    found = read_leg_keys(file)
    assert (found.current, found.previous) == tuple(key and key.encode() for key in keys)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds 0 keys"),
        (f"{ONE}\n{ONE}\n{TWO}", "holds 3 keys"),
        ("x" * 31, "less than 32 bytes"),
        (f"{ONE}\nshort", "less than 32 bytes"),
        ("x" * 5000, "larger than 4096 bytes"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_said_without_showing_it(
    text: str, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_leg_keys(file)
    assert "xxx" not in str(caught.value)
    assert ONE not in str(caught.value)


def test_a_key_file_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_leg_keys(tmp_path / "none")


async def test_the_list_follows_the_file_and_outlives_a_bad_one(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.yaml"
    lists: list[list[str]] = []
    refused: list[int] = []
    async with asyncio.TaskGroup() as tg:
        followed = Followed(
            paths=(file,),
            read=lambda: read_endpoints(file),
            take=lambda all_: lists.append([one.name for one in all_]),
        )
        task = tg.create_task(followed.run(0.01, lambda: refused.append(1)))
        await until(lambda: len(refused) == 1)  # it is missing
        assert lists == []
        file.write_text("endpoints: [{name: a, address: 10.0.0.1, port: 1}]")
        await until(lambda: lists == [["a"]])
        file.write_text("endpoints: [{name: a")
        await until(lambda: len(refused) == 2)
        file.unlink()
        await until(lambda: len(refused) == 3)
        assert lists == [["a"]]
        file.write_text("endpoints: []")
        await until(lambda: lists == [["a"], []])
        task.cancel()
    assert len(refused) == 3
