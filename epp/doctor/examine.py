"""All checks, one after the other. Pure."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from .certificates import check_certificate
from .engines import check_block_size, check_events, check_usage
from .findings import Finding, ordered
from .headers import check_headers
from .membership import check_labels, check_ports
from .owners import check_owners
from .rights import check_rbac
from .roles import check_handoff, check_roles
from .stores import check_store
from .workloads import Deployed

Check = Callable[[Deployed], Iterator[Finding]]


def checks(now: datetime) -> Mapping[str, Check]:
    """By the names that their findings have. `now`: with a time zone."""
    return {
        "labels": check_labels,
        "ports": check_ports,
        "roles": check_roles,
        "handoff": check_handoff,
        "block-size": check_block_size,
        "events": check_events,
        "usage": check_usage,
        "headers": check_headers,
        "certificate": lambda deployed: check_certificate(deployed, now),
        "rbac": check_rbac,
        "store": check_store,
        "owners": check_owners,
    }


def examined(deployed: Deployed, now: datetime) -> list[Finding]:
    """What all checks found, the worst first."""
    return ordered([one for check in checks(now).values() for one in check(deployed)])
