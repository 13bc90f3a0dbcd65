"""Which paths pass, and what is tried again elsewhere.

Engines have pages that are no user's business (`/metrics`, `/sleep`, `/v1/load_lora_adapter`), so a
path that is not listed gets 404 from Envoy itself: neither the picker nor an engine sees it (G11).
Paths are compared after Envoy has resolved dots and slashes in them, as the engine gets them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from epp import protocol
from epp.errors import ConfigError

from .clusters import POOL, TYPE, Json, seconds
from .modes import on
from .refusals import not_found

API_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/conversations",
    "/v1/embeddings",
    "/v1/images",
    "/v1/audio",
    "/v1/models",
    "/v1/messages",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/pooling",
    "/classify",
    "/tokenize",
    "/detokenize",
    "/inference/v1/generate",
)
"""What users call: each path, and everything under it."""

EVERY_PATH = ("/",)

REGEX_LIMIT = {"re2.max_program_size.error_level": 2_000}
"""Runtime setting: Envoy's own limit of 100 is less than the list of paths needs."""

_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedPool:
    """A pool of several behind one gateway."""

    name: str
    """As the picker knows it."""
    hosts: Sequence[str]
    """Names under which clients reach it, as the pools file has them."""
    endpoints: Sequence[str]
    """`ip:port` of all that may ever be chosen."""

    @property
    def cluster(self) -> str:
        return f"{POOL}-{self.name}"


def routes(
    paths: Sequence[str],
    *,
    picked: bool,
    pools: Sequence[RoutedPool] = (),
    retry_limit_bytes: int | None,
    body_limit_bytes: int | None,
) -> Json:
    """The route table. `picked`: there is a picker to ask. `pools`: none where there is one only,
    which every host leads to.

    `retry_limit_bytes`: requests with larger bodies are not retried; None: none is.
    `body_limit_bytes`: largest body, where Envoy holds it for the picker; None: where it does not.
    Raises ConfigError for a path that cannot be one.
    """
    one = _Paths(paths, picked, retry_limit_bytes, body_limit_bytes)
    hosts = [one.host("all", ["*"], POOL, on(True))]
    if pools:
        hosts = [
            one.host(pool.name, pool.hosts, pool.cluster, on(True, pool=pool.name))
            for pool in pools
        ]
    return {"name": "routes", "virtual_hosts": hosts}


@dataclass(frozen=True, slots=True)
class _Paths:
    """What passes, whichever pool it is for; see `routes`."""

    paths: Sequence[str]
    picked: bool
    retry_limit_bytes: int | None
    body_limit_bytes: int | None

    def host(self, name: str, domains: Sequence[str], cluster: str, asked: Json) -> Json:
        """A virtual host; `asked`: how the picker is asked, where there is one."""
        host: Json = {
            "name": name,
            "domains": list(domains),
            # Words for the picker, which takes them out; here for when it is down. It has read
            # them by the time that Envoy removes them.
            "request_headers_to_remove": list(protocol.GATEWAY_HEADERS),
            "routes": self._passing(cluster),
        }
        return host | (asked if self.picked else {})

    def _passing(self, cluster: str) -> list[Json]:
        # Answers run as long as they need; stream_idle_timeout bounds silence.
        plain: Json = {
            "match": _match(self.paths),
            "route": {"cluster": cluster, "timeout": seconds(_DAY_S)},
        }
        if self.body_limit_bytes is not None:
            plain["request_body_buffer_limit"] = self.body_limit_bytes  # a connection's: 1 MiB
        passing = [plain]
        if self.retry_limit_bytes is not None:
            declared = {"headers": [{"name": "trailer", "present_match": True}]}
            retried = plain | {
                "route": plain["route"] | {"retry_policy": _retries()},
                "request_body_buffer_limit": self.body_limit_bytes or self.retry_limit_bytes,
            }
            passing = [plain | {"match": plain["match"] | declared}, retried]
        if tuple(self.paths) != EVERY_PATH:
            passing.append(_not_found(self.paths) | (on(False) if self.picked else {}))
        return passing


def _match(paths: Sequence[str]) -> Json:
    if tuple(paths) == EVERY_PATH:
        return {"prefix": "/"}
    for path in paths:
        if not re.fullmatch(r"(/[^/?#\s]+)+", path):
            raise ConfigError("", f"API path {path!r} is not like /v1/completions")
    words = "|".join(re.escape(path) for path in paths)
    return {"safe_regex": {"regex": f"(?:{words})(?:/.*)?"}}


def _not_found(paths: Sequence[str]) -> Json:
    """Said by Envoy itself."""
    return {
        "match": {"prefix": "/"},
        "direct_response": {"status": 404, "body": {"inline_string": not_found(paths)}},
        "response_headers_to_add": [
            {
                "header": {"key": "content-type", "value": "application/json"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        ],
    }


def _retries() -> Json:
    """Only what happens before the destination has taken the request: it refuses the connection,
    or says 503 by itself (an engine that is down behind its sidecar)."""
    return {
        "retry_on": "connect-failure,refused-stream,reset-before-request,retriable-status-codes",
        "retriable_status_codes": [503],
        "num_retries": 3,
        "retry_host_predicate": [
            {
                "name": "previous-hosts",
                "typed_config": {
                    "@type": TYPE + "retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": 5,
        "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.05s"},
    }
