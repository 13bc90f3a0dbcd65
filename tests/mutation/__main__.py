"""`make test-mutation`: how many small changes of the parts that matter most their tests notice.

Prints each change that they do not. Ends with 1 when fewer than `ENOUGH` of a part's are noticed.
MUTATION_ONLY=answer tries one module alone, MUTATION_PART=scorers one part.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.guards.proof import Tree

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Part:
    """Modules of one package, and the tests that should notice their changes, cheap ones first:
    most changes are noticed by the first of them."""

    package: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]


PARTS = {
    "stream": Part(
        "epp.request",
        ("stream", "answer", "modes", "intake", "replies", "subset"),
        (
            "tests/unit/test_stream_*.py",
            "tests/unit/test_replies.py",
            "tests/unit/test_subset.py",
            "tests/faults/test_stream_faults.py",
            "tests/property/test_stream_orders.py",
        ),
    ),
    "scorers": Part(
        "scorers",
        (
            "active_request",
            "context_length",
            "decode_load",
            "endpoint_attribute",
            "header_label_affinity",
            "kv_cache_utilization",
            "latency",
            "load_aware",
            "lora_affinity",
            "mm_embeddings_cache",
            "no_hit_lru",
            "prefix_cache",
            "queue",
            "running_requests",
            "session_affinity",
            "token_load",
            "topology_affinity",
        ),
        (
            "tests/unit/test_scorer_formulas*.py",
            "tests/unit/test_sessions.py",
            "tests/unit/test_latency_plugins.py",
            "tests/unit/test_media_cache.py",
            "tests/conformance/test_plugins_page.py",
        ),
    ),
    "filters": Part(
        "epp.plugins.filters",
        ("prefix_cache_affinity", "served_model", "slo_headroom_tier"),
        (
            "tests/unit/test_served_models.py",
            "tests/unit/test_latency_plugins.py",
            "tests/unit/test_plugin_filters.py",
            "tests/conformance/test_plugins_page.py",
        ),
    ),
    "framework": Part(
        "epp.framework",
        ("candidates", "sessions", "topology"),
        (
            "tests/unit/test_candidates.py",
            "tests/unit/test_sessions.py",
            "tests/unit/test_scorer_formulas*.py",
            "tests/unit/test_plugin_filters.py",
            "tests/faults/test_session_faults.py",
        ),
    ),
    "schedule": Part(
        "epp.request",
        ("schedule", "scores"),
        ("tests/unit/test_schedule*.py",),
    ),
    "choice": Part(
        "epp.request",
        ("choice", "ballot"),
        (
            "tests/unit/test_ballot*.py",
            "tests/unit/test_choice_details.py",
            "tests/unit/test_prefill_first.py",
            "tests/unit/test_encode_stage.py",
            "tests/unit/test_told_decisions.py",
        ),
    ),
    "split": Part(
        "epp.request",
        ("split", "filters"),
        (
            "tests/unit/test_split.py",
            "tests/unit/test_split_words.py",
            "tests/unit/test_prefill_first.py",
            "tests/unit/test_encode_stage.py",
            "tests/unit/test_attempts.py",
            "tests/faults/test_retry_faults.py",
            "tests/unit/test_told_decisions.py",
        ),
    ),
    "objectives": Part(
        "epp.request",
        ("objectives", "saturation"),
        ("tests/unit/test_objectives.py", "tests/unit/test_saturation.py"),
    ),
    "attempts": Part(
        "epp.request",
        ("attempts",),
        ("tests/unit/test_attempts.py", "tests/faults/test_retry_faults.py"),
    ),
    "detectors": Part(
        "epp.plugins.detectors",
        ("utilization", "concurrency"),
        ("tests/unit/test_saturation.py", "tests/conformance/test_plugins_page.py"),
    ),
    "admitters": Part(
        "epp.plugins.admitters",
        ("probabilistic", "latency_slo"),
        ("tests/unit/test_saturation.py", "tests/conformance/test_plugins_page.py"),
    ),
    "plan": Part(
        "epp.request.plan",
        ("resolve", "entries", "data", "feeds"),
        (
            "tests/unit/test_plan_feeds.py",
            "tests/unit/test_plan_rules.py",
            "tests/unit/test_plan_places.py",
            "tests/unit/test_sample_configs.py",
            "tests/unit/test_file_discovery.py",
            "tests/unit/test_served_models.py",
        ),
    ),
}
ENOUGH = 0.85
PARALLEL = 2


def main() -> int:
    if "--here" in sys.argv:
        return _here()
    # On a copy: the tests run for minutes, and nobody should have to keep still meanwhile.
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        tree = Tree(ROOT, Path(scratch) / "tree")
        env = os.environ | {"PYTHONPATH": str(tree.root)}
        command = [sys.executable, "-m", "tests.mutation", "--here"]
        return subprocess.run(command, cwd=tree.root, env=env, check=False).returncode


def _here() -> int:
    from tests.mutation.trial import prepare

    prepare()
    wanted = os.environ.get("MUTATION_PART", "")
    return max(_try(name, part) for name, part in PARTS.items() if wanted in {"", name})


def _try(name: str, part: Part) -> int:
    """1 when too few changes of the part are noticed, else 0."""
    from tests.mutation.mutants import mutants
    from tests.mutation.trial import trials, usual_s

    tests = [str(path) for pattern in part.tests for path in sorted(Path().glob(pattern))]
    chosen = [one for one in part.modules if os.environ.get("MUTATION_ONLY", one) == one]
    if not chosen:
        return 0
    usual = usual_s(tests)
    if usual is None:
        print(f"the tests of {name} fail without any change: nothing can be said")
        return 1
    folder = Path(part.package.replace(".", "/"))
    paths = {f"{part.package}.{one}": folder / f"{one}.py" for one in chosen}
    work = [
        (module, mutant, tests)
        for module, path in paths.items()
        for mutant in mutants(path.read_text(), str(path))
    ]
    print(f"{name}: {len(work)} changes; the tests take {usual:.1f} s", flush=True)
    begun = time.monotonic()
    all_of, killed = Counter[str](), Counter[str]()
    for trial in trials(work, parallel=PARALLEL, limit_s=20 + 5 * usual):
        all_of[trial.module] += 1
        killed[trial.module] += trial.killed
        if not trial.killed:
            print(f"SURVIVES {paths[trial.module]}:{trial.mutant}", flush=True)
    for module in paths:
        print(f"{module:32} {killed[module]:4} of {all_of[module]:4}")
    score = killed.total() / all_of.total()
    print(f"{name}: mutation score {100 * score:.1f} % in {time.monotonic() - begun:.0f} s")
    return int(score < ENOUGH)


if __name__ == "__main__":
    sys.exit(main())
