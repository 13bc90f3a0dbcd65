"""How this sidecar was built."""

from importlib.util import find_spec


def is_compiled() -> bool:
    """Whether what requests pass is machine code (docs/decisions/0017)."""
    found = find_spec("sidecar.handoff")
    return found is not None and not str(found.origin).endswith(".py")
