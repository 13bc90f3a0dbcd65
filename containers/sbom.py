"""Print what is installed here as a CycloneDX document: names, versions, licences, dependencies.

Run by the interpreter that it is about. Equal installations give equal documents.
"""

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from typing import Any

SUBJECT = "gie-epp"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def key(name: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def purl(found: Distribution) -> str:
    return f"pkg:pypi/{key(found.metadata['Name'])}@{found.version}"


def licences(found: Distribution) -> list[dict[str, Any]]:
    told = found.metadata.get("License-Expression")
    return [{"expression": told}] if told else []


def needed(found: Distribution, installed: dict[str, Distribution]) -> Iterator[str]:
    """Of what it may need: those that are here."""
    for line in found.requires or ():
        match = _NAME.match(line)
        if match and key(match[0]) in installed:
            yield purl(installed[key(match[0])])


def document() -> dict[str, Any]:
    installed = {key(one.metadata["Name"]): one for one in distributions()}
    ordered = [installed[name] for name in sorted(installed)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(installed[SUBJECT], "application")},
        "components": [
            component(one, "library") for one in ordered if one is not installed[SUBJECT]
        ],
        "dependencies": [
            {"ref": purl(one), "dependsOn": sorted(set(needed(one, installed)))} for one in ordered
        ],
    }


def component(found: Distribution, kind: str) -> dict[str, Any]:
    made = {
        "type": kind,
        "bom-ref": purl(found),
        "name": found.metadata["Name"],
        "version": found.version,
        "purl": purl(found),
    }
    told = licences(found)
    return made | ({"licenses": told} if told else {})


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=1)
    sys.stdout.write("\n")
