"""Peak memory of plans, worked out by hand."""

from natpp.core.blueprint import Blueprint, Step
from natpp.core.memory import peak_memory

EDGE = {(0,): (5, 50), (1,): (0, 0), (2,): None}  # an operation, a skip, nothing


def test_memory_by_hand() -> None:
    """An image of 8 bytes that the caller holds; edges of 10 bytes each that need 4 more while they run."""
    edge = {(0,): (10, 14), (1,): (0, 0)}
    network = Blueprint(
        (
            Step("image", room={(): (8, 8)}),
            Step("left", (0,), EDGE, by=(0,), room=edge, until=3),
            Step("right", (0,), EDGE, by=(1,), room=edge),
            Step("sum", (1, 2), join="sum", room={(): (10, 10)}),
            Step("head", (3,), fixed=True, room={(): (1, 2)}, silent=(1, 5)),
        )
    )
    assert peak_memory(network, (0, 0)) == 8 + 10 + 10 + 10
    assert peak_memory(network, (0, 1)) == 8 + 10 + 10  # a skip is the image itself, which is there already
    assert peak_memory(network, (0, 2)) == 8 + 14  # one term alone is the sum
    assert peak_memory(network, (1, 2)) == 8 + 2
    assert peak_memory(network, (2, 2)) == 8 + 5  # nothing reaches the head, which stands all the same


def test_a_concat_puts_zeros_where_something_is_missing() -> None:
    image = Step("image", room={(): (8, 8)})
    edges = [Step(str(one), (0,), EDGE, by=(one,), room={(0,): (4, 4), (1,): (0, 0)}) for one in (0, 1)]
    network = Blueprint((image, *edges, Step("concat", (1, 2), join="concat", room={(): (8, 12)})))
    assert peak_memory(network, (0, 0)) == 8 + 4 + 4 + 8
    assert peak_memory(network, (0, 2)) == 8 + 4 + 12
