"""What `epp top` says of a pool."""

from typing import Any

from epp.observe.top_text import text


def endpoint(name: str, **changes: Any) -> dict[str, Any]:
    load = {"waiting": 2, "running": 3, "kv_usage": 0.25, "age_s": 0.2}
    return {
        "endpoint": f"default|{name}|8000",
        "ready": True,
        "rung": "precise",
        "events": True,
        "blocks": 12_345,
        "trust": 0.9,
        "record_age_s": 0.1,
        "load": load,
        "reserved_here": 4,
        "reserved_elsewhere": 7,
        "prefill_tokens_per_s": 8_000.0,
        "decode_s_per_token": 0.0123,
        "alarms": [],
    } | changes


def page(*members: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "pool": "default",
        "mode": "normal",
        "endpoints": list(members),
        "alarms": {},
        "events": {},
        "index_blocks": 12_345,
        "sizes": {"reservations": 4},
        "limited": {"reservations": 0},
        "store_connected": True,
        "log_lag_s": 0.0,
        "scraped": 0,
        "replicas": 1,
    } | changes


def test_an_endpoint_is_one_line_of_numbers() -> None:
    lines = text(page(endpoint("a"))).splitlines()
    assert lines[0] == "pool default   mode normal   1 of 1 ready   1 precise"
    assert lines[1] == "12,345 blocks known   4 reservations   store connected   1 other replicas"
    assert lines[-1].split() == [
        "a:8000", "yes", "precise", "0.1s", "0.2s", "2", "3", "25%", "4", "7", "8,000", "12.3ms",
        "12,345", "0.90",
    ]  # fmt: skip


def test_what_is_not_known_is_a_dash_and_never_zero() -> None:
    load = {"waiting": None, "running": None, "kv_usage": None, "age_s": 100.0}
    line = text(page(endpoint("a", load=load, record_age_s=None))).splitlines()[-1].split()
    assert line[3:8] == ["-", ">1m", "-", "-", "-"]


def test_trouble_comes_first_and_is_said() -> None:
    members = [
        endpoint("a"),
        endpoint("b", rung="predicted", events=False),
        endpoint("c", alarms=["no-events"]),
        endpoint("d", ready=False),
    ]
    told = text(
        page(
            *members,
            alarms={"no-events": 1},
            events={"feed-gap": 3, "done-unknown": 9},
            limited={"reservations": 5},
            store_connected=False,
        )
    )
    lines = told.splitlines()
    assert [line.split(":")[0] for line in lines[-4:]] == ["d", "c", "b", "a"]
    assert "NO" in lines[-4]
    assert lines[-3].endswith("no-events")
    assert "no events" in lines[-2]
    assert "STORE AWAY" in told
    assert "feed-gap 3   no room for reservations 5" in told
    assert "wrong: no-events (1)" in told
    assert "done-unknown" not in told


def test_a_log_that_is_read_late_is_said() -> None:
    assert "LOG READ 2.5s LATE" in text(page(log_lag_s=2.5))
    for timely in (0.0, None):
        assert "LATE" not in text(page(log_lag_s=timely))


def test_a_screen_shows_as_many_endpoints_as_fit() -> None:
    told = text(page(*(endpoint(f"e{number}") for number in range(10))), most=3)
    assert told.endswith("and 7 more\n")
    assert sum(":8000" in line for line in told.splitlines()) == 3


def test_names_move_no_cursor() -> None:
    assert "\x1b" not in text(page(endpoint("a\x1b[2J"), pool="p\x1b"))
