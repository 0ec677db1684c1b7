"""A tally that follows changes says what a blueprint says of the plan as a whole."""

from hypothesis import given
from hypothesis import strategies as st

from natpp.core.blueprint import Blueprint, Step
from natpp.core.tally import Tally
from tests.core.test_blueprint import EDGE, networks

PLANS = st.tuples(*[st.integers(0, 2)] * 3)


@st.composite
def networks_with_idle_steps(draw: st.DrawFn) -> Blueprint:
    """Random steps, and some that lead nowhere: they read any others, the last one aside."""
    *steps, last = draw(networks()).steps
    for number in range(draw(st.integers(0, 2))):
        reads = draw(st.lists(st.integers(0, len(steps) - 1), min_size=1, max_size=2))
        steps.append(Step(f"idle {number}", tuple(reads), {(): (draw(st.integers(1, 9)), 0)}, idle=True))
    return Blueprint((*steps, last))


@given(networks_with_idle_steps(), PLANS, st.lists(PLANS, max_size=4))
def test_a_tally_is_the_cost_of_its_plan(
    network: Blueprint, first: tuple[int, ...], then: list[tuple[int, ...]]
) -> None:
    tally = Tally(network, first)
    for plan in [first, *then]:
        before = [tally.alive(number) for number in range(len(network.steps))]
        changed = tally.set(dict(enumerate(plan)))
        flow = network.flow(plan)
        assert tally.plan == plan
        assert tally.cost == network.spent(plan).living
        assert (tally.missing == 0) == bool(flow.connected)
        alive = [bool(one) for one in flow.alive]
        assert [tally.alive(number) for number in range(len(network.steps))] == alive
        flipped = {number for number, (old, new) in enumerate(zip(before, alive, strict=True)) if old != new}
        assert changed == flipped - set(network.idle)


def test_a_step_that_leads_nowhere_goes_with_what_it_reads() -> None:
    image, unread = Step("image"), Step("unread", (1, 2), {(): (7, 70)}, idle=True)
    left, right = Step("left", (0,), EDGE, by=(0,)), Step("right", (0,), EDGE, by=(1,))
    network = Blueprint((image, left, right, unread, Step("sum", (1, 2), join="sum")))
    assert network.cost((0, 0)) == ((17, 170), (17, 170), True)
    assert network.cost((0, 2)) == ((12, 120), (5, 50), True)
    alone = Blueprint((image, left, unread._replace(reads=(1,)), Step("out", (0,))))
    assert alone.cost((0,)).living == (0, 0)  # it keeps nothing alive
