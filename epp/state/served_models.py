"""Read an engine's page of models (`/v1/models`). Pure."""

import msgspec

MAX_MODELS = 1024
"""Of one endpoint; the first ones count."""
MAX_NAME = 256
"""Characters of a model's name; a longer one is left out, as no request can be asked by it."""


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None
    """Of an adapter: the model that it changes."""


class _Page(msgspec.Struct):
    data: list[_Model]


_page = msgspec.json.Decoder(_Page)


def models_on(page: bytes) -> frozenset[str]:
    """The names on a page of models. Raises ValueError for anything else."""
    return frozenset(model.id for model in _models(page))


def base_on(page: bytes) -> str | None:
    """The first that is no adapter of another one. Raises ValueError for what is no such page."""
    return next((model.id for model in _models(page) if model.parent is None), None)


def _models(page: bytes) -> list[_Model]:
    try:
        found = _page.decode(page)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("no page of models") from error
    return [model for model in found.data[:MAX_MODELS] if 0 < len(model.id) <= MAX_NAME]
