"""A tally that follows changes says what a blueprint says of the plan as a whole."""

from hypothesis import given
from hypothesis import strategies as st

from natpp.core.blueprint import Blueprint, Step
from natpp.core.tally import Tally
from tests.core.test_blueprint import EDGE, networks

PLANS = st.tuples(*[st.integers(0, 2)] * 3)


@st.composite
def connected_networks(draw: st.DrawFn) -> Blueprint:
    """Random steps that are connected as they are, and some that lead nowhere: they read any others but the last."""
    *steps, last = (
        step._replace(prices={key: price if any(key) else price or (1, 1) for key, price in step.prices.items()})
        for step in draw(networks()).steps
    )
    for number in range(draw(st.integers(0, 2))):
        reads = draw(st.lists(st.integers(0, len(steps) - 1), min_size=1, max_size=2))
        steps.append(Step(f"idle {number}", tuple(reads), {(): (draw(st.integers(1, 9)), 0)}, idle=True))
    alive = Blueprint((*steps, last)).flow((0, 0, 0)).alive
    kept = [step if lives else step._replace(keep="") for step, lives in zip([*steps, last], alive, strict=True)]
    return Blueprint(tuple(kept))


@given(connected_networks(), st.lists(PLANS, max_size=5))
def test_a_tally_is_the_cost_of_its_plan(network: Blueprint, plans: list[tuple[int, ...]]) -> None:
    start = Tally(network)
    numbers = range(len(network.steps))
    tally, before = start.at((0, 0, 0)), [start.alive(number) for number in numbers]
    for plan in plans:
        tried = tally.tried(dict(enumerate(plan)))
        changed = tally.change(dict(enumerate(plan)))
        flow = network.flow(plan)
        assert (tally.missing == 0) == (tried is not None) == bool(flow.connected)
        for one in (tally, start.at(plan)) if flow.connected else ():
            assert one.cost == tried == network.spent(plan).living
            alive = [one.alive(number) for number in numbers]
            assert alive == [bool(bit) for bit in flow.alive]
            if before is not None:
                assert changed == {one for one in numbers if alive[one] != before[one]} - set(network.idle)
        before = alive if flow.connected else None
    assert start.cost == network.spent((0, 0, 0)).living


def test_a_step_that_leads_nowhere_goes_with_what_it_reads() -> None:
    image, unread = Step("image"), Step("unread", (1, 2), {(): (7, 70)}, idle=True)
    left, right = Step("left", (0,), EDGE, by=(0,)), Step("right", (0,), EDGE, by=(1,))
    network = Blueprint((image, left, right, unread, Step("sum", (1, 2), join="sum")))
    assert network.cost((0, 0)) == ((17, 170), (17, 170), True)
    assert network.cost((0, 2)) == ((12, 120), (5, 50), True)
    alone = Blueprint((image, left, unread._replace(reads=(1,)), Step("out", (0,))))
    assert alone.cost((0,)).living == (0, 0)  # it keeps nothing alive
