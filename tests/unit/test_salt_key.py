"""The file with a pool's key for cache salts."""

from pathlib import Path

import pytest

from epp.config.salt_key import MAX_BYTES, MIN_BYTES, read_salt_key
from epp.errors import ConfigError


def test_the_key_is_read_without_the_space_around_it(tmp_path: Path) -> None:
    file = tmp_path / "key"
    for length in (MIN_BYTES, MAX_BYTES - 1):
        file.write_bytes(b"k" * length + b"\n")
        assert read_salt_key(file) == b"k" * length


@pytest.mark.parametrize("text", [b"", b"s3cret\n", b" " * 100, b"s" * (MAX_BYTES + 1)])
def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match="holds no key") as refused:
        read_salt_key(file)
    assert "s3cret" not in str(refused.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_salt_key(tmp_path / "none")
