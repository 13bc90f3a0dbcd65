"""What one process serves: one pool, or several behind one set of ports.

Several pools share the process and its ports, nothing else: each has its members, index, load,
configuration and log of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

from aiohttp import web

from epp.admin_port import admin_port, page_token
from epp.config.pools_file import parse_pools
from epp.config.serve import ServeSettings
from epp.config.text_file import read_file
from epp.observe import admin
from epp.observe.process import ProcessMetrics
from epp.picker import Picker, clock
from epp.request.director import PickDirector
from epp.request.exchange import Director
from epp.request.pools import Pools
from epp.stores import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The pools of one process, and what is measured of the process itself."""

    settings: ServeSettings
    """Of the process: its ports, its certificate, how it ends."""
    pickers: tuple[Picker, ...]
    hosts: Mapping[str, str]
    """The pool behind each host; empty where there is only one pool."""
    metrics: ProcessMetrics = field(
        default_factory=lambda: ProcessMetrics(version=version("gie-epp"))
    )

    @property
    def several(self) -> bool:
        """Whether a request has to be asked which pool it is for."""
        return self.settings.pools_file is not None

    def director(self, directors: Sequence[PickDirector]) -> Director:
        """Who decides at the gateways' port; `directors` in the order of the pools."""
        if not self.several:
            return directors[0]
        named = {
            picker.settings.pool_name: director
            for picker, director in zip(self.pickers, directors, strict=True)
        }
        self.metrics.pools = pools = Pools(named, self.hosts)
        return pools

    def numbers(self) -> web.Application:
        """The pages of the metrics port."""
        pools = {picker.settings.pool_name: picker.metrics for picker in self.pickers}
        label = "pool" if self.several else None
        return admin.metrics_app(self.metrics, pools, label=label, clock=clock)

    def pages(self, directors: Sequence[PickDirector]) -> web.Application:
        """The pages of the admin port: of several pools below `/pools/<name>`."""
        apps = [
            admin_port(picker, director, clock=clock)
            for picker, director in zip(self.pickers, directors, strict=True)
        ]
        if not self.several:
            return apps[0]
        names = [picker.settings.pool_name for picker in self.pickers]
        token = page_token(self.settings, self.pickers[0].admin_token)
        return admin.pools_app(dict(zip(names, apps, strict=True)), token=token)


def served(settings: ServeSettings, place: Place | None) -> Served:
    """`place`: as one of several workers. Raises ConfigError."""
    file = settings.pools_file
    if file is None:
        return Served(settings=settings, pickers=(Picker(settings, place),), hosts={})
    pools = parse_pools(read_file(file), str(file), settings)
    return Served(
        settings=settings,
        pickers=tuple(Picker(pool.settings) for pool in pools),
        hosts={host: pool.name for pool in pools for host in pool.hosts},
    )
