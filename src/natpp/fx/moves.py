"""What an operation without weights does to channels, by its name; for an unknown one, found by running it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx.node import Node

from natpp.fx.labels import HEADS, PIECE, SHAPE, SIZE, SLICE, Book, Labels, flat
from natpp.fx.traced import value

STOP = object()  # the operation is not understood
SAME = re.compile(  # functions and methods that treat every element alike
    "i?(add|sub|mul|div|truediv|floordiv)|r?sub|maximum|minimum|pow|neg|abs|exp|sqrt|rsqrt|square|clamp|sigmoid|hardsigmoid|"
    "tanh|relu6?|leaky_relu|elu|celu|selu|gelu|silu|mish|hardswish|hardtanh|softplus|softsign|(alpha_)?dropout[123]?d?|to|"
    "float|half|double|type|type_as|contiguous|clone|detach"
)
POOLS = re.compile("(adaptive_)?(max|avg)_pool[123]d|interpolate|upsample|boolean_dispatch")
RESHAPES = {"view", "reshape", "flatten", "squeeze", "unsqueeze", "unflatten"}
PRODUCTS = {"matmul", "bmm"}
SIZES = {"view", "reshape", "expand"}  # their arguments are the output sizes


def elementwise(book: Book, node: Node) -> Any:
    """The channels of a sum, product or another elementwise operation: those of its terms are joined."""
    made = value(node)
    if not isinstance(made, Tensor):
        return STOP
    found = [
        (book.known[one], value(one).shape) for one in node.all_input_nodes if is_tensor(one) and one not in book.loose
    ]
    ndim = made.dim()
    aligned = [(one.dim + ndim - len(shape), one) for one, shape in found if isinstance(one, Labels)]
    if not aligned:
        return None
    dim = aligned[0][0]
    if any(other != dim for other, _ in aligned):
        return STOP
    for read in book.loose.intersection(node.all_input_nodes):
        if _spans(value(read).shape, dim - ndim, made.shape[dim]):
            own = Labels(dim - ndim + value(read).dim(), aligned[0][1].channels)
            book.known[read] = own
            book.note(read, "", *own)
            book.loose.remove(read)
            found.append((own, value(read).shape))
    channels = [
        one.channels if isinstance(one, Labels) else np.zeros(made.shape[dim], dtype=np.int64)
        for one, shape in found
        if isinstance(one, Labels) or _spans(shape, dim - ndim, made.shape[dim])
    ]
    if len({len(one) for one in channels}) > 1:
        return STOP
    for one in channels[1:]:
        book.join(channels[0], one)
    return Labels(dim, channels[0])


def multiplied(book: Book, node: Node) -> Any:
    """The channels of a matrix product or attention that computes each of them apart, such as heads."""
    tensors = [one for one in node.all_input_nodes if is_tensor(one)]
    known = [(book.known[one], value(one).dim()) for one in tensors]
    if any(one is not None and (not isinstance(one, Labels) or one.dim >= ndim - 2) for one, ndim in known):
        return STOP
    made = STOP if operand(node, 8, "enable_gqa") else elementwise(book, node)
    if isinstance(made, Labels):
        book.note(node, HEADS, made.dim, made.channels)
    return made


def products(node: Node) -> int:
    """Multiply-adds of such a node."""
    first, second, *_ = shapes = [value(one).shape for one in node.all_input_nodes if is_tensor(one)]
    if len(shapes) < 3 or name_of(node) in PRODUCTS:
        return int(value(node).numel()) * int(first[-1])
    return int(value(node).numel() // shapes[2][-1]) * int(second[-2]) * int(first[-1] + shapes[2][-1])


def _spans(shape: Sequence[int], dim: int, size: int) -> bool:
    """Whether a term has this size in a dimension, counted from the last; otherwise it is broadcast along it."""
    return len(shape) >= -dim and shape[dim] == size


def normed(book: Book, node: Node, labels: Labels | None, shape: Sequence[int]) -> Any:
    """The channels after a batch norm or layer norm that is called as a function."""
    name, weights = name_of(node), [book.known[one] for one in node.all_input_nodes[1:] if is_tensor(one)]
    if labels is None or labels.dim != (1 if name == "batch_norm" else len(shape) - 1):
        return STOP
    for one in weights:
        if isinstance(one, Labels):
            book.join(labels.channels, one.channels)
        elif one is None:
            return STOP
    if name == "layer_norm":
        if len(node.args) < 2 or not isinstance(node.args[1], tuple | list) or len(node.args[1]) != 1:
            return STOP
        book.note(node, SHAPE, 0, labels.channels)
    return labels


def concatenated(book: Book, node: Node) -> Any:
    """The channels of concatenated values; along another dimension they are joined."""
    given = node.args[0] if node.args else node.kwargs.get("tensors")
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis", 0))
    if not isinstance(given, tuple | list) or not all(is_tensor(one) for one in given) or not isinstance(dim, int):
        return STOP
    dim %= value(node).dim()
    known = [book.known[one] for one in given]
    if not any(isinstance(one, Labels) for one in known):
        return None
    dims = {one.dim for one in known if isinstance(one, Labels)}
    if len(dims) > 1:
        return STOP
    (own,) = dims
    channels = [
        one.channels if isinstance(one, Labels) else np.zeros(value(read).shape[own], dtype=np.int64)
        for one, read in zip(known, given, strict=True)
    ]
    if own == dim:
        return Labels(dim, np.concatenate(channels))
    for one in channels[1:]:
        book.join(channels[0], one)
    return Labels(own, channels[0])


def reshaped(book: Book, node: Node, labels: Labels | None, shape: Sequence[int]) -> Any:
    """The channels after a change of shape; where they are split, the outer parts lose the same ones."""
    if labels is None:
        return None
    if name_of(node) in SIZES and len(sizes_of(node)) != value(node).dim():
        return STOP
    after = tuple(value(node).shape)
    block = next((one for one in _blocks(tuple(shape), after) if labels.dim in one[0]), None)
    if block is None:
        return STOP
    old, new = block
    if len(old) == len(new) == 1:
        made = Labels(new[0], labels.channels)
    else:
        if 0 in (*old, *new):  # a batch has any size
            return STOP
        sides = [shape[dim] for dim in old]
        lined = labels.channels.reshape(
            [side if dim == labels.dim else 1 for dim, side in zip(old, sides, strict=True)]
        )
        moved = np.broadcast_to(lined, sides).reshape([after[dim] for dim in new])
        differ = [axis for axis in range(moved.ndim) if (moved != moved.take([0], axis)).any()]
        if not differ:  # they are all one channel, which stays
            book.fix(labels)
            return None
        turn = differ[-1 - book.turns.get(node, 0)]
        rows = np.moveaxis(moved, turn, -1).reshape(-1, moved.shape[turn])
        if len(differ) > 1 and book.free(labels.channels):
            book.splits[node] = rows[0], len(differ)
        for row in np.unique(rows, axis=0) if len(differ) > 1 else ():
            book.join(rows[0], row)
        made = Labels(new[turn], rows[0])
    if name_of(node) in SIZES or (name_of(node) == "unflatten" and len(new) > 1):
        book.note(node, SIZE, made.dim, made.channels)
    return made


def permuted(book: Book, node: Node, labels: Labels, shape: Sequence[int]) -> Any:
    """The channels after dimensions change places."""
    order = list(range(len(shape)))
    given = node.args[1:] if not node.args[1:] or isinstance(node.args[1], int) else node.args[1]
    if not isinstance(given, tuple | list) or not all(isinstance(one, int) for one in given) or node.kwargs:
        return STOP
    if name_of(node) == "transpose":
        first, second = (int(one) for one in given)
        order[first], order[second] = order[second], order[first]
    else:
        order = [int(one) % len(shape) for one in given]
    return Labels(order.index(labels.dim), labels.channels)


def reduced(book: Book, node: Node, labels: Labels, shape: Sequence[int]) -> Any:
    """The channels of a mean, sum or maximum over other dimensions."""
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = [given] if isinstance(given, int) else given
    if not isinstance(dims, tuple | list) or not all(isinstance(one, int) for one in dims):
        return STOP
    gone = {int(one) % len(shape) for one in dims}
    if labels.dim in gone:
        return STOP
    kept = value(node).dim() == len(shape)
    return Labels(labels.dim if kept else labels.dim - sum(one < labels.dim for one in gone), labels.channels)


def softmax(book: Book, node: Node, labels: Labels, shape: Sequence[int]) -> Any:
    """The channels of a softmax over another dimension."""
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return labels if isinstance(given, int) and given % len(shape) != labels.dim else STOP


def pieces(book: Book, node: Node, labels: Labels, shape: Sequence[int]) -> Any:
    """The channels of each piece; the sizes of the pieces are rewritten."""
    given = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    if not isinstance(given, int):
        return STOP
    if given % len(shape) != labels.dim:
        return tuple(labels for _ in value(node))
    ends = np.cumsum([one.shape[labels.dim] for one in value(node)])[:-1]
    parts = np.split(labels.channels, ends)
    for number, piece in enumerate(parts):
        book.note(node, PIECE, number, piece)
    return tuple(Labels(labels.dim, piece) for piece in parts)


def unbound(book: Book, node: Node, labels: Labels, shape: Sequence[int]) -> Any:
    """The channels of each of the values along another dimension."""
    given = operand(node, 1, "dim") or 0
    if not isinstance(given, int) or given % len(shape) == labels.dim:
        return STOP
    return (Labels(labels.dim - (given % len(shape) < labels.dim), labels.channels),) * len(value(node))


def sliced(book: Book, node: Node, labels: Labels, shape: Sequence[int]) -> Any:
    """The channels of a slice; if it takes only some of them, its ends are rewritten."""
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if any(one is not Ellipsis and not isinstance(one, int | slice | None) for one in index):
        return STOP
    named = sum(one is not None and one is not Ellipsis for one in index)
    at = next((number for number, one in enumerate(index) if one is Ellipsis), len(index))
    full = (*index[:at], *[slice(None)] * (len(shape) - named), *index[at + 1 :])
    places = [number for number, one in enumerate(full) if one is not None]
    here = places[labels.dim]
    own, made = full[here], sum(not isinstance(one, int) for one in full[:here])
    if (
        not isinstance(own, slice)
        or own.step not in (None, 1)
        or any(isinstance(one, Node) for one in (own.start, own.stop))
    ):
        return STOP
    start, stop, _ = own.indices(shape[labels.dim])
    if (start, stop) == (0, shape[labels.dim]):
        return Labels(made, labels.channels)
    written = here if here < at else here - len(full)  # its place in the index, from the end after an ellipsis
    if here >= at and Ellipsis not in index:
        return STOP
    for number, piece in enumerate((labels.channels[:start], labels.channels[start:stop])):
        book.note(node, f"{SLICE} {written}", number, piece)
    return Labels(made, labels.channels[start:stop])


def padded(book: Book, node: Node, labels: Labels, shape: Sequence[int]) -> Any:
    """The channels where other dimensions are padded."""
    pads = node.args[1] if len(node.args) > 1 else node.kwargs.get("pad")
    if not isinstance(pads, tuple | list):
        return STOP
    before = 2 * (len(shape) - 1 - labels.dim)
    return labels if len(pads) <= before or pads[before : before + 2] in ((0, 0), [0, 0]) else STOP


def expanded(book: Book, node: Node, labels: Labels, shape: Sequence[int]) -> Any:
    """The channels where other dimensions are repeated."""
    if len(sizes_of(node)) != value(node).dim():
        return STOP
    made = Labels(labels.dim + value(node).dim() - len(shape), labels.channels)
    book.note(node, SIZE, made.dim, made.channels)
    return made


def name_of(node: Node) -> str:
    """The name of a function or method, without the underscore of in-place forms."""
    found = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return found if found.startswith("_") else found.rstrip("_")


def operand(node: Node, place: int, name: str) -> Any:
    """An argument of a call by its place or name; None if it is left out."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def sizes_of(node: Node) -> tuple[Any, ...]:
    """The output sizes given to a view, reshape, expand or unflatten, by dimension."""
    if name_of(node) == "unflatten":
        return (-1,) * _unflattened(node) + tuple(node.args[2])  # type: ignore[arg-type]
    given = node.args[1:]
    if not given:
        given = node.kwargs.get("shape", node.kwargs.get("size", ()))  # type: ignore[assignment]
    elif isinstance(given[0], tuple | list):
        given = given[0]  # type: ignore[assignment]
    return tuple(given)


MOVES: Mapping[str, Callable[[Book, Node, Labels, Sequence[int]], Any]] = {
    **dict.fromkeys(RESHAPES, reshaped),
    **dict.fromkeys(("permute", "transpose"), permuted),
    **dict.fromkeys(("mean", "sum", "amax"), reduced),
    **dict.fromkeys(("chunk", "split", "tensor_split"), pieces),
    **dict.fromkeys(("batch_norm", "layer_norm"), normed),
    "getitem": sliced,
    "unbind": unbound,
    "pad": padded,
    "expand": expanded,
    "softmax": softmax,
}


def moved(book: Book, node: Node, given: Node) -> Any:
    """The channels of what a function or method makes; `STOP` if it is not understood."""
    name, labels, shape = name_of(node), book.known[given], value(given).shape
    others = [one for one in node.all_input_nodes if one is not given and is_tensor(one) and flat(book.known[one])]
    if not isinstance(labels, Labels) or (others and name not in ("batch_norm", "layer_norm")):
        return STOP if others or labels is not None else None
    if POOLS.fullmatch(name):
        return labels if labels.dim == 1 and is_tensor(node) else STOP
    if name in MOVES:
        return MOVES[name](book, node, labels, shape)
    method = node.target
    call = (lambda x, *args, **more: getattr(x, method)(*args, **more)) if isinstance(method, str) else method
    return labels if alike(call, call, node, given, labels) else STOP


def with_sizes(node: Node, sizes: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of a view, reshape, expand or unflatten, with other sizes."""
    if name_of(node) == "unflatten":
        return *node.args[:2], tuple(sizes[_unflattened(node) :])
    return (node.args[0], *sizes) if isinstance(node.target, str) else (node.args[0], tuple(sizes))


def _unflattened(node: Node) -> int:
    dim, given = node.args[1], node.args[0]
    assert isinstance(dim, int)
    assert isinstance(given, Node)
    return dim % value(given).dim() if value(given) is not None else dim


def alike(whole: Callable[..., Any], part: Callable[..., Any], node: Node, given: Node, labels: Labels | None) -> bool:
    """Whether an unknown operation treats every channel independently: `part`, run on every second, gives the same."""
    seen, made = value(given), value(node)
    if (
        labels is None
        or not isinstance(made, Tensor)
        or made.dim() != seen.dim()
        or any(is_tensor(one) for one in node.all_input_nodes if one is not given)
    ):
        return False
    args, kwargs = torch.fx.node.map_arg((node.args[1:], node.kwargs), value)
    some = torch.arange(0, seen.shape[labels.dim], 2)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        x = torch.randn(seen.shape, generator=torch.Generator().manual_seed(0))
        try:
            made, half = whole(x.clone(), *args, **kwargs), part(x.index_select(labels.dim, some), *args, **kwargs)
            return torch.allclose(made.index_select(labels.dim, some), half, rtol=1e-5, atol=1e-6, equal_nan=True)
        except Exception:  # an operation that rejects other widths may raise anything
            return False


def is_tensor(node: Any) -> bool:
    return isinstance(node, Node) and isinstance(value(node), Tensor)


def _blocks(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of dimensions with the same product; dimensions of size 1 are left out."""
    old = [dim for dim, size in enumerate(before) if size != 1]
    new = [dim for dim, size in enumerate(after) if size != 1]
    found: list[tuple[list[int], list[int]]] = []
    while old and new:
        left, right = [old.pop(0)], [new.pop(0)]
        one, other = before[left[0]], after[right[0]]
        while one != other:
            if one < other and old:
                left.append(old.pop(0))
                one *= before[left[-1]]
            elif new:
                right.append(new.pop(0))
                other *= after[right[-1]]
            else:
                return found
        found.append((left, right))
    return found
