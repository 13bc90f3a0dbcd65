"""Objects out of YAML and JSON texts. Pure."""

from collections.abc import Iterator
from typing import Any

import yaml

from epp.errors import ConfigError


def objects(text: bytes, where: str) -> Iterator[dict[str, Any]]:
    """Those of one file, which may hold several. Raises ConfigError for what is no YAML; documents
    that are no Kubernetes objects are left out."""
    try:
        for one in yaml.safe_load_all(text):
            if isinstance(one, dict) and "kind" in one and "apiVersion" in one:
                yield one
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = where if mark is None else f"{where}:{mark.line + 1}:{mark.column + 1}"
        why = getattr(error, "problem", None) or "it has a character that YAML does not allow"
        raise ConfigError(place, f"is no YAML: {why}") from error
