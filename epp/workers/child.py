"""One worker: a replica that says on a pipe where its pages are, once it serves."""

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from epp.app import Ports, run
from epp.config.serve import ServeSettings
from epp.stores import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a worker is told on its standard input, as JSON."""

    settings: str
    number: int
    socket: str

    @classmethod
    def of(cls, settings: ServeSettings, place: Place) -> "Order":
        return cls(
            settings=settings.model_dump_json(exclude_defaults=True),
            number=place.number,
            socket=str(place.socket),
        )

    def text(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def read(cls, text: str) -> tuple[ServeSettings, Place]:
        order = cls(**json.loads(text))
        settings = ServeSettings.model_validate_json(order.settings)
        return settings, Place(number=order.number, socket=Path(order.socket))


def main() -> None:
    """Serve until SIGTERM, or until the host is gone: what we were told by stays open as long as it
    lives. The only argument is the file descriptor of the pipe."""
    settings, place = Order.read(sys.stdin.readline())
    threading.Thread(target=_outlive_nobody, daemon=True).start()
    with os.fdopen(int(sys.argv[1]), "w") as pipe:

        def started(ports: Ports) -> None:
            pipe.write(json.dumps({"metrics": ports.metrics, "admin": ports.admin}) + "\n")
            pipe.flush()

        run(settings, started=started, place=place)


def _outlive_nobody() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
