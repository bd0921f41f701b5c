"""Every Triton kernel as compiled for a GPU: its PTX runs here, against float64.

Triton launches as it would (tests/support/ptx_driver.py); the machine that runs the PTX refuses
accesses outside of tensors, races and misaligned vectors (ptx_memory.py, ptx_machine.py).
"""

import re
from functools import partial
from itertools import product

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
if torch.cuda.is_available():
    pytest.skip("the kernels run on the GPU itself", allow_module_level=True)

import ptx_cases
import ptx_driver

# Sizes are 1, primes, one below, at and above the blocks. The first of each also runs for sm_90.
CASES = {
    "dropout_mask": [(7, 129, 3), (1, 1), (8, 128), (9, 127, 2**40), (9, 7, 1, 3)],
    "weighted_sum": [(3, 7, 1), (1, 1), (10, 1023), (4, 1024), (5, 1025, 1), (3, 2048, 4),
                     (3, 1040, 0, "bfloat16"), (2, 1031, 1, "float16")],
    "sgd_step": [(2, 1025, 1), (1, 1), (2, 7), (2, 1023), (2, 1024), (2, 2048, 4),
                 (1, 1025, 0, False), (2, 1024, 0, False)],
    "fused_ffn": [(33, 7, 65, 0.1), (1, 1, 1, 0.0), (65, 32, 64, 0.5), (31, 33, 33, 0.0, 1),
                  (64, 16, 31, 0.1, 4), (65, 32, 33, 0.1, 0, 1), (17, 7, 33, 0.1, 1, 216, (3,)),
                  (16, 16, 32, 0.0, 0, 216, (2,))],
    "index_losses": [(7, 31, 1), (1, 1), (17, 513), (16, 128), (5, 7, 1, (5, 0, 3, 1)),
                     (16, 16, 0, (16, 9))],
    "projection_orthogonality": [(7, 3, 31, "unit", 1), (1, 1, 1, "cosine"), (2, 1025, 8, "cosine"),
                                 (3, 65, 129, "raw"), (16, 16, 128, "raw", 0, "bfloat16")],
    "client_scores": [(9, 31, 7, True, 1), (1, 1, 1), (8, 256, 65), (17, 257, 3, False),
                      (7, 16, 2, True, 0, "float32", 1e-30), (16, 48, 5, True, 0, "bfloat16")],
}  # fmt: skip
OFFSETS = (0, 1)
MORE = {  # make fuzz
    "dropout_mask": [*product((2, 17), (2, 31, 257), OFFSETS)],
    "weighted_sum": [*product((1, 2, 17), (2, 127, 128, 129, 4097), OFFSETS)],
    "sgd_step": [*product((1, 3), (2, 127, 129, 4097), OFFSETS)],
    "fused_ffn": [*product((2, 63, 129, 600), (8, 31, 64), (67,), (0.1,), OFFSETS)],
    "index_losses": [*product((2, 63, 129), (3, 16, 130), OFFSETS)],
    "projection_orthogonality": [
        *product((2, 64, 129), (5, 130), (33,), ("unit", "cosine", "raw"), OFFSETS)
    ],
    "client_scores": [*product((2, 65), (15, 16, 600), (1, 64, 129), (True,), OFFSETS)],
}


def listed(cases):
    return [
        pytest.param(op, args, id="-".join([op, *map(str, args)]))
        for op, many in cases.items()
        for args in many
    ]


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    pool = ptx_driver.worker(str(tmp_path_factory.mktemp("triton")))
    yield lambda function, *args: pool.submit(function, *args).result(timeout=600)
    pool.shutdown()


@pytest.mark.parametrize(("operator", "arguments"), listed(CASES))
def test_as_good_as_torch(worker, operator, arguments):
    assert worker(ptx_cases.check, operator, arguments)


@pytest.mark.parametrize("operator", CASES)
def test_as_good_as_torch_on_the_next_gpus(worker, operator):
    assert worker(ptx_cases.check, operator, CASES[operator][0], 90)


@pytest.mark.parametrize(("operator", "arguments"), listed(MORE))
def test_more_sizes(worker, operator, arguments, request):
    if request.config.getoption("--hypothesis-profile") != "long":
        pytest.skip("make fuzz: pytest tests/ops/test_ptx_kernels.py --hypothesis-profile long")
    assert worker(ptx_cases.check, operator, arguments)


def test_every_kernel_has_a_case(worker):
    assert set(CASES) == set(MORE) == set(ptx_cases.CASES)
    launched = {k for op in CASES for k in worker(ptx_cases.check, op, CASES[op][0])}
    assert launched == worker(ptx_cases.all_kernels)


# Tests of the tests: a compiler or a kernel that does one thing wrong is found.
BARRIER, WAIT = r"^\s*bar\.sync.*$", r"^\s*cp\.async\.wait_group.*$"
MASK = r"@!?%p\d+ (?=(?:ld|st)\.global)"


def without(pattern, kernel, which, ptx):
    """The text of `kernel` without one of the places where the pattern matches, or all (None)."""
    if f".entry {kernel}(" not in ptx:
        return ptx
    places = list(re.finditer(pattern, ptx, re.MULTILINE))
    for place in reversed(places if which is None else places[which : which + 1]):
        ptx = ptx[: place.start()] + ptx[place.end() :]
    return ptx


def findings(worker, operator, arguments, pattern, kernel, one_by_one=True):
    """What is found when the matches in `kernel` are taken away, each alone or all."""
    text = worker(ptx_cases.texts, operator, arguments)[kernel]
    places = len(re.findall(pattern, text, re.MULTILINE))
    changes = range(places) if one_by_one else [None] * min(1, places)
    return [
        worker(
            ptx_cases.check_changed, operator, arguments, partial(without, pattern, kernel, which)
        )
        for which in changes
    ]


# Kernels of many barriers and masks, which are taken away together: alone it would take minutes.
TOGETHER = {
    "_forward_kernel",
    "_grad_x_kernel",
    "_grad_weights_kernel",
    "_coefficients_kernel",
    "_client_scores_kernel",
}
SIZES_OF_BARRIERS = {  # loops that exchange through shared memory come round twice
    "sgd_step": (1, 7),
    "fused_ffn": (33, 7, 65, 0.1),
    "index_losses": (17, 513),
    "projection_orthogonality": (1, 1, 1, "cosine"),
    "client_scores": (9, 31, 7, True, 1),
}
ALONE = {"_sgd_step_kernel", "_direction_kernel"}  # threads that exchange nothing


@pytest.mark.parametrize("operator", SIZES_OF_BARRIERS)
def test_a_missing_barrier_is_a_race(worker, operator):
    arguments = SIZES_OF_BARRIERS[operator]
    for kernel in worker(ptx_cases.texts, operator, arguments):
        found = findings(worker, operator, arguments, BARRIER, kernel, kernel not in TOGETHER)
        assert bool(found) == (kernel not in ALONE), kernel
        assert all(f.startswith("Race: ") for f in found), (kernel, found)


SIZES_OF_MASKS = {
    "dropout_mask": (1, 1),
    "weighted_sum": (3, 7, 1),
    "sgd_step": (1, 7),
    "fused_ffn": (1, 1, 1, 0.0),
    "index_losses": (1, 1),
    "projection_orthogonality": (1, 1, 1, "cosine"),
    "client_scores": (1, 1, 1),
}
# Predicates that may go: of a store by one of the threads, which all have the same value, and of a
# row in a block of one row, which is always there.
IDLE = {
    "_sgd_step_norm_kernel": 1,
    "_lengths_kernel": 2,
    "_similarity_kernel": 5,
    "_sums_kernel": 1,
    "_weights_kernel": 2,
}


@pytest.mark.parametrize("operator", CASES)
def test_a_missing_mask_is_out_of_bounds(worker, operator):
    arguments = SIZES_OF_MASKS[operator]
    for kernel in worker(ptx_cases.texts, operator, arguments):
        found = findings(worker, operator, arguments, MASK, kernel, kernel not in TOGETHER)
        assert found, kernel
        assert sum(not f for f in found) <= IDLE.get(kernel, 0), (kernel, found)
        assert all(f.startswith(("OutOfBounds: ", "Race: ")) for f in found if f), (kernel, found)


def test_a_copy_that_is_not_waited_for_is_found(worker):
    found = findings(worker, "fused_ffn", (33, 7, 65, 0.1), WAIT, "_grad_weights_kernel")
    assert found
    assert all("cp.async" in f and not f.startswith("AssertionError") for f in found)


def test_a_wrong_factor_is_found(worker):
    found = worker(ptx_cases.check_changed, "weighted_sum", (3, 7, 1), swap_operands)
    assert found.startswith("AssertionError")


def swap_operands(ptx):
    """fma d, a, b, c becomes a · c + b."""
    return re.sub(r"(fma\.rn\.f32\s+%\w+, %\w+), (%\w+), (%\w+);", r"\1, \3, \2;", ptx)
