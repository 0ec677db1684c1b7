"""The time of a compressed network as a share of the original's, in onnxruntime, from runs that take turns."""

from __future__ import annotations

import copy
import importlib.util
import io
import logging
import statistics
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn

WARM_UP = 20  # runs that are not counted


def can_time() -> bool:
    """Whether onnxruntime and what exports to it are installed."""
    return all(importlib.util.find_spec(name) for name in ("onnxruntime", "onnxscript"))


def session_of(module: nn.Module, example: Tensor) -> Any:
    """A session of onnxruntime on one thread."""
    import onnxruntime

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it would name operators that are not used
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes of torch about itself
        program: Any = torch.onnx.export(
            copy.deepcopy(module).cpu().eval(), (example.cpu(),), dynamo=True, verbose=False
        )
    buffer = io.BytesIO()
    program.save(buffer)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors alone
    return onnxruntime.InferenceSession(buffer.getvalue(), options, providers=["CPUExecutionProvider"])


def paired_time(original: Any, other: Any, example: Tensor, pairs: int) -> dict[str, Any]:
    """Medians in milliseconds of two sessions, and the median of the ratio within a pair."""
    given = example.cpu().numpy()
    taken: list[list[float]] = [[], []]
    for number in range(WARM_UP + pairs):
        for place in (0, 1) if number % 2 else (1, 0):
            session = (original, other)[place]
            feed = {session.get_inputs()[0].name: given}
            start = time.perf_counter()
            session.run(None, feed)
            taken[place].append(1000 * (time.perf_counter() - start))
    before, after = (one[WARM_UP:] for one in taken)
    return {
        "ratio": statistics.median(late / early for early, late in zip(before, after, strict=True)),
        "original_ms": statistics.median(before),
        "ms": statistics.median(after),
        "pairs": pairs,
        "batch": len(given),
        "threads": 1,
    }
