"""One tree of errors. Each has a stable reason, an HTTP status and a sentence that says what to do.

Policy refusals (`Refusal`) become an answer to the client. Everything else is our own fault and
becomes a gRPC status, so that the gateway's failure mode decides (fault A18).
"""

import os
from typing import ClassVar


class EppError(Exception):
    """Root of the tree. `reason` is stable: it is a metric label and part of the answer."""

    reason: ClassVar[str] = "internal"
    status: ClassVar[int] = 500


class ConfigError(EppError):
    """A configuration that cannot be used: `where` is `file:line:column`."""

    reason = "config"

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where} {what}" if where else what)
        self.where = where
        self.what = what


class PluginError(ConfigError):
    """A plugin named in the configuration cannot be built."""

    reason = "plugin"

    def __init__(self, where: str, what: str, path: tuple[int | str, ...] = ()) -> None:
        """`path` leads to the parameter at fault, within the plugin's parameters."""
        super().__init__(where, what)
        self.path = path


class CannotListen(EppError):
    """A port that cannot be had. Says which one, why, and the flag that names another."""

    reason = "port"

    def __init__(self, what: str, at: str, error: Exception, flag: str) -> None:
        """`at` is `host:port`. `error`: from the system, or gRPC's, which does not say why."""
        code = error.errno if isinstance(error, OSError) else None
        why = os.strerror(code).lower() if code else "it is taken, or that is no address of ours"
        super().__init__(f"cannot listen for {what} on {at}: {why}; {flag} names another port")


class StoreError(EppError):
    """The shared log cannot be reached or refused a write."""

    reason = "store"


class Fenced(StoreError):
    """Another writer or a later life of the engine took over: stop writing."""

    reason = "fenced"


class LocalError(EppError):
    """`epp local` cannot go on; the message says what to do."""

    reason = "local"


class Refusal(EppError):
    """A request that we answer ourselves. The message goes to the client: it never quotes input.

    `code` comes before the message, as in the reference picker's answers, so that clients which
    look for its words find them.
    """

    reason = "refused"
    code: ClassVar[str] = "Internal"
    kind: ClassVar[str] = "invalid_request_error"
    """`error.type` of the OpenAI-shaped body."""


class BadRequest(Refusal):
    reason = "bad-request"
    status = 400
    code = "BadRequest"


class ModelNotFound(Refusal):
    """The pool is known to serve other models only. `reason` is the word that clients test for."""

    reason = "model_not_found"
    status = 404
    code = "NotFound"


class PoolNotFound(Refusal):
    """One picker serves several pools, and this request is for none of them."""

    reason = "pool_not_found"
    status = 404
    code = "NotFound"


class TooSlow(Refusal):
    """The client stopped sending its body. The reference knows no such code, nor the next two."""

    reason = "request-timeout"
    status = 408
    code = "RequestTimeout"


class TooLarge(Refusal):
    reason = "too-large"
    status = 413
    code = "PayloadTooLarge"


class UnsupportedMedia(Refusal):
    """A body in an encoding that we do not read, for an API that has to be read."""

    reason = "unsupported-media"
    status = 415
    code = "UnsupportedMediaType"


class Saturated(Refusal):
    """There is too much to do just now; the same request may succeed a little later."""

    reason = "rejected-saturated"
    status = 429
    code = "ResourceExhausted"
    kind = "rate_limit_error"


class NoEndpoint(Refusal):
    """Nobody is ready to serve (an empty pool, nobody ready, or an empty subset)."""

    reason = "rejected-no-endpoints"
    status = 503
    code = "ServiceUnavailable"
    kind = "service_unavailable"
