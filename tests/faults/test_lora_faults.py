"""Faults B03 and B22: LoRA adapters, from an engine's page to the choice."""

from epp.framework import EndpointId, Lora
from epp.state.metrics_page import parse_page
from epp.state.reports import LoadReport
from tests.fakes.desk import Desk, ask, open_desk


def says(desk: Desk, number: int, running: str | None = None, most: int = 1) -> EndpointId:
    """What engine `number` tells on its page; `running` None: nothing of adapters."""
    text = 'vllm:num_requests_waiting{model_name="base"} 0\nvllm:num_requests_running 0\n'
    if running is not None:
        labels = f'max_lora="{most}",running_lora_adapters="{running}",waiting_lora_adapters=""'
        text += f"vllm:lora_requests_info{{{labels}}} 1.7e9\n"
    member = desk.members[number]
    life = desk.pool.endpoints.incarnation(member.id)
    assert life is not None
    desk.load.report(life, parse_page(text.encode()).report, desk.now)
    return member.id


async def chosen(desk: Desk, model: str) -> EndpointId:
    """Where a new prompt for `model` goes; the request is over at once."""
    route = await desk.route(ask(f"a prompt for {model}", model=model))
    route.progress.finished()
    return desk.witness.last.chosen[0].id


async def test_B22_an_adapter_goes_where_it_runs_and_a_new_one_where_there_is_room() -> None:
    """Protected by the lora-affinity scorer of the default profile; red without it."""
    async with open_desk(2) as desk:
        first, second = says(desk, 0, "a", most=1), says(desk, 1, "", most=4)
        for _ in range(10):
            assert await chosen(desk, "a") == first
            assert await chosen(desk, "b") == second


async def test_B22_requests_for_the_base_model_do_not_feel_adapters() -> None:
    """Protected by the base model's name in `Lora`; red without it: all go where there is room."""
    async with open_desk(2) as desk:
        says(desk, 0, "a", most=1)
        says(desk, 1, "", most=4)
        assert {await chosen(desk, "base") for _ in range(40)} == {m.id for m in desk.members}


async def test_B03_one_engine_without_the_adapter_family_keeps_its_share() -> None:
    """Protected by the even scores for a base model; red when silence counts less."""
    async with open_desk(2) as desk:
        says(desk, 0)
        says(desk, 1, "", most=4)
        assert {await chosen(desk, "base") for _ in range(40)} == {m.id for m in desk.members}


def test_B03_idle_adapters_and_an_absent_family_are_told_apart() -> None:
    """Protected by `None` for an absent family; red when both are the same."""
    idle = b'vllm:lora_requests_info{max_lora="2",running_lora_adapters=""} 1.7e9\n'
    assert parse_page(idle).report == LoadReport(lora=Lora(most=2))
    assert parse_page(b"").report == LoadReport(lora=None)
