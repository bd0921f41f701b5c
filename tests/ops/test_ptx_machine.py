"""The machine that runs PTX in the tests notices what it is there for."""

import numpy as np
import pytest
import torch
from ptx_approximate import RELATIVE, approximate
from ptx_arithmetic import operation, to_bfloat16
from ptx_machine import run_grid
from ptx_memory import GlobalMemory, OutOfBounds, Race
from ptx_parse import PtxError, parse

HEAD = """
.visible .entry kernel(.param .u64 kernel_param_0, .param .u64 kernel_param_1)
{
	.reg .pred 	%p<9>;
	.reg .b32 	%r<99>;
	.reg .b64 	%rd<99>;
	ld.param.b64 %rd1, [kernel_param_0];
	ld.param.b64 %rd2, [kernel_param_1];
	mov.u32 %r1, %tid.x;
	mov.b32 %r2, global_smem;
	mul.wide.u32 %rd3, %r1, 4;
	add.s64 %rd4, %rd1, %rd3;
	add.s64 %rd5, %rd2, %rd3;
	shl.b32 %r3, %r1, 2;
	add.s32 %r4, %r2, %r3;
	xor.b32 %r5, %r4, 128;
	xor.b32 %r6, %r4, 4;
"""  # %rd4 and %rd5: a thread's element; %r4: its word, %r5: of another warp, %r6: of the same one


def run(body, x=None, y=None, threads=64, blocks=1):
    """Run the statements after HEAD on x and y; y afterwards."""
    x = torch.arange(64.0) if x is None else x
    y = torch.zeros(64) if y is None else y
    memory = GlobalMemory()
    parameters = [memory.add(t) for t in (x, y)]
    program = parse(HEAD + "\n".join(f"\t{s};" for s in body.split("; ")) + "\n$end:\n\tret;\n}\n")
    run_grid(program, (blocks, 1, 1), threads, 256, memory, parameters)
    return y


LOAD, STORE = "ld.global.b32 {%r9}, [%rd4]; ", "; st.global.b32 [%rd5], {%r9}"
TO_SHARED, BARRIER = LOAD + "st.shared.b32 [%r4], {%r9}; ", "bar.sync 0; "
COPY = "cp.async.ca.shared.global [%r4], [%rd4], 4; cp.async.commit_group; "


def test_threads_exchange_through_shared_memory():
    y = run(TO_SHARED + BARRIER + "ld.shared.b32 %r9, [%r5]" + STORE)
    assert y.equal(torch.arange(64.0).roll(32))
    assert run(
        COPY + "cp.async.wait_group 0; " + BARRIER + "ld.shared.b32 %r9, [%r5]" + STORE
    ).equal(y)


@pytest.mark.parametrize("other", ["%r5", "%r6"])
def test_a_race_is_found_between_warps_and_inside_of_one(other):
    with pytest.raises(Race, match="read that another thread wrote"):
        run(TO_SHARED + f"ld.shared.b32 %r9, [{other}]")
    with pytest.raises(Race, match="written that another thread read"):
        run(TO_SHARED + BARRIER + f"ld.shared.b32 %r9, [{other}]; st.shared.b32 [%r4], {{%r9}}")
    with pytest.raises(Race, match="written that another thread wrote"):
        run(TO_SHARED + f"st.shared.b32 [{other}], {{%r9}}")


def test_one_address_with_two_values_is_a_race():
    with pytest.raises(Race, match="different values to one shared"):
        run(LOAD + "st.shared.b32 [%r2], {%r9}")
    with pytest.raises(Race, match="different values to one global"):
        run(LOAD + "st.global.b32 [%rd2], {%r9}")


def test_blocks_that_use_one_address_are_a_race():
    with pytest.raises(Race, match="another block"):
        run(LOAD + STORE[2:], blocks=2)


def test_a_copy_is_not_there_before_it_is_waited_for():
    with pytest.raises(Race, match="not waited for"):
        run(COPY + BARRIER + "ld.shared.b32 %r9, [%r4]")
    with pytest.raises(Race, match="not waited for"):  # one group may still be under way
        run(COPY + "cp.async.wait_group 1; " + BARRIER + "ld.shared.b32 %r9, [%r4]")
    with pytest.raises(Race, match="read that another thread wrote"):  # a barrier is needed too
        run(COPY + "cp.async.wait_group 0; ld.shared.b32 %r9, [%r5]")
    with pytest.raises(PtxError, match="ends with a cp"):
        run(COPY[:-2])


def test_every_tensor_is_alone():
    memory = torch.arange(128.0)
    with pytest.raises(OutOfBounds, match="read outside of a"):
        run(LOAD[:-2], x=memory[:63])
    with pytest.raises(OutOfBounds, match="write outside of a"):
        run(LOAD + STORE[2:], y=memory[64:127])
    with pytest.raises(OutOfBounds, match="read outside of a"):  # in the gap between two rows
        run(LOAD[:-2], x=memory.view(4, 32)[:, :31])
    masked = "setp.lt.u32 %p1, %r1, 63; mov.u32 %r9, 0; @%p1 ld.global.b32 {%r9}, [%rd4]"
    assert run(masked + STORE, x=memory[:63]).equal(torch.cat([memory[:63], torch.zeros(1)]))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("ld.global.v2.b32 {%r9, %r10}, [%rd4]", "an access of 8 bytes"),
        ("ld.shared.b32 %r9, [%r4]", "never written"),
        ("add.s32 %r9, %r10, 1", "%r10 is read before it is written"),
        ("setp.lt.u32 %p1, %r1, 7; @%p1 bra $end", "only some threads"),
        ("atom.global.add.f32 %r9, [%rd4], %r1", "unknown instruction atom"),
        ("sin.approx.f32 %r9, %r1", "unknown instruction sin"),
        ("@%p1 bar.sync 0", "a barrier with a predicate"),
    ],
)
def test_what_a_gpu_or_this_machine_cannot_do_is_refused(body, says):
    with pytest.raises(PtxError, match=says):
        run(body)


@pytest.mark.parametrize("opcode", RELATIVE, ids=".".join)
def test_an_approximate_instruction_errs_within_its_bound(opcode):
    x = np.linspace(0.6, 70, 4001, dtype=np.float32)
    operands = [x, x[::-1].copy()] if opcode[0] == "div" else [x]
    exact = {"div": np.divide, "rsqrt": lambda a: a**-0.5, "rcp": lambda a: 1 / a, "ex2": np.exp2,
             "lg2": np.log2, "sqrt": np.sqrt, "tanh": np.tanh}[opcode[0]](
        *(o.astype(np.float64) for o in operands)
    )  # fmt: skip
    got = approximate((*opcode, "f32"), *operands)
    scale = np.maximum(abs(exact), 1) if opcode[0] == "lg2" else abs(exact)
    error = (abs(got - exact) / scale).max()
    half = 2.0**-24  # the result is a float32
    assert 0.9 * RELATIVE[opcode] <= error <= RELATIVE[opcode] + half
    assert np.array_equal(got, approximate((*opcode, "f32"), *operands))


def test_subnormals_are_flushed_where_the_instruction_says_so():
    tiny = np.array([1e-40, -1e-40, 4.0], np.float32)
    assert approximate(("sqrt", "approx", "ftz", "f32"), tiny)[:2].tolist() == [0, 0]
    assert approximate(("sqrt", "approx", "f32"), abs(tiny))[0] > 1e-21
    add, add_ftz = (operation(("add", *mode, "f32"))[1] for mode in ((), ("ftz",)))
    assert add(tiny, tiny)[0] > 0 == add_ftz(tiny, tiny)[0]


def test_bits_are_those_of_the_manual():
    one = np.array([0b1011_0100], np.uint32)
    field = [np.array([n], np.uint32) for n in (4, 4)]
    assert operation(("bfe", "u32"))[1](one, *field) == 0b1011
    assert operation(("bfe", "s32"))[1](one, *field).view(np.int32) == 0b1011 - 16
    a, b = (np.array([n], np.uint32) for n in (0x33221100, 0x77665544))
    assert operation(("prmt", "b32"))[1](a, b, np.array([0x5410], np.uint32)) == 0x55441100
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    ours = to_bfloat16(x.numpy()).view(np.int16)
    assert np.array_equal(ours, x.bfloat16().view(torch.int16).numpy())
