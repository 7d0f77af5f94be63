"""Sets of images against files that the tests write; batches against their own resume."""

import gzip
import itertools
import json
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from orderone.core.errors import ConfigError, DataError, OrderoneError, RunError
from orderone.data.augmentation import Augmentation, augmentation
from orderone.data.images import ImageBatch, ImageBatches, ImageSet, images

SPLITS = ("train", "validation", "test")


def write_idx(path: Path, array: np.ndarray) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
    data = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return data


def write_mnist(
    folder: Path, *, ending: str = "", train: int = 40, test: int = 12
) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte": generator.integers(0, 256, (train, 5, 6)),
        "train-labels-idx1-ubyte": np.arange(train) % 4,
        "t10k-images-idx3-ubyte": generator.integers(0, 256, (test, 5, 6)),
        "t10k-labels-idx1-ubyte": np.arange(test) % 4,
    }
    for name, array in arrays.items():
        write_idx(folder / (name + ending), array)
    return arrays


def write_images(folder: Path, *, count: int = 10, size: tuple[int, int] = (40, 30)) -> None:
    """Class c's images are of one colour, 100·c of red, with the number i as green."""
    for number, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", size, (100 * number, i, 7)).save(folder / name / f"{i:02}.png")


def assert_one_line(error: OrderoneError, *words: object) -> None:
    text = str(error)
    assert "\n" not in text
    assert all(str(word) in text for word in words), text


# digits


def test_digits_are_all_there_once() -> None:
    """The splits together are scikit-learn's 1797, each once; classes keep their share."""
    source = images("digits")
    pixels, _ = load_digits(return_X_y=True)
    together = torch.cat([getattr(source, part).images for part in SPLITS]).flatten(1) * 16
    mine = sorted(map(tuple, together.long().tolist()))
    assert mine == sorted(map(tuple, pixels.astype(int).tolist()))
    assert source.shape == (1, 8, 8)
    for digit in range(10):
        counts = [int((getattr(source, part).labels == digit).sum()) for part in SPLITS]
        total = sum(counts)
        assert abs(counts[2] - 0.2 * total) < 2
        assert abs(counts[1] - 0.1 * total) < 1


def test_digits_keep_their_labels_and_are_the_same_every_time() -> None:
    pixels, numbers = load_digits(return_X_y=True)
    label_of = {
        tuple(image): number
        for image, number in zip(pixels.astype(int).tolist(), numbers.tolist(), strict=True)
    }
    one, two = images("digits"), images("digits")
    for part in SPLITS:
        split, again = getattr(one, part), getattr(two, part)
        assert torch.equal(split.images, again.images)
        shown = (split.images.flatten(1) * 16).long().tolist()
        assert [label_of[tuple(image)] for image in shown] == split.labels.tolist()


def test_normalised_training_images_have_unit_moments() -> None:
    source = images("digits")
    batches = ImageBatches(source, batch_size=len(source.train), shuffle=False, epochs=1)
    batch = next(batches).images.double()
    assert abs(batch.mean().item()) < 1e-6
    assert abs(batch.var(correction=0).item() - 1) < 1e-5


def test_size_makes_images_that_size() -> None:
    """Bilinear enlargement keeps a constant image constant and the mean of the set nearly so."""
    source, large = images("digits"), images("digits", size=16)
    assert large.shape == (1, 16, 16)
    assert large.train.images.max() <= 1
    assert abs(large.mean[0] - source.mean[0]) < 0.02
    assert torch.equal(large.train.labels, source.train.labels)


# MNIST-format files


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files_round_trip(tmp_path: Path, ending: str) -> None:
    arrays = write_mnist(tmp_path, ending=ending)
    source = images(tmp_path)
    assert torch.equal(
        source.test.images[:, 0], torch.from_numpy(arrays["t10k-images-idx3-ubyte"]).byte()
    )
    assert source.test.labels.tolist() == arrays["t10k-labels-idx1-ubyte"].tolist()
    labelled = {
        (image.tobytes(), label)
        for image, label in zip(
            arrays["train-images-idx3-ubyte"].astype(np.uint8),
            arrays["train-labels-idx1-ubyte"],
            strict=True,
        )
    }
    found = [
        (image.numpy().tobytes(), label)
        for split in (source.train, source.validation)
        for image, label in zip(split.images[:, 0], split.labels.tolist(), strict=True)
    ]
    assert set(found) == labelled
    assert len(found) == 40
    assert source.classes == ("0", "1", "2", "3")
    assert torch.equal(source.train.take(torch.tensor([0])) * 255, source.train.images[:1].float())


def test_mnist_by_name(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    assert images("mnist", folder=tmp_path).name == "mnist"
    with pytest.raises(DataError) as caught:
        images("mnist")
    assert_one_line(caught.value, "mnist", "train-images-idx3-ubyte.gz", "folder")


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("cut", [0, 3, 10, 16, 500, -1])
def test_truncated_idx_files_are_refused(tmp_path: Path, ending: str, cut: int) -> None:
    write_mnist(tmp_path, ending=ending)
    path = tmp_path / f"train-images-idx3-ubyte{ending}"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError) as caught:
        images(tmp_path)
    assert_one_line(caught.value, path)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_data_that_is_too_short_or_too_long_is_refused(tmp_path: Path, ending: str) -> None:
    write_mnist(tmp_path, ending=ending)
    path = tmp_path / f"train-images-idx3-ubyte{ending}"
    whole = path.read_bytes() if not ending else gzip.decompress(path.read_bytes())
    for data in (whole[:-1], whole + b"x"):
        path.write_bytes(gzip.compress(data) if ending else data)
        with pytest.raises(DataError, match=r"promises (40×5×6 = )?1200 bytes and holds"):
            images(tmp_path)


def test_corrupt_gzip_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, ending=".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    data = bytearray(path.read_bytes())
    data[200:260] = bytes(60)
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        images(tmp_path)
    assert_one_line(caught.value, path)


def test_wrong_magic_is_refused(tmp_path: Path) -> None:
    arrays = write_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    write_idx(path, arrays["train-labels-idx1-ubyte"])
    with pytest.raises(DataError, match="0x00000801, not 0x00000803"):
        images(tmp_path)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_absurd_counts_allocate_nothing(tmp_path: Path, ending: str) -> None:
    """A header that promises 2^96 bytes, or 2 GB of zeros, is refused at the cost of the header."""
    write_mnist(tmp_path, ending=ending)
    path = tmp_path / f"train-images-idx3-ubyte{ending}"
    held = "than 128 compressed" if ending else "bytes and holds 100;"
    cases = [((0xFFFFFFFF,) * 3, "over"), ((2_000_000, 32, 32), held), ((70_000, 0, 28), "0×28")]
    for shape, said in cases:
        data = struct.pack(">4I", 0x0803, *shape) + bytes(100)
        path.write_bytes(gzip.compress(data) if ending else data)
        tracemalloc.start()
        with pytest.raises(DataError) as caught:
            images(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert_one_line(caught.value, path, said.replace("128", str(path.stat().st_size)))
        assert peak < 4 << 20


def test_unequal_counts_and_missing_files_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(39))
    with pytest.raises(DataError, match=r"40 images .* 39 labels"):
        images(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="no train-labels"):
        images(tmp_path)


# folders of images


def test_folder_without_splits(tmp_path: Path) -> None:
    """Every file is in one split and carries its class (its red) as label."""
    write_images(tmp_path)
    source = images(tmp_path, size=14)
    assert source.classes == ("cat", "dog")
    assert [len(getattr(source, part)) for part in SPLITS] == [16, 2, 2]
    seen: set[tuple[int, int]] = set()
    for part in SPLITS:
        split = getattr(source, part)
        shown = split.images[torch.arange(len(split))]
        assert shown.shape[1:] == (3, 14, 14)
        assert (shown[:, 0, 0, 0] == 100 * split.labels).all()
        seen |= {(int(image[0, 0, 0]), int(image[1, 0, 0])) for image in shown}
    assert len(seen) == 20


def test_folder_with_splits(tmp_path: Path) -> None:
    for part, count in (("train", 5), ("val", 3), ("test", 2)):
        write_images(tmp_path / part, count=count)
    source = images(tmp_path, size=8)
    assert [len(getattr(source, part)) for part in SPLITS] == [10, 6, 4]
    (tmp_path / "val" / "wolf").mkdir()
    with pytest.raises(DataError) as caught:
        images(tmp_path)
    assert_one_line(caught.value, "wolf", "cat, dog")


def test_decoding_cuts_the_centre(tmp_path: Path) -> None:
    """Against Pillow in two steps, resize 256/224 and then crop; both orientations."""
    pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 3)).astype(np.uint8)
    smooth = Image.fromarray(pixels).resize((120, 90), Image.Resampling.BICUBIC)
    (tmp_path / "a").mkdir()
    for picture, shape in (
        (smooth, (85, 64)),
        (smooth.transpose(Image.Transpose.ROTATE_90), (64, 85)),
    ):
        picture.save(tmp_path / "a" / "x.png")
        source = images(tmp_path, size=56)
        left, top = (shape[0] - 56) // 2, (shape[1] - 56) // 2
        crop = picture.resize(shape, Image.Resampling.BICUBIC).crop(
            (left, top, left + 56, top + 56)
        )
        theirs = torch.from_numpy(np.asarray(crop).copy()).permute(2, 0, 1)
        difference = source.train.images[torch.tensor([0])][0].int() - theirs.int()
        assert difference.abs().max() <= 2


def test_jpeg_grey_and_palette_files_become_rgb(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("L", (20, 20), 50).save(tmp_path / "a" / "grey.JPG")
    Image.new("P", (20, 20)).save(tmp_path / "a" / "palette.png")
    Image.new("RGBA", (20, 20), (50, 50, 50, 9)).save(tmp_path / "a" / "alpha.png")
    (tmp_path / "a" / "notes.txt").write_text("no image")
    shown = images(tmp_path, size=7).train.images[torch.arange(3)]
    assert shown.shape == (3, 3, 7, 7)
    assert sorted(shown[:, 2, 3, 3].tolist()) == [0, 50, 50]


def large_png(width: int, height: int) -> bytes:
    """A PNG that says it has so many pixels; its data is empty."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["text", "empty", "truncated", "bomb", "small bomb"])
def test_unusable_images_are_named(tmp_path: Path, kind: str) -> None:
    write_images(tmp_path, size=(100, 100))
    path = tmp_path / "dog" / "03.png"
    path.write_bytes(
        {
            "text": b"this is no image",
            "empty": b"",
            "truncated": path.read_bytes()[:-60],
            "bomb": large_png(60_000, 60_000),
            "small bomb": large_png(10_000, 10_000),  # where Pillow alone would only warn
        }[kind]
    )
    source = images(tmp_path, size=8)
    with pytest.raises(DataError) as caught:
        source.train.take(torch.arange(len(source.train)))
    assert_one_line(caught.value, path, "pixels" if "bomb" in kind else "")


@pytest.mark.parametrize("name", ["digit", "no/such/folder", "mnits"])
def test_unknown_names_are_one_line(name: str) -> None:
    with pytest.raises(DataError) as caught:
        images(name)
    assert_one_line(caught.value, name, "digits, mnist")


def test_empty_folders_and_sizes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        images(tmp_path)
    assert_one_line(caught.value, "holds no images", tmp_path)
    write_images(tmp_path)
    (tmp_path / "eel").mkdir()
    with pytest.raises(DataError) as caught:
        images(tmp_path)
    assert_one_line(caught.value, "eel", "no image")
    for size in (0, -1, 10**9):
        with pytest.raises(ConfigError):
            images("digits", size=size)


# batches


@pytest.fixture(scope="module")
def digits() -> ImageSet:
    return images("digits")


def same(one: ImageBatch, other: ImageBatch) -> bool:
    return torch.equal(one.images, other.images) and torch.equal(one.targets, other.targets)


@pytest.mark.parametrize("recipe", ["none", "light", "paper"])
@pytest.mark.parametrize("before", [0, 3, 10, 11])
def test_resume_is_bit_equal(digits: ImageSet, recipe: str, before: int) -> None:
    """Saved through JSON mid-epoch, at its end and in the next one (10 batches an epoch)."""

    def make() -> ImageBatches:
        return ImageBatches(digits, batch_size=120, augmentation=augmentation(recipe), seed=5)

    whole = make()
    assert whole.steps_per_epoch == 10
    for _ in range(before):
        next(whole)
    state = json.dumps(whole.state_dict())
    assert len(state) < 1000
    resumed = make()
    next(resumed)  # a loader that has already been used goes to the saved place all the same
    resumed.load_state_dict(json.loads(state))
    torch.manual_seed(before)
    for _ in range(3):
        assert same(next(whole), next(resumed))


def test_an_epoch_has_every_image_once_in_a_new_order(digits: ImageSet) -> None:
    batches = ImageBatches(digits, batch_size=100, epochs=2)
    pixels = [[tuple(image) for image in batch.images.flatten(1).tolist()] for batch in batches]
    per_epoch = batches.steps_per_epoch
    assert len(pixels) == 2 * per_epoch
    assert per_epoch == len(digits.train) // 100
    first, second = ([*itertools.chain(*pixels[i : i + per_epoch])] for i in (0, per_epoch))
    assert len(set(first)) == len(set(second)) == 100 * per_epoch
    assert first != second
    other = next(ImageBatches(digits, batch_size=100, seed=1))
    assert [tuple(image) for image in other.images.flatten(1).tolist()] != pixels[0]
    assert list(batches) == []


def test_a_pass_in_order_is_the_split_itself(digits: ImageSet) -> None:
    batches = ImageBatches(digits, batch_size=50, split="test", shuffle=False, epochs=1)
    targets = torch.cat([batch.targets for batch in batches])
    assert torch.equal(targets, digits.test.labels)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_share_the_batch_of_one(digits: ImageSet, world: int) -> None:
    """Interleaved again, the ranks' batches are bit for bit those of one process."""
    one = ImageBatches(digits, batch_size=24, seed=2)
    ranks = [
        ImageBatches(digits, batch_size=24 // world, seed=2, rank=rank, world=world)
        for rank in range(world)
    ]
    for whole, *parts in itertools.islice(zip(one, *ranks, strict=True), 60):
        together = torch.stack([part.images for part in parts], dim=1).flatten(0, 1)
        assert torch.equal(together, whole.images)


def test_ranks_augment_differently(digits: ImageSet) -> None:
    """The same image on two ranks gets two different draws."""
    recipe = Augmentation(erasing=1.0)
    batches = [
        ImageBatches(digits, batch_size=8, augmentation=recipe, rank=rank, world=2)
        for rank in range(2)
    ]
    changed = [
        (next(one).images != next(plain).images)
        for one, plain in zip(
            batches,
            [ImageBatches(digits, batch_size=8, rank=r, world=2) for r in range(2)],
            strict=True,
        )
    ]
    assert not torch.equal(*changed)


def test_steps_augment_differently(digits: ImageSet) -> None:
    """Places of the erased pixels in step 0 and in step 1, every image being erased."""
    recipe = Augmentation(erasing=1.0)
    erased, plain = (
        ImageBatches(digits, batch_size=8, augmentation=chosen)
        for chosen in (recipe, augmentation("none"))
    )
    first, second = (next(erased).images != next(plain).images for _ in range(2))
    assert not torch.equal(first, second)


def test_targets_are_soft_only_where_asked(digits: ImageSet) -> None:
    hard = next(ImageBatches(digits, batch_size=16))
    assert hard.targets.dtype == torch.int64
    soft = next(ImageBatches(digits, batch_size=16, augmentation=augmentation("paper")))
    assert soft.targets.shape == (16, 10)
    torch.testing.assert_close(soft.targets.sum(1), torch.ones(16))


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"batch_size": 60}, {"split": "test"}, {"augmentation": augmentation("light")}],
)
def test_a_place_in_other_data_is_refused(digits: ImageSet, change: dict[str, object]) -> None:
    state = ImageBatches(digits, batch_size=30).state_dict()
    other = ImageBatches(digits, **{"batch_size": 30, **change})
    with pytest.raises(RunError) as caught:
        other.load_state_dict(state)
    assert_one_line(caught.value, "saved place")


@pytest.mark.parametrize("step", [-1, 2.5, "3", None, True])
def test_a_bad_saved_step_is_refused(digits: ImageSet, step: object) -> None:
    batches = ImageBatches(digits, batch_size=30)
    with pytest.raises(RunError, match="saved step"):
        batches.load_state_dict({**batches.state_dict(), "step": step})


@pytest.mark.parametrize(
    "change",
    [{"batch_size": 0}, {"rank": 2, "world": 2}, {"world": 0}, {"seed": -1}, {"batch_size": 5000}],
)
def test_impossible_batches_are_refused(digits: ImageSet, change: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        ImageBatches(digits, **{"batch_size": 10, **change})
