"""Requests that no parser knows: any ready endpoint will do, and their bytes pass untouched."""

from .prompt import Parsed

NAME = "passthrough"


def unscored(path: str, why: str) -> Parsed:
    """A request to route by load alone; `why` is a stable word."""
    return Parsed(api=NAME, path=path, unscored=why)
