"""From rendered manifests to a routed request: what pods would run, as processes on loopback."""

import asyncio
import json
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from epp import protocol
from epp.sim.gateway.clusters import picker as picker_cluster
from epp.sim.gateway.envoy import EnvoySettings
from tests.manifests.loopback import HOST, Edit, Pool, served
from tests.manifests.rendered import named, rendered
from tests.manifests.requests import LONG, SPLIT, asked, split
from tests.timing import scaled


async def test_a_long_prompt_is_computed_on_the_prefill_pod_and_answered_by_the_other(
    tmp_path: Path,
) -> None:
    async with served(rendered("standalone"), tmp_path) as pool, aiohttp.ClientSession() as session:
        prompt, first = await split(pool, session)
        # What both engines hold is told by their sidecars, with the users and keys of the pool.
        await pool.until(partial(pool.picker.metric, "epp_index_blocks"), 40)
        again = await asked(session, pool.gateway.url, prompt)
        assert again["choices"][0]["text"] == first["choices"][0]["text"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 3000
        before = await pool.metric("decode", SPLIT)
        pool.pods.delete("prefill")  # marked: only its node may end it
        await pool.picker.until_metric("llm_d_epp_ready_endpoints", 1)
        await asked(session, pool.gateway.url, f"Another. {LONG}")
        assert await pool.metric("decode", SPLIT) == before


def _as_istio_would(picker: int, pods: list[str]) -> tuple[EnvoySettings, Edit]:
    """An Envoy without a picker, and the patches of the overlay applied to it as Istio does."""
    settings = EnvoySettings(
        listen_port=0, admin_port=0, ext_proc_port=picker, endpoints=pods, shape="none"
    )
    objects = rendered("istio-response-none")
    filters = [named(objects, "EnvoyFilter", "strip-routing-headers")]
    filters.append(named(objects, "EnvoyFilter", "picker"))
    patches = {
        one["applyTo"]: one["patch"] for each in filters for one in each["spec"]["configPatches"]
    }

    def edit(text: str) -> str:
        made = json.loads(text)
        (listener,) = made["static_resources"]["listeners"]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        del manager["early_header_mutation_extensions"]
        assert patches["NETWORK_FILTER"]["operation"] == "MERGE"
        manager |= patches["NETWORK_FILTER"]["value"]["typed_config"]
        assert patches["HTTP_FILTER"]["operation"] == "INSERT_BEFORE"
        chosen = patches["HTTP_FILTER"]["value"]
        manager["http_filters"].insert(-1, chosen)
        (engines,) = made["static_resources"]["clusters"]
        assert patches["CLUSTER"]["operation"] == "MERGE"
        engines |= patches["CLUSTER"]["value"]
        cluster = picker_cluster(HOST, picker, tls=True, health_interval_s=1)
        name = chosen["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"]
        made["static_resources"]["clusters"].append(cluster | {"name": name})
        return json.dumps(made)

    return settings, edit


async def _healthy(pool: Pool) -> None:
    """Envoy has checked the health of all that a patch has added, too."""
    async with asyncio.timeout(scaled(20)):
        while True:
            stats = await pool.gateway.stats(r"cluster\..*membership_(healthy|total)")
            ends = {name.rpartition("_")[0] for name in stats}
            if all(stats[f"{end}_healthy"] == stats[f"{end}_total"] for end in ends):
                return
            await asyncio.sleep(0.05)


@pytest.mark.long
async def test_what_istio_is_given_routes_in_an_envoy_and_strips_headers(tmp_path: Path) -> None:
    objects = rendered("istio-response-none")
    async with (
        served(objects, tmp_path, _as_istio_would) as pool,
        aiohttp.ClientSession() as session,
    ):
        await _healthy(pool)
        await split(pool, session)
        by_client = {protocol.DESTINATION: f"{HOST}:1", protocol.PREFILLER: f"{HOST}:1"}
        for number in range(5):
            await asked(session, pool.gateway.url, f"short {number}", **by_client)
        assert await pool.gateway.ext_proc("streams_started") >= 6
        assert await pool.picker.metric("epp_decisions_total") >= 6
        assert await pool.metric("decode", "epp_sidecar_prefill_targets_refused_total") == 0
