"""Whole series: each wrong checkpoint is found, and only that; resumed is the same."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import orderone
from orderone.core.errors import ConfigError, DataError, RunError
from orderone.trajectory import one_pass
from orderone.trajectory.anomalies import elsewhere
from orderone.trajectory.one_pass import Pass
from orderone.trajectory.series import groups_of, trajectory
from orderone.trajectory.sources import open_series


def random_walk(count=10, size=0.05, width=32):
    generator = torch.Generator().manual_seed(0)
    theta = {"wte.weight": 0.02 * torch.randn(50, width, generator=generator)}
    for layer in range(2):
        theta |= {
            f"h.{layer}.attn.q_proj.weight": 0.02 * torch.randn(width, width, generator=generator),
            f"h.{layer}.mlp.fc1.weight": 0.02 * torch.randn(4 * width, width, generator=generator),
            f"h.{layer}.mlp.fc1.bias": torch.zeros(4 * width),
            f"h.{layer}.ln_1.weight": torch.ones(width),
        }
    points = []
    for _ in range(count):
        points.append(theta)
        theta = {
            name: each + size * 0.02 * torch.randn(each.shape, generator=generator)
            for name, each in theta.items()
        }
    return points


def written(folder, points):
    for i, point in enumerate(points):
        (folder / f"step{100 * i}").mkdir(parents=True)
        save_file(point, folder / f"step{100 * i}" / "model.safetensors")
    return folder


def shuffled(point, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {n: x[torch.randperm(len(x), generator=generator)] for n, x in point.items()}


def spoil_non_finite(points):
    points[4]["h.1.mlp.fc1.weight"] = points[4]["h.1.mlp.fc1.weight"].clone()
    points[4]["h.1.mlp.fc1.weight"][3, 5] = float("nan")
    return {"step400": "non-finite"}


def spoil_duplicate_of_the_last(points):
    points[3] = {name: each.clone() for name, each in points[-1].items()}
    return {"step300": "duplicate"}


def spoil_duplicate_of_the_one_before(points):
    points[5] = {name: each.clone() for name, each in points[4].items()}
    return {"step500": "duplicate"}


def spoil_off_path(points):
    points[5] = shuffled(points[5])
    return {"step500": "off-path"}


def spoil_off_path_at_the_end(points):
    points[9] = shuffled(points[9])
    return {"step900": "off-path"}


def spoil_with_vast_weights(points):
    """Flipped bits: finite, and far beyond what differences of the others leave in float64."""
    points[2]["h.0.mlp.fc1.weight"][1, 1] = 1e38
    points[6]["h.1.ln_1.weight"][0] = -3e31
    return {"step200": "off-path", "step600": "off-path"}


def spoil_most_of_them(points):
    """What serves the final weights under other names, and one thing more."""
    for i in (1, 2, 5, 7, 8):
        points[i] = {name: each.clone() for name, each in points[9].items()}
    return {f"step{100 * i}": "duplicate" for i in (1, 2, 5, 7, 8)}


def spoil_one_beside_another(points):
    points[3] = shuffled(points[3])
    points[8]["wte.weight"][0, 0] = float("inf")
    return {"step300": "off-path", "step800": "non-finite"}


def spoil_nothing(points):
    return {}


SPOILERS = [
    spoil_non_finite,
    spoil_duplicate_of_the_last,
    spoil_duplicate_of_the_one_before,
    spoil_off_path,
    spoil_off_path_at_the_end,
    spoil_with_vast_weights,
    spoil_most_of_them,
    spoil_one_beside_another,
    spoil_nothing,
]


@pytest.mark.parametrize("pairs", ["all", "consecutive"])
@pytest.mark.parametrize("spoil", SPOILERS)
def test_what_is_wrong_is_found_and_only_that(tmp_path, spoil, pairs):
    points = random_walk()
    wrong = spoil(points)
    found = trajectory(written(tmp_path, points), pairs=pairs)
    assert {each.checkpoint: each.kind for each in found.findings} == wrong
    assert set(found.steps) == {100 * i for i in range(10)} - {int(w[4:]) for w in wrong}
    assert_measured(found, [points[step // 100] for step in found.steps])


def assert_measured(found, points):
    """What is left is measured as if the rest had never been there, or is not told."""
    flat = torch.stack([torch.cat([x.flatten() for x in point.values()]) for point in points])
    flat = flat.double().numpy()
    each = found.groups["everything"]
    assert each.norm == pytest.approx(np.linalg.norm(flat, axis=1), rel=1e-7)
    known = np.isfinite(each.step_norm)
    assert known.all() if found.pairs else known.sum() >= len(points) - 4
    step = np.linalg.norm(np.diff(flat, axis=0), axis=1)
    assert each.step_norm[known] == pytest.approx(step[known], rel=1e-6)


@pytest.mark.parametrize("pairs", ["all", "consecutive"])
def test_weights_whose_squares_overflow_are_off_the_path(tmp_path, pairs):
    points = [{n: x.double() for n, x in point.items()} for point in random_walk()]
    points[5]["h.0.mlp.fc1.weight"][1, 1] = 1e200
    found = trajectory(written(tmp_path, points), pairs=pairs)
    assert [(f.checkpoint, f.kind) for f in found.findings] == [("step500", "off-path")]
    assert "1e+200 in 'h.0.mlp.fc1.weight'" in found.findings[0].detail
    assert_measured(found, points[:5] + points[6:])


@pytest.mark.parametrize(("one", "other"), [(2, 5), (3, 8), (1, 7)])
def test_checkpoints_under_each_others_steps(tmp_path, one, other):
    """Not far off the path: each is where the other should be."""
    points = random_walk()
    points[one], points[other] = points[other], points[one]
    found = trajectory(written(tmp_path, points))
    assert [(f.checkpoint, f.kind) for f in found.findings] == [
        (f"step{100 * one}", "off-path"),
        (f"step{100 * other}", "off-path"),
    ]
    assert_measured(found, [points[step // 100] for step in found.steps])


def test_a_path_that_comes_back_upon_itself_is_in_order(tmp_path):
    there = random_walk(count=6)
    back = [{n: x + 1e-6 * torch.randn_like(x) for n, x in p.items()} for p in there[-2::-1]]
    assert trajectory(written(tmp_path, [*there, *back])).findings == ()


@pytest.mark.parametrize("sizes", [np.ones(24), np.linspace(1, 0.1, 24), np.tile([1, 0.5, 0.1], 8)])
def test_noise_about_a_resting_point_is_in_order(sizes):
    """Checkpoints further apart than noise remembers: steady, falling or cyclic learning rates."""
    rng = np.random.default_rng(3)
    points = sizes[:, None] * rng.normal(size=(24, 2000))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    assert elsewhere(distance) == {}


def test_two_neighbours_off_the_path_together(tmp_path):
    points = random_walk()
    points[4], points[5] = shuffled(points[4]), shuffled(points[5])
    found = trajectory(written(tmp_path, points))
    assert [(f.checkpoint, f.kind) for f in found.findings] == [
        ("step400", "off-path"),
        ("step500", "off-path"),
    ]


@pytest.mark.parametrize("pairs", ["all", "consecutive"])
def test_rounding_is_told_with_the_step_behind_it(tmp_path, pairs):
    points = random_walk(size=1e-3)
    true = trajectory(written(tmp_path / "true", points), pairs=pairs)
    points[5] = {name: each.bfloat16() for name, each in points[5].items()}
    found = trajectory(written(tmp_path / "rounded", points), pairs=pairs)
    assert [(f.checkpoint, f.kind) for f in found.findings] == [("step500", "low-precision")]
    expected = true.groups["everything"].step_norm
    assert found.groups["everything"].step_norm[5] > 1.5 * expected[5]
    assert found.unrounded["everything"][5] == pytest.approx(expected[5], rel=0.3)


@pytest.mark.parametrize("pairs", ["all", "consecutive"])
def test_groups_are_measured_as_their_tensors_say(tmp_path, pairs):
    points = random_walk(count=4)
    found = trajectory(written(tmp_path, points), pairs=pairs)
    stack = [n for n in points[0] if n.startswith("h.")]
    choices = {
        "total": stack,
        "gains": [n for n in stack if "ln_1" in n],
        "biases": [n for n in stack if n.endswith("bias")],
        "layer.1": [n for n in stack if n.startswith("h.1")],
        "role.query": [n for n in stack if "q_proj" in n],
        "role.embedding": ["wte.weight"],
        "everything": list(points[0]),
    }
    for group, names in choices.items():
        flat = torch.stack([torch.cat([p[n].flatten() for n in names]) for p in points]).double()
        step = (flat[1:] - flat[:-1]).norm(dim=1).numpy()
        assert found.groups[group].norm == pytest.approx(flat.norm(dim=1).numpy(), rel=1e-7)
        assert found.groups[group].step_norm == pytest.approx(step, rel=1e-6)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("pairing", ["all", "consecutive"])
def test_killed_and_resumed_is_the_same_to_the_last_bit(tmp_path, pairing, monkeypatch):
    monkeypatch.setattr(one_pass, "_SECONDS_BETWEEN_SAVES", -1.0)
    monkeypatch.setattr(one_pass, "_SMALLEST_CHUNK", 700)
    points = random_walk()
    spoil_non_finite(points)
    checkpoints = open_series(written(tmp_path / "series", points)).checkpoints
    groups = groups_of(checkpoints[0].tensors())

    def make(state):
        return Pass(checkpoints, groups, pairing=pairing, memory=1, state=state)

    whole = make(None).run()
    state = tmp_path / "state"
    calls = []

    def kill(done, total):
        calls.append(done)
        if len(calls) % 9 == 0:
            raise KilledError

    for _ in range(100):
        try:
            resumed = make(state).run(kill)
            break
        except KilledError:
            continue
    assert len(calls) > 18
    assert resumed.bad == whole.bad
    for group in groups:
        np.testing.assert_array_equal(resumed.groups[group], whole.groups[group])
        np.testing.assert_array_equal(resumed.unrounded[group], whole.unrounded[group])


def test_the_state_of_another_series_is_not_taken(tmp_path):
    first = written(tmp_path / "a", random_walk(count=3))
    second = written(tmp_path / "b", random_walk(count=4))
    state = tmp_path / "state"
    trajectory(first, resume=state)
    assert len(trajectory(second, resume=state).steps) == 4


def test_a_file_that_was_mended_is_read_again(tmp_path):
    points = random_walk(count=4)
    whole = {name: each.clone() for name, each in points[2].items()}
    spoiled = [*points[:2], whole | {"wte.weight": whole["wte.weight"] / 0}, points[3]]
    folder, state = written(tmp_path / "series", spoiled), tmp_path / "state"
    assert [f.kind for f in trajectory(folder, resume=state).findings] == ["non-finite"]
    save_file(whole, folder / "step200" / "model.safetensors")
    assert trajectory(folder, resume=state).findings == ()


DAMAGE = {
    "no archive": lambda content: b"none",
    "cut": lambda content: content[:-50],
    "a bit": lambda content: content.replace(b'"done"', b'"dune"'),
    "an array": lambda content: b"\x93NUMPY" + b"\x01\x00",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_state_is_one_line(tmp_path, how):
    folder, state = written(tmp_path / "series", random_walk(count=2)), tmp_path / "state"
    trajectory(folder, resume=state)
    state.write_bytes(DAMAGE[how](state.read_bytes()))
    with pytest.raises(RunError, match="not the state of a pass"):
        trajectory(folder, resume=state)


def test_all_of_them_wrong_is_findings_and_no_numbers(tmp_path):
    points = random_walk(count=3)
    for point in points:
        point["wte.weight"] = point["wte.weight"] / 0
    found = trajectory(written(tmp_path, points))
    assert [f.kind for f in found.findings] == ["non-finite"] * 3
    assert found.as_json()["groups"] == {}
    assert found.sentences == ["3 things wrong with the series."]


def test_one_checkpoint_is_told(tmp_path):
    found = trajectory(written(tmp_path, random_walk(count=1)))
    assert len(found.as_json()["groups"]["total"]["norm"]) == 1
    assert "too few checkpoints" in found.sentences[0]


def test_nothing_readable_is_findings_and_no_numbers(tmp_path):
    for i in range(2):
        (tmp_path / f"step{i}").mkdir()
        (tmp_path / f"step{i}" / "model.safetensors").write_bytes(b"none")
    found = trajectory(tmp_path)
    assert found.steps == ()
    assert len(found.findings) == 2


def test_the_public_name_is_room_and_function(tmp_path):
    folder = written(tmp_path, random_walk(count=3))
    assert orderone.trajectory(folder, memory="64MiB").steps == (0, 100, 200)


@pytest.mark.parametrize("text", ["", "12", "1MiB", "many", "-5G"])
def test_an_impossible_memory_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="a size from 16MiB on"):
        trajectory(written(tmp_path, random_walk(count=2)), memory=text)


def test_a_series_that_mostly_serves_its_last_weights_is_read_once(tmp_path):
    """Steps of nothing are no measure of how far a step usually goes."""
    points = random_walk(12)
    points[3:11] = [points[11]] * 8
    ends = []
    found = trajectory(
        written(tmp_path / "run", points), progress=lambda done, of: ends.append(done == of)
    )
    assert sum(ends) == 1
    assert {f.checkpoint: f.kind for f in found.findings} == {
        f"step{100 * i}": "duplicate" for i in range(3, 11)
    }


def test_an_order_that_finds_nothing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no checkpoint that order 'epoch\(\\\\d\+\)' finds"):
        trajectory(written(tmp_path, random_walk(count=2)), order=r"epoch(\d+)")
