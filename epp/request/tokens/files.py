"""The files of a model that say how its engine makes tokens: read once, at start.

A directory holds one folder for each served name, as a model's repository has them:
`<name>/tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`. A name with slashes is a
path of folders; an adapter is a link to its base. Files at the top serve every other name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from epp.errors import ConfigError

ANY = ""
"""Name of the files at the top: they serve every model that has no folder."""
TOKENIZER = "tokenizer.json"
MAX_DEPTH = 3
"""Folders of one name."""
MAX_MODELS = 64
MAX_FILE_BYTES = 128 * 1024 * 1024

DEFAULT = "default"
TOOL_USE = "tool_use"
"""Name of the template that is used where tools are given, if there is one."""

_SETTINGS = "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What the files of one model say."""

    tokenizer: str
    """The text of tokenizer.json."""
    templates: Mapping[str, str] = field(default_factory=dict[str, str])
    """Chat templates by name; none where the model has no chat."""
    special: Mapping[str, str] = field(default_factory=dict[str, str])
    """Texts that templates know by name: `bos_token` and the like."""


def find(directory: Path) -> dict[str, Path]:
    """Folders of models by served name. Raises ConfigError where there is none, or too many."""
    if not directory.is_dir():
        raise ConfigError(str(directory), "is no directory; it holds the models' tokenizer files")
    found = dict(_named(directory, directory, 0))
    if not found:
        raise ConfigError(str(directory), f"no {TOKENIZER} in it, nor in a folder of a model")
    if len(found) > MAX_MODELS:
        raise ConfigError(str(directory), f"has {len(found)} models, at most {MAX_MODELS} fit")
    return found


def read(folder: Path) -> ModelFiles:
    """Raises ConfigError for a file that cannot be read or is not what its name says."""
    settings = _object(folder / _SETTINGS)
    special = _special(_object(folder / "special_tokens_map.json"))
    return ModelFiles(
        tokenizer=_text(folder / TOKENIZER),
        templates=_templates(folder, settings),
        special={**special, **_special(settings)},
    )


def _named(top: Path, folder: Path, depth: int) -> Iterator[tuple[str, Path]]:
    if (folder / TOKENIZER).is_file():
        yield (ANY if folder == top else folder.relative_to(top).as_posix()), folder
    if depth == MAX_DEPTH:
        return
    for below in sorted(folder.iterdir()):
        if below.is_dir() and not below.name.startswith("."):
            yield from _named(top, below, depth + 1)


def _templates(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """A file of its own counts more than what the settings say."""
    said = settings.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(said, str):
        templates[DEFAULT] = said
    elif isinstance(said, list):
        for one in said:
            if isinstance(one, dict) and isinstance(one.get("template"), str):
                templates[str(one.get("name"))] = one["template"]
    processor = _object(folder / "chat_template.json").get("chat_template")
    if isinstance(processor, str):
        templates[DEFAULT] = processor
    own = folder / "chat_template.jinja"
    if own.is_file():
        templates[DEFAULT] = _text(own)
    for more in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[more.stem] = _text(more)
    return templates


def _special(settings: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _object(path: Path) -> dict[str, Any]:
    """The members of a JSON file; none where there is no such file."""
    if not path.is_file():
        return {}
    try:
        decoded = msgspec.json.decode(_text(path))
    except msgspec.DecodeError as error:
        raise ConfigError(str(path), f"is not JSON: {error}") from None
    if not isinstance(decoded, dict):
        raise ConfigError(str(path), "is not a JSON object")
    return decoded


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(str(path), f"has more than {MAX_FILE_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            str(path), f"cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
