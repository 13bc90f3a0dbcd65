"""Requests of operators, who may be told where theirs went. Pure."""

from dataclasses import replace

from epp import protocol
from epp.config.token import is_token
from epp.framework import Decision

from .exchange import Arrival


class AdminToken:
    """Takes the token's header out of requests, so that nobody behind this can read or log it."""

    def __init__(self, token: str | None = None) -> None:
        """Without a token nobody is told anything; the header is taken out all the same."""
        self._token = token

    def taken(self, arrival: Arrival) -> tuple[Arrival, bool]:
        """The request without the header, and whether an operator sent it."""
        given = arrival.headers.get(protocol.ADMIN_TOKEN)
        if given is None:
            return arrival, False
        left = dict(arrival.headers)
        del left[protocol.ADMIN_TOKEN]
        shown = self._token is not None and is_token(given, self._token)
        return replace(arrival, headers=left), shown


def header(decision: Decision) -> tuple[str, str]:
    """What the answer tells an operator."""
    return (protocol.DECISION, f"{decision.request_id} {decision.chosen[0].address}")
