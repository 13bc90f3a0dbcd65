"""Forms pass whatever they hold; the model's name is read where it can be."""

import pytest

from epp.request.apis import catalog
from epp.request.apis.media import MAX_NAME, MAX_PART_HEADERS, MAX_PARTS
from epp.request.apis.prompt import Parsed
from tests.fakes.desk import post

TYPE = "multipart/form-data; boundary=xyz"
PATH = "/v1/audio/transcriptions"


def _part(head: bytes, value: bytes) -> bytes:
    return b"--xyz\r\ncontent-disposition: form-data; " + head + b"\r\n\r\n" + value + b"\r\n"


def _form(*parts: bytes, kind: str = TYPE, path: str = PATH) -> Parsed:
    body = b"".join(parts) + b"--xyz--\r\n"
    return catalog.parse(post(body, path=path, headers={"content-type": kind}))


MODEL = _part(b'name="model"', b"whisper")
SOUND = _part(b'name="file"; filename="model"\r\ncontent-type: audio/wav', b"\0\r\n\r\n\xff" * 99)


@pytest.mark.parametrize("parts", [[MODEL, SOUND], [SOUND, MODEL], [SOUND, MODEL, SOUND], [MODEL]])
@pytest.mark.parametrize("path", sorted(catalog.FORMS))
def test_the_model_is_found_wherever_it_stands(parts: list[bytes], path: str) -> None:
    parsed = _form(*parts, path=path)
    assert (parsed.api, parsed.model, parsed.unscored) == ("form", "whisper", "a form")
    assert (parsed.prompt, parsed.prompt_tokens, parsed.whole) == (None, None, "api")


@pytest.mark.parametrize(
    "kind",
    [
        'multipart/form-data; boundary="xyz"',
        "multipart/form-data;charset=utf-8;Boundary=xyz",
        "Multipart/Form-Data; boundary = xyz ",
    ],
)
def test_a_boundary_is_written_in_several_ways(kind: str) -> None:
    assert _form(MODEL, kind=kind).model == "whisper"


def test_of_two_models_the_last_one_counts_as_for_engines() -> None:
    assert _form(MODEL, _part(b"name=model", b" other ")).model == "other"


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [SOUND],
        [_part(b'name="model"', b"m" * (MAX_NAME + 1))],
        [_part(b'name="model_name"', b"m")],
        [_part(b'filename="model"', b"m")],
        [_part(b'x="' + b"x" * MAX_PART_HEADERS + b'"; name="model"', b"m")],
        [*[_part(b'name="file"', b"")] * MAX_PARTS, MODEL],
        [b"--xyz\r\n"],
        [b"--xyz"],
    ],
)
def test_a_form_without_a_model_that_we_find_passes_all_the_same(parts: list[bytes]) -> None:
    assert (_form(*parts).model, _form(*parts).api) == ("", "form")


def test_a_form_that_is_cut_short_passes() -> None:
    for end in range(len(MODEL)):
        arrival = post(MODEL[:end], path=PATH, headers={"content-type": TYPE})
        assert catalog.parse(arrival).api == "form"
    assert catalog.parse(post(b"", path=PATH, headers={"content-type": TYPE})).model == ""


def test_a_form_without_a_boundary_passes() -> None:
    assert _form(MODEL, kind="multipart/form-data").model == ""


@pytest.mark.parametrize("kind", ["application/json", "audio/wav", ""])
def test_what_is_no_form_passes_where_a_form_belongs(kind: str) -> None:
    assert _form(MODEL, kind=kind).unscored == "not a form"


def test_a_form_passes_where_json_belongs() -> None:
    assert _form(MODEL, path="/v1/chat/completions").unscored == "not JSON"
