import math
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from orderone.core.errors import ModelError
from orderone.core.reductions import (
    cosine,
    dot,
    norm,
    one_minus_cosine,
    squared_distance,
    squared_norm,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
SIZES = [(), (0,), (1,), (3, 0, 2), (511,), (40_001,), (300, 257), (1000, 1029)]


def random(shape, dtype=torch.float32, seed=0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def exact(a: Tensor, b: Tensor) -> float:
    """math.fsum rounds once: an implementation that shares nothing with ours."""
    products = a.double().flatten() * b.double().flatten()
    return math.fsum(products.tolist())


def assert_close(found: Tensor, expected: float, scale: float, tolerance: float = 1e-7) -> None:
    assert found.dtype == torch.float64
    assert found.shape == ()
    assert abs(float(found) - expected) <= tolerance * scale


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_matches_exact_sums(shape, dtype):
    a, b = random(shape, dtype), random(shape, dtype, seed=1)
    aa, bb, ab = exact(a, a), exact(b, b), exact(a, b)
    difference = a.double() - b.double()
    dd = exact(difference, difference)
    assert_close(squared_norm(a), aa, aa)
    assert_close(norm(a), aa**0.5, aa**0.5, 5e-8)
    assert_close(dot(a, b), ab, (aa * bb) ** 0.5)
    assert_close(squared_distance(a, b), dd, dd)


@pytest.mark.parametrize("value", [0.1, 0.02, 1 / 3, 0.7])
def test_constant_tensors_whose_rounding_errors_all_point_one_way(value):
    x = torch.full((3_000_001,), value)
    expected = 3_000_001 * float(x[0].double()) ** 2
    assert_close(squared_norm(x), expected, expected)
    assert_close(dot(x, x), expected, expected)
    naive = float(torch.linalg.vector_norm(x).double().square())
    assert abs(naive / expected - 1) > 1e-5, "the trap that this test is about is gone"


@pytest.mark.parametrize("power", [-30, -22, 22, 30])
def test_squares_beyond_the_range_of_float32(power):
    x = random((100_003,)) * 10.0**power
    expected = exact(x, x)
    assert_close(squared_norm(x), expected, expected)
    assert_close(dot(x, -x), -expected, expected)
    assert_close(squared_distance(x, -x), 4 * expected, 4 * expected)


def test_small_elements_beside_large_ones_and_rows_of_zeros():
    x = torch.cat([random((70_000,)) * 1e25, torch.zeros(70_000), random((70_000,)) * 1e-25])
    assert_close(squared_norm(x), exact(x, x), exact(x, x))
    small = torch.cat([torch.zeros(70_000), random((70_000,)) * 1e-25])
    assert_close(squared_norm(small), exact(small, small), exact(small, small))


def test_float16_beyond_its_own_range():
    x = torch.full((200_000,), 60_000.0, dtype=torch.float16)
    expected = 200_000 * float(x[0].double()) ** 2
    assert_close(squared_norm(x), expected, expected)
    assert_close(squared_distance(x, -x), 4 * expected, 4 * expected)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_what_is_not_finite_stays_so(bad):
    x = random((100_000,))
    x[77_777] = bad
    assert float(norm(x)) == bad or math.isnan(bad)
    assert not math.isfinite(float(norm(x)))
    assert not math.isfinite(float(dot(x, x)))


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.t(),
    lambda x: x[::2, 1:],
    lambda x: x[:, :1].expand(-1, 300),
    lambda x: x.reshape(-1, 2, 150).permute(2, 0, 1),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", LAYOUTS)
def test_any_memory_layout(layout, other):
    a, b = layout(random((400, 300))), other(random((400, 300), seed=1))
    assert_close(norm(a), exact(a, a) ** 0.5, exact(a, a) ** 0.5)
    if a.shape == b.shape:
        assert_close(dot(a, b), exact(a, b), (exact(a, a) * exact(b, b)) ** 0.5)
    contiguous = a.clone(memory_format=torch.contiguous_format)
    assert float(squared_distance(a, contiguous)) == 0.0


def rotated(shape, target: float, growth: float) -> tuple[Tensor, Tensor]:
    """Float64 tensors a, b with 1 − cos = target and ‖b‖ = growth‖a‖."""
    a = random(shape, torch.float64)
    across = random(shape, torch.float64, seed=1)
    across -= (across.flatten() @ a.flatten()) / (a.flatten() @ a.flatten()) * a
    across *= a.norm() / across.norm()
    cos = 1 - target
    return a, growth * (cos * a + (1 - cos**2) ** 0.5 * across)


def reference(a: Tensor, b: Tensor) -> float:
    """1 − cos of the given digits: sin² from the 2-form |a∧b|² in float64 residuals, by fsum."""
    a, b = a.double().flatten(), b.double().flatten()
    aa, bb = exact(a, a), exact(b, b)
    rest = b - exact(a, b) / aa * a
    return exact(rest, rest) / bb / (1 + exact(a, b) / (aa * bb) ** 0.5)


@pytest.mark.parametrize("growth", [1.0, 1.01, 3.7, 1e-3])
@pytest.mark.parametrize("power", range(-9, -1))
def test_one_minus_cosine_keeps_its_digits(power, growth):
    a, b = (x.float() for x in rotated((300_007,), 10.0**power, growth))
    expected = reference(a, b)
    assert expected == pytest.approx(10.0**power, rel=1e-3)
    assert float(one_minus_cosine(a, b)) == pytest.approx(expected, rel=1e-5)
    assert float(one_minus_cosine(b, a)) == pytest.approx(expected, rel=1e-5)
    parts = {"a": slice(0, 100), "b": slice(100, 300_007)}
    split = one_minus_cosine(
        {k: a[each] for k, each in parts.items()}, {k: b[each] for k, each in parts.items()}
    )
    assert float(split) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_one_minus_cosine_in_other_dtypes(dtype):
    a, b = (x.to(dtype) for x in rotated((100_001,), 1e-2, 1.3))
    assert float(one_minus_cosine(a, b)) == pytest.approx(reference(a, b), rel=1e-6)


def test_angles_at_the_ends():
    a = random((50_000,))
    assert 0.0 <= float(one_minus_cosine(a, a)) < 1e-15
    assert float(one_minus_cosine(a, 2 * a)) < 1e-15
    assert float(one_minus_cosine(a, -a)) == pytest.approx(2.0, abs=1e-7)
    assert float(cosine(a, -a)) == pytest.approx(-1.0, abs=1e-7)
    assert math.isnan(float(cosine(a, torch.zeros_like(a))))
    assert math.isnan(float(one_minus_cosine(torch.zeros_like(a), a)))


def test_a_mapping_is_the_sum_over_its_entries():
    a = {"w": random((400, 300)), "b": random((300,), torch.bfloat16), "none": torch.zeros(0)}
    b = {name: random(x.shape, x.dtype, seed=2) for name, x in reversed(a.items())}
    assert_close(squared_norm(a), sum(exact(x, x) for x in a.values()), 120_300)
    assert_close(dot(a, b), sum(exact(a[n], b[n]) for n in a), 120_300)
    assert float(norm({})) == 0.0


def test_refusals_name_what_differs():
    x = random((3,))
    with pytest.raises(ModelError, match="entry 'v' on one side only"):
        dot({"w": x}, {"w": x, "v": x})
    with pytest.raises(ModelError, match=r"tensor 'w' of shapes \(3,\) and \(2,\)"):
        dot({"w": x}, {"w": x[:2]})
    with pytest.raises(ModelError, match="int64"):
        norm(torch.arange(3))


def test_nothing_is_differentiated():
    x = random((10,)).requires_grad_()
    assert not norm(x).requires_grad


def on_two_ranks(rank: int, address: str) -> None:
    """DTensors in every placement, uneven shards included, give the unsharded numbers."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,))
        a, b = random((333, 301)), random((333, 301), seed=1)
        plain = {f.__name__: float(f(a, b)) for f in (dot, squared_distance, one_minus_cosine)}
        for placement in (Shard(0), Shard(1), Replicate()):
            x, y = (distribute_tensor(each, mesh, [placement]) for each in (a, b))
            other = y.redistribute(mesh, [Shard(0)])
            for f in (dot, squared_distance, one_minus_cosine):
                for right in (y, other):
                    # Absolute for the dot, whose terms cancel: relative to ‖a‖‖b‖ ≈ 1e5.
                    assert float(f(x, right)) == pytest.approx(plain[f.__name__], 1e-8, 1e-4)
            assert float(norm(x)) == pytest.approx(float(norm(a)), rel=2e-8)
        check_partial_and_mixed(rank, mesh, a)
    finally:
        dist.destroy_process_group()


def check_partial_and_mixed(rank: int, mesh, a: Tensor) -> None:
    # Halves whose sum is a: the sum of the halves' squared norms would be wrong.
    part = DTensor.from_local(a * (0.25 if rank == 0 else 0.75), mesh, [Partial()], run_check=False)
    assert float(norm(part)) == pytest.approx(float(norm(a)), rel=1e-6)
    one = distribute_tensor(random((1,)), mesh, [Shard(0)])  # rank 1 holds nothing
    assert float(norm(one)) == pytest.approx(float(norm(random((1,)))), rel=1e-12)
    mixed = {
        "sharded": distribute_tensor(a, mesh, [Shard(0)]),
        "replicated": distribute_tensor(a, mesh, [Replicate()]),
        "plain": a,
    }
    expected = float(norm(dict.fromkeys(mixed, a)))
    assert float(norm(mixed)) == pytest.approx(expected, rel=2e-8)
    with pytest.raises(ModelError, match="sharded"):
        dot(mixed["sharded"], a)


@pytest.mark.parametrize("scale", [1.0, 1e25])
def test_tensors_of_a_model_together_are_right_to_float64(scale):
    """Lengths that no row divides, and squares beyond float32 in one of them."""
    model = {"a": random((301, 333)), "b": random((70_001,), seed=1)}
    model["c"] = scale * random((64, 1025), seed=2)
    exact = sum(float(x.double().square().sum()) for x in model.values())
    assert float(squared_norm(model)) == pytest.approx(exact, rel=2e-8)


def test_sharded_equals_unsharded(tmp_path):
    address = f"file://{tmp_path / 'meet'}"
    mp.start_processes(on_two_ranks, args=(address,), nprocs=2, start_method="fork")
