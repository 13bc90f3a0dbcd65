"""Metrics of handoffs and of what may not pass. No label carries anything that a client chose."""

from sidecar.declared import Declared

PHASES = ("prefilling", "decoding", "streaming", "ending")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class HandoffMetrics:
    """Part of one sidecar's metrics."""

    def __init__(self, declared: Declared) -> None:
        self.handoffs = declared.counts(
            "handoff", "Requests that a picker wanted split. outcome is what the client got: "
            "answered, passed (an engine's error), refused, cut, client-gone; or whole: never "
            "tried. reason is split, or why the decode engine was alone, or prefill when no decode "
            "leg was sent.", "outcome", "reason",
        )  # fmt: skip
        self.running = declared.gauge(
            "handoffs", "Handoffs at present, by what they wait for: prefilling, decoding (no byte "
            "has come), streaming, ending (the prefill leg beside).", "phase",
        )  # fmt: skip
        self.age = declared.distributions(
            "handoff_age_seconds", "From a prefill's answer to the sending of its parameters: what "
            "is compared with the lease.", _SECONDS,
        ).of(())  # fmt: skip
        self.gap = declared.distributions(
            "handoff_gap_seconds", "From a prefill's answer to the first byte of its decode leg: "
            "until then the KV was pulled.", _SECONDS,
        ).of(())  # fmt: skip
        self.handed_off = declared.counts(
            "handed_off", "Prefills whose engine keeps blocks to be pulled."
        ).of()
        self.pulled = declared.counts(
            "pulled", "Decode legs with such blocks that gave a first byte. The difference is in "
            "handoff_stranded, or failed as handoff says.",
        ).of()  # fmt: skip
        self.prefill_leg = declared.distributions(
            "prefill_leg_seconds", "Prefill legs that were answered, from sending to the answer's "
            "end; errors, too.", _SECONDS,
        ).of(())  # fmt: skip
        self.decode_leg = declared.distributions(
            "decode_leg_seconds", "Decode legs that gave a first byte, from sending to that. kv is "
            "pulled, or own where the local engine computed the prompt.", _SECONDS, "kv",
        )  # fmt: skip
        self.legs = declared.counts(
            "legs", "Legs that ended. leg is prefill or decode; outcome is answered, or how it "
            "failed: unreachable, lost, garbled, status (400 or above), cancelled, error-event, "
            "late (the lease was nearly over), cold (asked first, and nothing was cached).",
            "leg", "outcome",
        )  # fmt: skip
        self.retries = declared.counter(
            "leg_retries", "Legs that were sent because one before had failed, by how it had.",
            "leg", "after",
        )  # fmt: skip
        self.stranded = declared.counter(
            "handoff_stranded", "Prefills whose blocks nobody pulls, so that their lease must run "
            "out: lease-over, decode-unreachable, decode-rejected, unpaired (the legs cannot "
            "meet), misaddressed (see there).", "reason",
        )  # fmt: skip
        self.expired = declared.counter(
            "handoff_expired", "Parameters that were too old to be sent: the lease was nearly over."
        )
        self.completed_after_disconnect = declared.counter(
            "handoff_completed_after_disconnect", "Decode legs that pulled for a client that had "
            "left, so that the prefill engine's blocks were freed.",
        )  # fmt: skip
        self.copies = declared.counter(
            "handoff_copies", "Prefills of unknown fate after which another one was sent."
        )
        self.misaddressed = declared.counter(
            "handoff_misaddressed", "Parameters that name loopback or no address as the prefill "
            "engine's (VLLM_NIXL_SIDE_CHANNEL_HOST). From another machine they are not used: a "
            "decode engine would look for the blocks at home.",
        )  # fmt: skip
        self.expired_clients = declared.counter(
            "handoff_deadline", "Handoffs whose client's gateway gave the request up before its "
            "answer had ended, as its x-envoy-expected-rq-timeout-ms had said.",
        )  # fmt: skip
        self.breakers_open = declared.gauge(
            "prefill_breakers_open", "Prefill pods that are left out: they failed again and again."
        )
        self.breakers_opened = declared.gauge(
            "prefill_breakers_opened", "How often a prefill pod was left out, since the start."
        )
        self.breaker_hosts = declared.gauge(
            "prefill_breaker_hosts", "Prefill pods whose failures are remembered; 1024 at most."
        )
        self.warmed = declared.counter(
            "pairs_warmed", "Attempts to let this engine and a prefill pod's shake hands before "
            "the first prompt (--warm-pairs), by outcome: met, or why not: unreachable, status, "
            "no-params, misaddressed, pull-status, or a difference as in targets refused.",
            "outcome",
        )  # fmt: skip
        self.pairs_warm = declared.gauge(
            "pairs_warm", "Prefill pods whose engines this one has met so, as many as members."
        )
        self.pairs_known = declared.gauge(
            "pairs_known", "Prefill pods whose engines were compared with this one; 1024 at most."
        )
        self.targets_refused = declared.counter(
            "prefill_targets_refused", "Prefill targets that were left out: target-foreign (no "
            "member), target-self, members-unknown (no endpoints file), malformed, breaker-open "
            "(failed again and again), pair-version, pair-model, pair-block-size, pair-dtype, "
            "pair-layout (its engine differs from this one); and lists that no picker of the pool "
            "sealed: seal-missing, seal-malformed, seal-key-unknown, seal-forged, "
            "seal-expired.", "reason",
        )  # fmt: skip
        self.legs_served = declared.counter(
            "legs_served", "Prefill legs of other sidecars that were taken."
        )
        self.legs_refused = declared.counter(
            "legs_refused", "Requests that claimed to be a prefill leg and were refused.", "reason",
        )  # fmt: skip
        self.stripped = declared.counter(
            "params_stripped", "Messages out of which kv_transfer_params were taken: request (a "
            "client sent them), answer (an engine showed them, null counts as well).", "direction",
        )  # fmt: skip
