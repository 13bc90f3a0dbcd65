"""Every metric of the picker by name: kind, labels, help. The code and docs/metrics.md follow it.

Names under `llm_d_epp_` are the reference's, so that its dashboards work; names under `epp_` are
ours. A number that we cannot know is absent, not 0: answers are measured where their bodies come
through the picker, else by the sidecars under the same names.
"""

from epp import answers

from .catalogue_state import STATE
from .families import Family, Kind

BASE = answers.LABELS
"""Labels of the reference's request metrics; see `labels` for their bounds. Priorities are those of
the objectives file, 0 for every other request."""

_SCHEDULER = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_PROCESSING = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_STREAM = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600)
_ERROR = (-0.9, -0.5, -0.25, -0.1, -0.02, 0.02, 0.1, 0.25, 0.5, 0.9, 1.0)
_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

ANSWERS = tuple(
    Family(one.name, _H if one.buckets else _G, one.labels, one.help, one.buckets)
    for one in answers.FAMILIES
)
"""Only of answers whose bodies come through the picker."""

FAMILIES = (
    Family("llm_d_epp_request_total", _C, BASE, "Requests that were routed."),
    Family(
        "llm_d_epp_request_error_total",
        _C,
        (*BASE, "error_code"),
        "Answers of engines with an error status, and requests refused by the picker itself.",
    ),
    Family(
        "llm_d_epp_scheduler_e2e_duration_seconds",
        _H,
        (),
        "Time from a request's arrival to its decision, tokenizing included.",
        _SCHEDULER,
    ),
    Family(
        "llm_d_epp_request_processing_duration_seconds",
        _H,
        (),
        "The same time, in the buckets of the reference's metric of this name.",
        _PROCESSING,
    ),
    Family(
        "llm_d_epp_scheduler_attempts_total",
        _C,
        ("status", "target_model_name", "endpoint_name", "namespace", "port"),
        "Decisions by the first endpoint named (success), and requests for which there was none "
        "(failure).",
    ),
    Family(
        "llm_d_epp_model_rewrite_decisions_total",
        _C,
        ("model_rewrite_name", "model_name", "target_model"),
        "Requests whose model's name a rule of the InferenceModelRewrite gave that is named, be it "
        "the client's own; or that the gateway's word changed (header).",
    ),
    Family("llm_d_epp_ready_endpoints", _G, ("name",), "Ready endpoints of the pool."),
    Family(
        "llm_d_epp_average_queue_size",
        _G,
        ("name",),
        "Mean of waiting requests over the ready endpoints that report them.",
    ),
    Family(
        "llm_d_epp_average_running_requests",
        _G,
        ("name",),
        "Mean of running requests over the ready endpoints that report them.",
    ),
    Family(
        "llm_d_epp_average_kv_cache_utilization",
        _G,
        ("name",),
        "Mean KV cache use, 0 to 1, over the ready endpoints that report it.",
    ),
    Family(
        "llm_d_epp_per_endpoint_queue_size",
        _G,
        ("name", "model_server_endpoint"),
        "Waiting requests as the endpoint reports them; absent when not known.",
    ),
    Family(
        "llm_d_epp_extproc_streams_inflight", _G, (), "Streams of the gateway that are open now."
    ),
    Family(
        "llm_d_epp_extproc_streams_total",
        _C,
        ("code",),
        "Streams that ended, by gRPC status: OK, or why we aborted.",
    ),
    Family(
        "llm_d_epp_extproc_stream_duration_seconds",
        _H,
        (),
        "How long streams were open; only with --enable-grpc-stream-metrics.",
        _STREAM,
    ),
    Family(
        "epp_unknown_pool_total",
        _C,
        (),
        "Requests for a pool that is not served, which got 404; only with --pools-file.",
    ),
    Family(
        "epp_certificate_changes_total",
        _C,
        ("result",),
        "Changes of the certificate's files, taken or refused; only with --enable-cert-reload.",
    ),
    Family(
        "epp_config_changes_total",
        _C,
        ("result",),
        "Changes of the configuration file, taken or refused; only with --config-file.",
    ),
    Family(
        "epp_config_current",
        _G,
        (),
        "1 where what decides is what the configuration file says, 0 where its last change was "
        "refused and the one before it stays; only with --config-file.",
    ),
    Family(
        "epp_objectives_changes_total",
        _C,
        ("result",),
        "Changes of the objectives file, taken or refused; only with --objectives-file.",
    ),
    Family(
        "epp_objectives_current",
        _G,
        (),
        "1 where what is in force is what the objectives file says, 0 where its last change was "
        "refused and the one before it stays; only with --objectives-file.",
    ),
    Family(
        "llm_d_epp_disagg_decision_total",
        _C,
        ("plugin_name", "plugin_type", "model_name", "decision_type"),
        "Decisions by who computes the prompt and its media: decode-only (the destination), "
        "prefill-decode (another endpoint the prompt), encode-decode (others the media), "
        "encode-prefill-decode (both).",
    ),
    Family("llm_d_epp_info", _G, ("version",), "Always 1; the version is the label."),
    Family(
        "epp_decisions_total",
        _C,
        ("rung", "why"),
        "Decisions by the step of the ladder they stood on (precise, predicted, load_only, "
        "any_ready) and why no higher: ok, unscored (no prompt to score), late, failed, mode.",
    ),
    Family(
        "epp_split_decisions_total",
        _C,
        ("reason",),
        "Decisions by why the prompt is computed elsewhere (split) or not: below-threshold, "
        "cached, no-prefill-pods, no-sidecar, not-splittable, tokens-estimated, load-only, mode, "
        "never, failed, or another word of a decider.",
    ),
    Family(
        "epp_encode_decisions_total",
        _C,
        ("reason",),
        "Decisions by why images, audio and video are computed elsewhere (split) or not: "
        "no-media, no-encode-pods, no-sidecar, mode, failed, or another word of a decider; only "
        "with an encode decider.",
    ),
    Family("epp_refusals_total", _C, ("reason",), "Requests answered by the picker itself."),
    Family(
        "epp_step_failures_total",
        _C,
        ("step",),
        "Steps of a decision that raised; the decision went on one rung lower.",
    ),
    Family(
        "epp_plugin_failures_total",
        _C,
        ("plugin", "why"),
        "Votes that plugins lost, by the name in the configuration: raised, slow (20 ms of CPU or "
        "0.2 s), wrong-shape, not-finite, no-word; and out-of-range, which is clamped and counts.",
    ),
    Family(
        "epp_ignored_headers_total",
        _C,
        ("header",),
        "Headers of the gateway whose values cannot be used: model-rewrite, objective, "
        "fairness-id, slo-ttft, slo-tpot, timeout.",
    ),
    Family(
        "epp_gateway_retries_total",
        _C,
        (),
        "Requests that the gateway sent once more in a stream of their own: their time runs on, "
        "and the load of the attempt before is given back.",
    ),
    Family(
        "epp_unanswered_requests",
        _G,
        (),
        "Requests that are remembered because the gateway may send them once more.",
    ),
    Family(
        "epp_unanswered_forgotten_total",
        _C,
        (),
        "Of these, those that had to go for others: sent once more, each is a new request.",
    ),
    Family(
        "epp_served_elsewhere_total",
        _C,
        (),
        "Answers that the gateway took from another endpoint than the first one named.",
    ),
    Family(
        "epp_shadow_answers_total",
        _C,
        ("outcome",),
        "Answers in mode shadow, by whether the gateway's own balancing came to the endpoint that "
        "the picker had chosen: agreed, differed, unknown (the gateway does not say who served).",
    ),
    Family(
        "epp_predicted_cached_tokens_total",
        _C,
        (),
        "Prompt tokens that decisions expected to be cached, of requests whose engine told.",
    ),
    Family(
        "epp_actual_cached_tokens_total",
        _C,
        (),
        "Prompt tokens that the engines found cached, of the same requests.",
    ),
    Family(
        "epp_cached_tokens_error_ratio",
        _H,
        (),
        "Expected less found tokens of each of these requests, by the larger of the two: above 0 "
        "the engine had less than expected, below 0 more, 0 for as many or none of both.",
        _ERROR,
    ),
    Family("epp_mode", _G, ("mode",), "1 for the mode in force, 0 for the others."),
    Family(
        "epp_stream_events_total",
        _C,
        ("event",),
        "What became of the gateway's streams: started, routed, late (nobody waited any more), "
        "backstop (a decision broke the hard deadline), fault (our own exceptions).",
    ),
    Family(
        "epp_token_lookups_total",
        _C,
        ("how",),
        "Prompts by where their tokens came from, or why they were estimated.",
    ),
    Family("epp_token_calls_inflight", _G, (), "Questions to engines' tokenizers under way."),
    Family("epp_token_cache_bytes", _G, (), "Memory of cached block keys."),
    Family(
        "epp_token_prefix_cache_bytes",
        _G,
        (),
        "Memory of what is known of beginnings of prompts whose tokens are made here.",
    ),
    Family(
        "epp_token_text_bytes_total",
        _C,
        ("text",),
        "Text of prompts whose tokens were made here: new, or known as another's beginning.",
    ),
    Family(
        "epp_token_blocks_missed_total",
        _C,
        (),
        "Prompts with exact tokens none of whose first blocks showed up where they went.",
    ),
    Family(
        "epp_token_models_stepped_down",
        _G,
        ("to",),
        "Models whose tokens were not their engines', by the way that is taken now: engine, "
        "estimate.",
    ),
    Family("epp_offload_pending", _G, (), "Long computations that wait or run off the loop."),
    Family(
        "epp_offload_refused_total",
        _C,
        (),
        "Long computations refused because too many waited; the decision did without.",
    ),
    Family(
        "epp_spans_total",
        _C,
        ("outcome",),
        "Spans that the collector of traces took (sent), and those that found no room or did not "
        "arrive there (lost); only with --trace-endpoint.",
    ),
    Family("epp_spans_waiting", _G, (), "Spans that wait to be sent; 2048 at most."),
    *STATE,
    *ANSWERS,
)

BY_NAME = {family.name: family for family in FAMILIES}


HOST = (
    Family("epp_workers", _G, (), "Workers that serve; only with --workers."),
    Family(
        "epp_worker_restarts_total",
        _C,
        (),
        "Workers that ended and were started again; only with --workers.",
    ),
)
"""Of the host of several workers; all others have the label `worker` there."""


def page() -> str:
    """The text of docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Exposed on the metrics port (9090, `/metrics`). Generated from"
        " `epp/observe/catalogue.py`; a test keeps both equal.",
        "",
        "Values of `model_name`, `target_model_name` and `fairness_id` come from outside. At most"
        " 1,000 of each are told apart, and 1,000 combinations of them (200 in the histograms of"
        " answers); later ones are `other`, as is what is longer than 128 characters. The last"
        " metrics, of answers' times and costs, have series only where the gateway shows the picker"
        " the answers' bodies; elsewhere the sidecars measure under the same names.",
        "",
        "| name | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for family in (*FAMILIES, *HOST):
        labels = ", ".join(f"`{label}`" for label in family.labels) or "-"
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |")
    return "\n".join(lines) + "\n"
