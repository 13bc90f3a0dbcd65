"""The simulated API server does what was seen of a real one (Kubernetes 1.36)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from epp.sim.apiserver.resources import PODS
from epp.sim.apiserver.server import ApiServer
from tests.fakes.cluster import NAMESPACE, POOL, V1, Pods, api_server, definition, pod, pool
from tests.fakes.waiting import until
from tests.timing import scaled

PODS_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
POOLS_PATH = f"/apis/{V1[0]}/v1/namespaces/{NAMESPACE}/inferencepools"
LEASES_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
MERGE = {"Content-Type": "application/merge-patch+json"}


class Client:
    """Asks, and gives status and JSON (or text)."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self.url = server.url
        self.session = session

    async def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        data = None if body is None else json.dumps(body).encode()
        async with self.session.request(
            method, f"{self.url}{path}", data=data, headers=headers
        ) as response:
            text = await response.text()
            found = json.loads(text) if response.content_type == "application/json" else text
            return response.status, found, dict(response.headers)

    async def watch(self, path: str, count: int, **query: str) -> list[dict[str, Any]]:
        """The first so many events, or all until the server ends the watch."""
        events: list[dict[str, Any]] = []
        params = {"watch": "1", **query}
        async with (
            asyncio.timeout(scaled(10)),
            self.session.get(f"{self.url}{path}", params=params) as response,
        ):
            assert response.status == 200
            assert response.content_type == "application/json"
            async for line in response.content:
                events.append(json.loads(line))
                if len(events) == count:
                    break
        return events


@asynccontextmanager
async def asked(**settings: Any) -> AsyncIterator[tuple[ApiServer, Pods, Client]]:
    async with api_server(**settings) as server, aiohttp.ClientSession() as session:
        yield server, Pods(server), Client(server, session)


def _pool_schema() -> dict[str, Any]:
    ref = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "kind": {"type": "string", "default": "Service"},
            "failureMode": {"type": "string", "default": "FailClose"},
        },
    }
    number = {"type": "integer", "minimum": 1, "maximum": 65535}
    port = {"type": "object", "required": ["number"], "properties": {"number": number}}
    spec = {
        "type": "object",
        "required": ["targetPorts"],
        "properties": {
            "appProtocol": {"type": "string", "default": "http"},
            "targetPorts": {"type": "array", "maxItems": 8, "items": port},
            "endpointPickerRef": ref,
        },
    }
    return {"x-kubernetes-preserve-unknown-fields": False, "properties": {"spec": spec}}


async def test_items_of_lists_have_no_kind_and_versions_are_numbers() -> None:
    async with asked() as (_, pods, client):
        pods.add("a", "10.0.0.1")
        _, found, _ = await client.ask("GET", PODS_PATH)
        (item,) = found["items"]
        assert found["kind"] == "PodList"
        assert "kind" not in item
        assert int(item["metadata"]["resourceVersion"]) <= int(found["metadata"]["resourceVersion"])
        (event,) = await client.watch(PODS_PATH, 1)
        assert event["object"]["kind"] == "Pod"


async def test_writes_answer_as_they_do() -> None:
    async with asked() as (_, _, client):
        first = await client.ask("POST", PODS_PATH, pod("a", "10.0.0.1"))
        again = await client.ask("POST", PODS_PATH, pod("a", "10.0.0.1"))
        assert (first[0], again[0], again[1]["reason"]) == (201, 409, "AlreadyExists")
        stale = {"metadata": {"resourceVersion": "1", "labels": {"x": "y"}}}
        status, said, _ = await client.ask("PATCH", f"{PODS_PATH}/a", stale, **MERGE)
        assert (status, said["reason"]) == (409, "Conflict")
        status, said, _ = await client.ask("GET", f"{PODS_PATH}/none")
        assert (status, said["kind"], said["reason"]) == (404, "Status", "NotFound")


async def test_a_write_that_changes_nothing_keeps_the_version() -> None:
    async with asked() as (server, pods, client):
        pods.add("a", "10.0.0.1")
        before = server.store.version
        patch = {"metadata": {"labels": {"app": "llama"}}}
        status, _, _ = await client.ask("PATCH", f"{PODS_PATH}/a", patch, **MERGE)
        assert (status, server.store.version) == (200, before)


async def test_status_and_the_rest_ignore_each_other() -> None:
    async with asked() as (_, pods, client):
        pods.add("a", "10.0.0.1")
        both = {"metadata": {"labels": {"x": "1"}}, "status": {"podIP": "10.0.0.9"}}
        _, found, _ = await client.ask("PATCH", f"{PODS_PATH}/a", both, **MERGE)
        assert found["metadata"]["labels"]["x"] == "1"
        assert found["status"]["podIP"] == "10.0.0.1"
        both["metadata"]["labels"]["x"] = "2"
        _, found, _ = await client.ask("PATCH", f"{PODS_PATH}/a/status", both, **MERGE)
        assert found["metadata"]["labels"]["x"] == "1"
        assert found["status"]["podIP"] == "10.0.0.9"


async def test_a_custom_kind_takes_no_strategic_patch_and_counts_generations_of_its_spec() -> None:
    async with asked() as (_, pods, client):
        pods.put_pool(pool())
        strategic = {"Content-Type": "application/strategic-merge-patch+json"}
        status, _, _ = await client.ask("PATCH", f"{POOLS_PATH}/{POOL}", {}, **strategic)
        assert status == 415
        for patch, generation in (
            ({"metadata": {"labels": {"a": "b"}}}, 1),
            ({"spec": {"targetPorts": [{"number": 1}]}}, 2),
        ):
            _, found, _ = await client.ask("PATCH", f"{POOLS_PATH}/{POOL}", patch, **MERGE)
            assert found["metadata"]["generation"] == generation


async def test_a_schema_fills_prunes_and_refuses() -> None:
    async with ApiServer() as server, aiohttp.ClientSession() as session:
        server.define(definition(*V1, **_pool_schema()))
        client = Client(server, session)
        body = pool()
        body["spec"] = {k: v for k, v in body["spec"].items() if k != "selector"}
        body["spec"]["colour"] = "red"
        status, _, _ = await client.ask("POST", f"{POOLS_PATH}?fieldValidation=Strict", body)
        assert status == 400
        status, made, headers = await client.ask("POST", POOLS_PATH, body)
        assert status == 201
        assert headers["Warning"].startswith("299 - ")
        assert "spec.colour" in headers["Warning"]
        assert made["spec"]["appProtocol"] == "http"
        assert made["spec"]["endpointPickerRef"]["failureMode"] == "FailClose"
        assert "colour" not in made["spec"]
        bad = {"metadata": {"name": "bad"}, "spec": {"targetPorts": [{"number": 0}]}}
        status, said, _ = await client.ask("POST", POOLS_PATH, bad)
        assert (status, said["details"]["causes"][0]["field"]) == (
            422,
            "spec.targetPorts[0].number",
        )


@pytest.mark.parametrize(("time", "status"), [("00.000000Z", 201), ("00Z", 400)])
async def test_times_of_leases_have_six_digits(time: str, status: int) -> None:
    async with asked() as (_, _, client):
        body = {"metadata": {"name": "l"}, "spec": {"renewTime": f"2026-01-31T12:00:{time}"}}
        assert (await client.ask("POST", LEASES_PATH, body))[0] == status


async def test_what_leaves_a_selector_is_deleted_with_its_last_labels() -> None:
    async with asked() as (server, pods, client):
        pods.add("a", "10.0.0.1")
        since = str(server.store.version)
        pods.change("a", {"metadata": {"labels": {"app": "x"}}})
        pods.change("a", {"metadata": {"labels": {"app": "llama"}}})
        gone, back = await client.watch(
            PODS_PATH, 2, labelSelector="app=llama", resourceVersion=since
        )
        assert (gone["type"], back["type"]) == ("DELETED", "ADDED")
        assert gone["object"]["metadata"]["labels"] == {"app": "llama"}
        assert int(gone["object"]["metadata"]["resourceVersion"]) > int(since)


async def test_watches_begin_where_they_are_told_to() -> None:
    async with asked() as (server, pods, client):
        pods.add("a", "10.0.0.1")
        since = str(server.store.version)
        pods.add("b", "10.0.0.2")
        for asked_for, names in (({}, ["a", "b"]), ({"resourceVersion": since}, ["b"])):
            events = await client.watch(PODS_PATH, len(names), **asked_for)
            assert [one["object"]["metadata"]["name"] for one in events] == names
        *_, mark = await client.watch(
            PODS_PATH, 3, sendInitialEvents="true", resourceVersionMatch="NotOlderThan"
        )
        assert mark["type"] == "BOOKMARK"
        assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_bookmarks_come_to_those_who_ask_and_watches_end_in_time() -> None:
    async with asked(bookmark_s=0.2) as (server, _, client):
        at = {"resourceVersion": str(server.store.version), "timeoutSeconds": "1"}
        assert await client.watch(PODS_PATH, 9, **at) == []
        marks = await client.watch(PODS_PATH, 9, **at, allowWatchBookmarks="true")
        assert {mark["type"] for mark in marks} == {"BOOKMARK"}


async def test_a_version_that_is_too_old_is_an_event_and_the_end() -> None:
    async with asked() as (server, pods, client):
        since = str(server.store.version)
        pods.add("a", "10.0.0.1")
        server.store.compact()
        (event,) = await client.watch(PODS_PATH, 9, resourceVersion=since)
        assert event["type"] == "ERROR"
        assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
        status, said, _ = await client.ask("GET", f"{PODS_PATH}?watch=1&resourceVersion=x")
        assert (status, said["kind"]) == (500, "Status")
        status, said, headers = await client.ask("GET", f"{PODS_PATH}?resourceVersion=99999")
        assert (status, headers["Retry-After"]) == (504, "1")


async def test_a_kind_that_is_not_installed_is_a_plain_404_and_may_come_and_go() -> None:
    async with ApiServer() as server, aiohttp.ClientSession() as session:
        client = Client(server, session)
        status, text, headers = await client.ask("GET", POOLS_PATH)
        assert (status, text) == (404, "404 page not found\n")
        assert headers["Content-Type"].startswith("text/plain")
        server.define(definition(*V1))
        Pods(server).put_pool(pool())
        assert (await client.ask("GET", POOLS_PATH))[0] == 200
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(client.watch(POOLS_PATH, 9))
            await until(lambda: server.watches)
            crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
            await client.ask("DELETE", f"{crd}inferencepools.{V1[0]}")
        assert [event["type"] for event in watching.result()] == ["ADDED", "DELETED"]
        assert (await client.ask("GET", POOLS_PATH))[0] == 404


async def test_a_pod_on_a_node_is_first_marked_and_then_deleted() -> None:
    async with asked() as (server, pods, client):
        pods.add("a", "10.0.0.1")
        since = str(server.store.version)
        _, marked, _ = await client.ask("DELETE", f"{PODS_PATH}/a")
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
        assert [one["metadata"]["name"] for one in server.store.listed(PODS, None)] == ["a"]
        await client.ask("DELETE", f"{PODS_PATH}/a?gracePeriodSeconds=0")
        events = await client.watch(PODS_PATH, 2, resourceVersion=since)
        assert [event["type"] for event in events] == ["MODIFIED", "DELETED"]


async def test_who_may_not_is_told_so_at_the_next_request_only() -> None:
    async with asked() as (server, _, client):
        server.faults.codes["watch", "pods"] = 403
        status, said, _ = await client.ask("GET", f"{PODS_PATH}?watch=1")
        assert (status, said["kind"], said["reason"]) == (403, "Status", "Forbidden")
        assert (await client.ask("GET", PODS_PATH))[0] == 200
        server.tokens = {"secret"}
        assert (await client.ask("GET", PODS_PATH))[0] == 401
        bearer = {"Authorization": "Bearer secret"}
        assert (await client.ask("GET", PODS_PATH, **bearer))[0] == 200


async def test_pages_are_of_one_version() -> None:
    async with asked() as (server, pods, client):
        for name in "abc":
            pods.add(name, "10.0.0.1")
        _, first, _ = await client.ask("GET", f"{PODS_PATH}?limit=2")
        token = first["metadata"]["continue"]
        pods.change("a", {"metadata": {"labels": {"x": "y"}}})
        _, second, _ = await client.ask("GET", f"{PODS_PATH}?limit=2&continue={token}")
        versions = {page["metadata"]["resourceVersion"] for page in (first, second)}
        assert (len(first["items"]), len(second["items"]), len(versions)) == (2, 1, 1)
        server.store.compact()
        status, said, _ = await client.ask("GET", f"{PODS_PATH}?limit=2&continue={token}")
        assert (status, said["reason"]) == (410, "Expired")
