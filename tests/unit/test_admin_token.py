"""The operator's token: in its file, in requests, and what it opens."""

from pathlib import Path

import pytest

from epp import protocol
from epp.config.serve import serve_settings
from epp.config.token import is_token, read_header_token
from epp.errors import ConfigError
from epp.request.admin_token import AdminToken
from tests.fakes.desk import post

TOKEN = "s3cret-s3cret-s3cret"


def _with(value: str) -> dict[str, str]:
    return {protocol.ADMIN_TOKEN: value, "x-other": "1"}


@pytest.mark.parametrize(
    ("set_to", "given", "shown"),
    [
        (TOKEN, TOKEN, True),
        (TOKEN, TOKEN + "x", False),
        (TOKEN, f"{TOKEN},{TOKEN}", False),
        (TOKEN, "", False),
        (TOKEN, "s\xe9cret\udcff", False),
        (None, TOKEN, False),
        (None, "", False),
    ],
)
def test_the_header_is_taken_out_whatever_it_says(
    set_to: str | None, given: str, shown: bool
) -> None:
    arrival = post({}, headers=_with(given))
    left, told = AdminToken(set_to).taken(arrival)
    assert told is shown
    assert protocol.ADMIN_TOKEN not in left.headers
    assert left.headers["x-other"] == "1"
    assert left.body is arrival.body


def test_a_request_without_it_stays_the_same_object() -> None:
    arrival = post({})
    assert AdminToken(TOKEN).taken(arrival) == (arrival, False)


@pytest.mark.parametrize(
    "text", ["", "short", "with a blank in it all", "a,comma,in,it,all,the,time", "\xe9" * 20]
)
def test_a_token_that_no_header_holds_is_refused_unshown(text: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(ConfigError, match="holds no") as error:
        read_header_token(file)
    assert not text or text not in str(error.value)


def test_a_file_that_is_no_text_holds_no_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not a text"):
        read_header_token(file)


def test_the_token_is_read_without_its_line_end(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    assert read_header_token(file) == TOKEN
    assert is_token(TOKEN, TOKEN)


def test_an_admin_port_off_loopback_needs_a_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    given: dict[str, object] = {"endpoints_file": "e.yaml", "admin_host": "0.0.0.0"}
    with pytest.raises(ConfigError, match="needs --admin-token-file"):
        serve_settings(given)
    assert serve_settings(given | {"admin_token_file": str(file)}).admin_token() == TOKEN
    assert serve_settings({"endpoints_file": "e.yaml"}).admin_token() is None
