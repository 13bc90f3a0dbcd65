"""Interfaces that plugins implement. A plugin imports nothing of us but `epp.framework`.

The constructor is the parameter schema: keyword-only, with types and defaults; the YAML may spell a
name as `maxValue` or `max_value`. A value out of range is a `ValueError` that says what is allowed.
Parameters within a parameter are a class of their own, marked with `parameters`.

All calls are synchronous, on the request path, on one event loop: a plugin must not await, block
or do I/O. The clock comes with the request (`Request.at`), chance as an argument. Candidates come
in an arbitrary order that no result may depend on.
"""

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, dataclass_transform, runtime_checkable

from .draws import Chance
from .engines import EngineNames
from .types import Decision, Endpoint, EndpointId, Request

if TYPE_CHECKING:
    from .candidates import Candidates, Column, Mask

T = TypeVar("T")


def yaml_name(name: str) -> str:
    """A parameter as the reference's YAML spells it: `maxNumOfEndpoints`."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def parameters(group: type[T]) -> type[T]:
    """Make a class a group of parameters within a parameter: `algorithm: {type: …}`.

    It becomes a frozen dataclass whose fields follow the rules of a plugin's own parameters.
    """
    made = dataclass(frozen=True, slots=True, kw_only=True)(group)
    reading = {
        "extra": "forbid",
        "alias_generator": yaml_name,
        "validate_by_name": True,
        "validate_by_alias": True,
    }
    made.__pydantic_config__ = reading  # type: ignore[attr-defined]  # how pydantic is told
    return made


class Scorer(Protocol):
    """Rate every candidate between 0 (avoid) and 1 (prefer), in the order given.

    Every number is finite. An endpoint whose measure is unknown gets 0, so that it is never best by
    ignorance.
    """

    def score(
        self, request: Request, candidates: "Candidates", /
    ) -> "Sequence[float] | Column": ...


class Filter(Protocol):
    """Say of every candidate whether it stays, in the order given.

    A scorer that keeps as well is a filter too, at its place in the profile.
    """

    def keep(self, request: Request, candidates: "Candidates", /) -> "Sequence[bool] | Mask": ...


class Picker(Protocol):
    """Choose among rated candidates."""

    def pick(self, totals: Sequence[float], chance: Chance, /) -> Sequence[int]:
        """Rows of the chosen, best first, none twice; at least one. `totals` are finite."""


class Decider(Protocol):
    """Say whether a part of a request should run on an endpoint of its own."""

    def decide(self, request: Request, destination: Endpoint, /) -> str:
        """`split`, or why not: a short stable word, such as `below-threshold`."""


@runtime_checkable
class Comparer(Protocol):
    """What a decider may implement besides, to have the last word once both ends are known."""

    def compare(self, request: Request, destination: Endpoint, prefill: Endpoint, /) -> str:
        """`split`, or why not, of this pair. Asked only after `decide` has said `split`."""


class Detector(Protocol):
    """Say how full a pool is."""

    def saturation(self, candidates: "Candidates", /) -> float:
        """0 when nothing is to do, 1 when it is full, more beyond; finite. Nobody at all is full.

        Where it is full, requests with a priority below 0 are refused.
        """


class Admitter(Protocol):
    """Say whether a request is served at all."""

    def admits(self, request: Request, candidates: "Candidates", chance: Chance, /) -> bool:
        """False: it is refused with 429. `candidates`: who may answer it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Which profiles a request runs through. Names of profiles and of deciders."""

    destination: str
    """Chooses who answers; runs always, and first unless `prefill_first`."""
    prefill: str = ""
    """Chooses who computes the prompt in its place; empty: nobody."""
    prefill_decider: str = ""
    """Says whether it should; empty: always where `prefill` is set."""
    prefill_first: bool = False
    """Whether that is chosen before who answers; `prefill_decider` is empty then."""
    encode: str = ""
    """Chooses who computes images, audio and video in its place; empty: nobody."""
    encode_decider: str = ""
    """Likewise of `encode`."""
    primary_port: int = 0
    """Port of the destination's pod that takes requests for all its engines, which learns the
    chosen one from the header `x-data-parallel-host-port`; 0: each engine has a port of its own."""


class NoCourse(Exception):
    """The request asks for what is not there. Its sentence is for the client, as a bad request."""


class Handler(Protocol):
    """Chooses the course of a request."""

    def fault(self, profiles: Collection[str], deciders: Collection[str], /) -> str:
        """What is wrong with these names for this handler; empty: nothing. Asked at start."""

    def course(self, request: Request, profiles: Sequence[str], /) -> Course:
        """Only names that `fault` has seen. `profiles`: in the order of the configuration.

        Raises NoCourse.
        """


@runtime_checkable
class Watcher(Protocol):
    """What a plugin may implement besides, to learn what became of its advice.

    Its state must be bounded. Calls never raise to the request: a failure is counted and logged.
    """

    def chosen(self, request: Request, decision: Decision, /) -> None:
        """This is where the request goes."""

    def removed(self, endpoints: Collection[EndpointId], /) -> None:
        """These left the pool."""


@runtime_checkable
class Follower(Protocol):
    """What a plugin may implement besides, to learn that another endpoint served than was chosen.

    Bounded and harmless as a `Watcher`.
    """

    def served(self, request: Request, chosen: Endpoint, served: Endpoint, /) -> None:
        """The gateway went past `chosen`, the first of the decision, and `served` gave an answer
        that is no failure."""


@runtime_checkable
class Marker(Protocol):
    """What a plugin may implement besides, to set headers in the client's answer."""

    def marks(self, request: Request, served: Endpoint, /) -> Sequence[tuple[str, str]]:
        """Header names and values, printable ASCII. `served` is who truly answered."""


@runtime_checkable
class TokenSource(Protocol):
    """A producer of `tokens`."""

    @property
    def exact(self) -> bool:
        """Whether engines are asked for their own tokens; else they are estimated from bytes."""


@runtime_checkable
class SessionReader(Protocol):
    """A producer of `session-id`."""

    def session(self, headers: Mapping[str, str], /) -> str:
        """The client's session by a request's headers; empty: none."""


@runtime_checkable
class MediaKeeper(Protocol):
    """A producer of `encoder-cache`."""

    def held(self, media: Sequence[tuple[int, int]], /) -> Mapping[EndpointId, int]:
        """Bytes of these (`Request.media`) by the endpoints that hold some. Changes nothing: also
        asked for a request that nobody sends."""


@runtime_checkable
class MetricsSource(Protocol):
    """A producer of `engine-metrics`."""

    @property
    def interval_s(self) -> float | None:
        """Time between two readings of an engine's metrics page; None: as the flag says."""

    @property
    def path(self) -> str:
        """Of the pages; `/metrics` leaves each engine its own."""


@runtime_checkable
class MetricsReader(Protocol):
    """A producer of `engine-metrics` that tells which metrics say what."""

    def engine(self, labels: Mapping[str, str], /) -> EngineNames:
        """Names of an endpoint's engine, by its labels; equal names mean equal values."""


@runtime_checkable
class Discovery(Protocol):
    """A producer of `endpoints`: a file that lists them."""

    @property
    def path(self) -> str:
        """Absolute."""

    @property
    def watch_file(self) -> bool:
        """Whether its changes are followed; else it is read once."""


@runtime_checkable
class ModelsSource(Protocol):
    """A producer of `served-models`."""

    @property
    def models_path(self) -> str:
        """Path of an endpoint's page of models."""

    @property
    def models_interval_s(self) -> float:
        """Time between two readings of a page."""


@runtime_checkable
class ModelsReader(Protocol):
    """What a plugin that consumes `served-models` implements, to be told them."""

    def serves(self, endpoint: EndpointId, models: AbstractSet[str], /) -> None:
        """These names and no others, as the endpoint says now. A Watcher hears when it left."""


@runtime_checkable
class LimitKeeper(Protocol):
    """A producer of `predicted-latency`."""

    @property
    def slo_buffer_factor(self) -> float:
        """What a request's limit between two tokens is multiplied with before it is compared."""


PRODUCED = frozenset(
    {
        "endpoints",
        "tokens",
        "prefix-match",
        "inflight-load",
        "engine-metrics",
        "session-id",
        "encoder-cache",
        "predicted-latency",
        "served-models",
    }
)
"""What data a plugin may declare to consume, in a class attribute `consumes`: a frozenset. A
producer in the configuration feeds it, or the default one does, and `epp check` tells which."""
