"""What two engines must have in common before one pulls the other's KV, as their pages tell. Pure.

Engines of another version, model, block size or data type read foreign blocks as their own. Most
refuse a pull when they shake hands, after the prompt was computed; here no prompt is sent at all.
What an engine does not tell is not compared.
"""

import re
from dataclasses import dataclass, fields

import msgspec

_CACHE = re.compile(rb"^[A-Za-z_:]*cache_config_info\{([^}\n]{0,8192})\}", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="([^"\\]{0,256})"')
_NOT_TOLD = {"", "None"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """None where the engine does not tell."""

    version: str | None = None
    model: str | None = None
    """Where its weights are from; of adapters nothing is said."""
    block_size: str | None = None
    dtype: str | None = None
    """Of the cache, as it is set."""
    layout: str | None = None


def difference(ours: Traits, theirs: Traits) -> str | None:
    """None, or the stable reason why no KV may go from one to the other."""
    for trait in fields(Traits):
        here, there = getattr(ours, trait.name), getattr(theirs, trait.name)
        if here is not None and there is not None and here != there:
            return f"pair-{trait.name.replace('_', '-')}"
    return None


def read(version: bytes, models: bytes, page: bytes) -> Traits:
    """Of the bodies of `/version`, `/v1/models` and the metrics page; empty ones tell nothing."""
    labels = _cache_labels(page)
    return Traits(
        version=_version(version),
        model=_model(models),
        block_size=labels.get("block_size"),
        dtype=labels.get("cache_dtype"),
        layout=labels.get("kv_cache_layout"),
    )


class _Version(msgspec.Struct):
    version: str | None = None


class _Model(msgspec.Struct):
    root: str | None = None
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


def _version(body: bytes) -> str | None:
    try:
        return msgspec.json.decode(body, type=_Version).version or None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _model(body: bytes) -> str | None:
    """The first that is no adapter of another one."""
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return next((one.root for one in models if one.parent is None and one.root), None)


def _cache_labels(page: bytes) -> dict[str, str]:
    found = _CACHE.search(page)
    if found is None:
        return {}
    labels = {
        name.decode(): value.decode("utf-8", "replace")
        for name, value in _LABEL.findall(found.group(1))
    }
    return {name: value for name, value in labels.items() if value not in _NOT_TOLD}
