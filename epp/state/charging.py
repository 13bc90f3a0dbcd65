"""What one decision puts on the endpoints that were chosen, and how it comes off again.

A decision charges load to the load book and blocks to the predictions, under its own id. Where the
gateway had another endpoint serve it, all of that goes there. Whatever order the signs of its
progress come in, and however often, each part comes off exactly once.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from epp.framework import Endpoint, EndpointId, Incarnation, Request, Rung

from .charges import Charge, Charges, Early, Trusts, Unconfirmed, leg_of, medium_of
from .endpoints import Endpoints
from .load import LoadBook
from .loading import Loading, shown_by
from .prefix.predicted import PredictedIndex
from .records import Done, Outcome

DoneHook = Callable[[Done, Endpoint, int], None]
"""Called with a finished request, the endpoint that served it, and the predicted tokens."""
FirstHook = Callable[[str, EndpointId, float], None]
"""Called with a request whose first token came, the endpoint that serves it, and when."""


@dataclass(slots=True, kw_only=True, eq=False)
class Charging:
    """Belongs to one PoolState, which owns the parts; see there."""

    endpoints: Endpoints
    predicted: PredictedIndex
    load: LoadBook
    charges: Charges
    unconfirmed: Unconfirmed
    trust: Trusts
    loading: Loading
    rung: Callable[[EndpointId, float], Rung]
    own_block_tokens: int
    counts: Counter[str]
    on_done: list[DoneHook]
    encoders: dict[str, int] = field(default_factory=dict[str, int])
    """How many endpoints encode media of a request; those without any are left out."""
    on_first: list[FirstHook]

    # Told by our own requests

    def charge(
        self,
        endpoint: Endpoint,
        request: Request,
        now: float,
        prefill: Endpoint | None,
        encode: Sequence[Endpoint] = (),
    ) -> None:
        """Charge all endpoints of a split request, or the one of a whole request.

        The prompt is `prefill`'s load until it is computed (fault B15). Only then its blocks come
        to `endpoint`: an equal prompt that arrives before finds nothing there. Media are the load
        of those who encode them as long, in equal shares.
        """
        if encode:
            self._encode(encode[: max(1, len(request.media))], request, now)
        lacks = int(endpoint.match.missing(request.prompt_tokens))
        room = lacks + request.output_tokens
        if prefill is None:
            if self._put(endpoint, request, now, prefill_tokens=lacks, decode_tokens=room):
                self.charges.add(request.id, endpoint)
                if endpoint.match.loaded:  # its time is that of loading, see `_learn_loading`
                    self.load.teaches_nothing(request.id)
            return
        answer = replace(request, keys=())
        if not self._put(endpoint, answer, now, prefill_tokens=0, decode_tokens=room):
            return
        self.charges.add(request.id, endpoint, prefill, self._predictable(request))
        leg = replace(request, id=leg_of(request.id))
        elsewhere = int(prefill.match.missing(request.prompt_tokens))
        self._put(prefill, leg, now, prefill_tokens=elsewhere, decode_tokens=0)

    def move(self, request: Request, to: Endpoint | None, now: float) -> None:
        """`to` serves the request in place of the endpoint that was chosen; None: nobody of ours.

        What the pool knows of `to` counts there: it computes what it lacks of the prompt itself,
        unless another endpoint computes it for either of them.
        """
        held = self.charges.get(request.id)
        if held is None or (to is not None and held.endpoint.id == to.id):
            return
        member = None if to is None else self.endpoints.member(to.id)
        inc = None if member is None else self.endpoints.incarnation(member.id)
        if to is None or member is None or inc is None:
            self.counts["charge-no-member"] += 1
            self.load.finish(request.id, now, measured=False)
            self._end_leg(request.id, now, computed=False)
            self.predicted.drop(request.id)
            self.charges.drop(request.id)
            return
        if held.prefill is not None and not to.has_sidecar:  # nobody there asks for a prefill
            self._end_leg(request.id, now, computed=False)
            held.prefill = None
        lacks = int(to.match.missing(request.prompt_tokens))
        if not self.load.move(
            inc,
            request.id,
            prefill_tokens=0 if held.prefill is not None else lacks,
            decode_tokens=lacks + request.output_tokens,
            has_writer=member.has_sidecar,
        ):
            return
        held.endpoint = to
        self.predicted.drop(request.id)
        if held.prefill is None:
            self._predict(inc, self._predictable(request), request.id, to, now)
        self._hear_early(request.id, held, now)

    def response_headers(
        self, request_id: str, status: int, now: float, *, streaming: bool
    ) -> None:
        """The answer began. That of a split request begins when its prompt has been computed. The
        first byte of one that does not stream comes at its end, which is no time of a prefill."""
        self.load.response_headers(request_id, now)
        if not streaming:
            self.load.teaches_nothing(request_id)
        self._end_leg(request_id, now, computed=status < 400)
        if status >= 400:  # the prompt was not computed
            self.predicted.drop(request_id)

    def first_byte(self, request_id: str, now: float) -> None:
        """The first byte of the answer's body came by: its prefill is over."""
        self.load.first_token(request_id, now)
        self._end_leg(request_id, now, computed=True)
        held = self.charges.get(request_id)
        if held is not None and not held.first_seen:
            held.first_seen = True
            self._await_events(held.endpoint.id, request_id, now)
            for hook in self.on_first:
                hook(request_id, held.endpoint.id, now)

    def finished(self, request_id: str, now: float) -> None:
        """The end of the answer was seen on the stream."""
        self.load.finish(request_id, now)
        self._end_leg(request_id, now, computed=True)
        self._end_charge(request_id, now)

    def reset(self, request_id: str, *, answered: bool, now: float) -> None:
        """The stream ended otherwise. `answered`: after response headers, the answer may run on."""
        self._end_leg(request_id, now, computed=answered)
        if answered:
            self.load.leave(request_id, now)
            return
        self.load.finish(request_id, now, measured=False)
        self.predicted.drop(request_id)
        self._end_charge(request_id, now)

    # Told by writers, who have no say in each other's requests

    def first_token(self, request_id: str, endpoint: EndpointId, now: float) -> None:
        """A sidecar passed on the first byte of an answer."""
        held = self.charges.get(request_id)
        if held is None:
            return
        if held.endpoint.id == endpoint:
            self.first_byte(request_id, now)
        else:
            held.early = Early(endpoint)

    def done(self, done: Done, endpoint: EndpointId, now: float) -> None:
        """A sidecar says how a request went."""
        held = self.charges.get(done.decision_id)
        if held is None:
            self.counts["done-unknown"] += 1
        elif held.endpoint.id != endpoint:
            self.counts["done-elsewhere"] += 1
            held.early = Early(endpoint, done)
        else:
            self._take_done(done, held, now)

    def confirm(self, endpoint: EndpointId, now: float) -> None:
        """The engine's events say what it holds; predictions that waited for them are over."""
        for name in self.unconfirmed.take(endpoint):
            self.predicted.confirm(name, now, 0.0)

    def tick(self, now: float) -> None:
        """Let go of what is over."""
        for request_id in self.load.tick(now):
            self._end_leg(request_id, now, computed=False)
            self._end_charge(request_id, now)
        self.charges.prune(now)
        for name in self.unconfirmed.due(now):
            self.predicted.confirm(name, now, 0.0)

    # Mechanics

    def _put(
        self,
        endpoint: Endpoint,
        request: Request,
        now: float,
        *,
        prefill_tokens: int,
        decode_tokens: int,
    ) -> bool:
        """Reserve and predict under the request's id. False where that is refused, and counted."""
        member, inc = self.endpoints.member(endpoint.id), self.endpoints.incarnation(endpoint.id)
        if member is None or inc is None:
            self.counts["charge-no-member"] += 1
            return False
        charged = self.load.reserve(
            inc,
            request.id,
            prefill_tokens=prefill_tokens,
            decode_tokens=decode_tokens,
            has_writer=member.has_sidecar,
            now=now,
        )
        if not charged:
            self.counts["charge-refused"] += 1
        else:
            self._predict(inc, self._predictable(request), request.id, endpoint, now)
        return charged

    def _predict(
        self, inc: Incarnation, keys: tuple[int, ...], name: str, endpoint: Endpoint, now: float
    ) -> None:
        """`endpoint`, in its life `inc`, will hold `keys`, as far as its cache has room."""
        load = endpoint.load
        room = load.total_blocks
        if room is not None:
            room = room * load.block_tokens // self.own_block_tokens
        self.predicted.insert(inc, keys, name, now, room)

    def _encode(self, encoders: Sequence[Endpoint], request: Request, now: float) -> None:
        share = -(-request.media_tokens // len(encoders))
        for turn, encoder in enumerate(encoders):
            part = replace(request, id=medium_of(request.id, turn), keys=())
            self._put(encoder, part, now, prefill_tokens=share, decode_tokens=0)
        self.encoders[request.id] = len(encoders)

    def _predictable(self, request: Request) -> tuple[int, ...]:
        return request.keys if request.block_size == self.own_block_tokens else ()

    def _hear_early(self, request_id: str, held: Charge, now: float) -> None:
        """What the endpoint that serves said before we knew that it does."""
        early, held.early = held.early, None
        if early is None or early.endpoint != held.endpoint.id:
            return
        if early.done is not None:
            self._take_done(early.done, held, now)
        else:
            self.first_byte(request_id, now)

    def _end_leg(self, request_id: str, now: float, *, computed: bool) -> None:
        """The prompt of a split request is computed, or never will be. The first word counts."""
        for turn in range(self.encoders.pop(request_id, 0)):
            self.load.finish(medium_of(request_id, turn), now, measured=False)
        leg = leg_of(request_id)
        if not self.load.finish(leg, now, measured=False):
            return
        held = self.charges.get(request_id)
        if not computed or held is None or held.prefill is None:
            self.predicted.drop(leg)
            return
        self._await_events(held.prefill.id, leg, now)
        inc = self.endpoints.incarnation(held.endpoint.id)
        if inc is not None:
            self._predict(inc, self.charges.take_keys(held), request_id, held.endpoint, now)

    def _await_events(self, endpoint: EndpointId, name: str, now: float) -> None:
        """A predicted prompt is computed: the engine's events, where seen, will soon replace it."""
        if self.rung(endpoint, now) is Rung.PRECISE:
            crowded_out = self.unconfirmed.add(endpoint, name, now)
            if crowded_out is not None:
                self.predicted.confirm(crowded_out, now, 0.0)

    def _take_done(self, done: Done, held: Charge, now: float) -> None:
        answered = done.outcome is Outcome.OK and done.status < 400
        self.load.finish(done.decision_id, now, measured=answered)
        computed = answered or (done.outcome is Outcome.CLIENT_GONE and held.first_seen)
        self._end_leg(done.decision_id, now, computed=computed)
        if not computed:
            self.predicted.drop(done.decision_id)
        if answered and done.cached_tokens is not None and held.prefill is None:
            self.trust.observe(held.endpoint.id, held.endpoint.match, done.cached_tokens)
        if answered:
            self._learn_steps(done, held.endpoint, now)
            if held.prefill is None:
                self._learn_loading(done, held.endpoint, now)
        self.charges.drop(done.decision_id)
        for hook in self.on_done:
            hook(done, held.endpoint, held.predicted_tokens)

    def _learn_steps(self, done: Done, endpoint: Endpoint, now: float) -> None:
        """How fast the answer was written."""
        tokens, took, first = done.completion_tokens, done.duration_s, done.ttft_s
        if tokens is not None and took is not None and first is not None:
            writing_s = took - first
            self.load.stepped(endpoint.incarnation, tokens - 1, writing_s, writing_s, now)

    def _learn_loading(self, done: Done, endpoint: Endpoint, now: float) -> None:
        """How fast the engine loaded what the decision counted on a slower tier."""
        seen, inc = shown_by(done, endpoint), endpoint.incarnation
        if seen is not None and self.endpoints.incarnation(endpoint.id) == inc:
            self.loading.observe(inc, seen, endpoint.speeds.prefill_tokens_per_s, now)

    def _end_charge(self, request_id: str, now: float) -> None:
        held = self.charges.get(request_id)
        if held is not None:
            member = self.endpoints.member(held.endpoint.id)
            self.charges.end(request_id, now, linger=member is not None and member.has_sidecar)
