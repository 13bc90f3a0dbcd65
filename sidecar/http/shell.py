"""What a relay tells of itself, whoever moves its bytes."""

from sidecar.proxy import Listen

from .service import Service


class Shell:
    """Base of the relays: the numbers of the service behind them."""

    def __init__(self, listen: Listen, service: Service) -> None:
        self._listen = listen
        self._service = service
        self.refused = 0
        """Connections that found no room."""
        self.leg_port: int | None = None
        """Where legs are taken besides; known once it runs."""

    @property
    def in_flight(self) -> int:
        return self._service.in_flight

    @property
    def held_bytes(self) -> int:
        return self._service.store.held_bytes

    @property
    def repeats(self) -> int:
        return self._service.upstream.repeats
