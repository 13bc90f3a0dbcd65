"""The metrics of the state path: what is known of each endpoint, and how it came to be known."""

from .families import Family, Kind

_C, _G = Kind.COUNTER, Kind.GAUGE

STATE = (
    Family("epp_endpoint_decisions_total", _C, ("endpoint",), "Decisions for this member."),
    Family("epp_endpoint_ready", _G, ("endpoint",), "1 when the member takes requests."),
    Family(
        "epp_endpoint_rung",
        _G,
        ("endpoint",),
        "Step of the ladder its state allows: 0 precise, 1 predicted.",
    ),
    Family("epp_endpoint_blocks", _G, ("endpoint",), "Own blocks that its KV events showed."),
    Family(
        "epp_endpoint_trust",
        _G,
        ("endpoint",),
        "Share of predicted tokens that turned out to be cached, 0 to 1.",
    ),
    Family(
        "epp_endpoint_record_age_seconds",
        _G,
        ("endpoint",),
        "Age of the last record of its writer; absent before the first.",
    ),
    Family(
        "epp_endpoint_load_age_seconds",
        _G,
        ("endpoint",),
        "Age of its last load report; absent when there is none.",
    ),
    Family(
        "epp_endpoint_reserved_requests",
        _G,
        ("endpoint",),
        "Requests that we sent there and that have not ended.",
    ),
    Family(
        "epp_endpoint_reserved_prefill_tokens",
        _G,
        ("endpoint",),
        "Uncached prompt tokens of those whose first token was not seen.",
    ),
    Family(
        "epp_state_events_total",
        _C,
        ("event",),
        "What the state path refused or repaired, by a fixed set of words.",
    ),
    Family(
        "epp_endpoint_elsewhere_requests",
        _G,
        ("endpoint",),
        "Requests that other replicas sent there and that have not ended, by their word.",
    ),
    Family(
        "epp_endpoint_prefill_tokens_per_second",
        _G,
        ("endpoint",),
        "How fast it computes prompts, as decisions count it: observed there, else in the pool, "
        "else the usual.",
    ),
    Family(
        "epp_endpoint_decode_step_seconds",
        _G,
        ("endpoint",),
        "One step of an answer with nothing else to do there, likewise.",
    ),
    Family(
        "epp_tier_load_tokens_per_second",
        _G,
        ("tier",),
        "How fast engines load from a slower tier of their KV cache, by the operator's word, else "
        "as their answers show; a tier that is absent is taken for what is usual.",
    ),
    Family(
        "epp_alarm",
        _G,
        ("alarm",),
        "What is wrong though no request fails: endpoints that it is about, or 1 where it is the "
        "pool; no-events, no-blocks, keys-differ, other-scheme, all-stale, store-away. The log "
        "says once what to do.",
    ),
    Family("epp_index_blocks", _G, (), "Blocks of all endpoints that KV events showed."),
    Family(
        "epp_state_size",
        _G,
        ("what",),
        "What the state path keeps: reservations, decisions (whose end is awaited), "
        "predicted-blocks, foretold-blocks (some of those that other replicas predict), prompts "
        "(whose equals are counted for some seconds); of the engines' blocks index-keys, "
        "index-bytes, and retired-blocks (of lives that are over, to be swept).",
    ),
    Family(
        "epp_state_limited_total",
        _C,
        ("what",),
        "What had no room there: reservations (decisions that were not charged), predicted-blocks "
        "(that had to go while they still counted), index-blocks (over a limit), old-blocks "
        "(keys that went for it, or that nobody spoke of on a shared tier), late-blocks (of "
        "members that have left), tier-blocks (of more tiers than are told apart).",
    ),
    Family("epp_store_connected", _G, (), "1 where the last call to the store worked, else 0."),
    Family(
        "epp_log_lag_seconds",
        _G,
        (),
        "How long ago there was last nothing in the log that this replica had not read: 0 while "
        "it keeps up; absent while the log is out of reach.",
    ),
    Family(
        "epp_store_events_total",
        _C,
        ("event",),
        "On the way to the log. In Redis: errors, reconnects, restarts (another server, or an "
        "older state of it), holes (records were trimmed before we read them), odd-entries, "
        "snapshots (that were read). On the picker's own port, writers turned away: full, "
        "version, token, endpoint, no-member, too-large, damaged, slow, idle; and memory-refused "
        "(what a sidecar would know again after a restart had no room).",
    ),
    Family(
        "epp_store_size",
        _G,
        ("what",),
        "What the picker's own port holds: writers (sidecars that are connected), memory-bytes "
        "(of what they would know again after a restart; 256 MB at most).",
    ),
    Family("epp_replicas", _G, (), "Other replicas whose reservations are counted now."),
    Family(
        "epp_replica_events_total",
        _C,
        ("event",),
        "Words between replicas: said, heard, failed (the board was away), lapsed (what others had "
        "reserved was forgotten, for nobody told us for a whole lease), odd (sums that could not "
        "be read); between workers also lines, slow, damaged, full, connected, lost.",
    ),
    Family(
        "epp_lease_held",
        _G,
        ("lease",),
        "1 while this replica does what one does for all: plain-writer (writes for engines without "
        "a sidecar). Of all replicas at most one says 1; none does while nobody can be asked.",
    ),
    Family(
        "epp_lease_events_total",
        _C,
        ("lease", "event"),
        "Turns of this replica: taken, lost (also: it could not be renewed in time), failed "
        "(nobody could be asked whose turn it is).",
    ),
    Family(
        "epp_plain_members",
        _G,
        ("state",),
        "Engines without a sidecar whose KV events this replica follows for all: written (to the "
        "log), waiting (for the engine, the name of its model, or the store), left-out (beyond "
        "512).",
    ),
    Family(
        "epp_plain_events_total",
        _C,
        ("event",),
        "Of these engines: claims, records, snapshots, fenced (another writer took over), "
        "store-failures, failed (writers that were started again); of their KV events frames, "
        "gaps, restarts, replays (that were asked for), failed-replays, undecodable, other-ranks "
        "(batches of other data parallel ranks, left out).",
    ),
    Family("epp_scraped_endpoints", _G, (), "Endpoints whose own metrics pages are read now."),
    Family(
        "epp_scrapes_total",
        _C,
        ("result",),
        "Metrics pages read (pages) or not: refused, unreachable, timeout, status, too-large, "
        "broken, not-scraped (too many endpoints).",
    ),
    Family(
        "epp_model_pages_total",
        _C,
        ("result",),
        "Pages of models read (pages) or not: unreachable, timeout, status, too-large, broken; "
        "only where a plugin asks what endpoints serve.",
    ),
    Family(
        "epp_kube_synced",
        _G,
        ("kind",),
        "1 where all objects of the kind were read from Kubernetes at least once, or it is known "
        "not to be installed; only where Kubernetes is asked.",
    ),
    Family(
        "epp_kube_heard_age_seconds",
        _G,
        ("kind",),
        "Time since Kubernetes last said something about the kind; what it said then still holds. "
        "A quiet watch says something at least twice a minute.",
    ),
    Family(
        "epp_kube_events_total",
        _C,
        ("kind", "event"),
        "What became of lists and watches: lists, events, bookmarks, expired (listed again), stale "
        "(told before), odd (objects that cannot be used), limited (objects beyond 100,000), "
        "failed (no answer), refused (a status of error), absent (no such kind).",
    ),
    Family("epp_kube_pods", _G, (), "Pods that the pool selects, whether or not they are ready."),
)
