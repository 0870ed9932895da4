"""The script that names images: its folds, how images are moved, its files, and what it refuses."""

import itertools
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.testing import assert_allclose, assert_array_equal

from numformer.layer import inference
from numformer.models.vision import VisionTransformer
from numformer.plots import attention_weights
from numformer.runs import load_model, save_model
from toy_tasks import images as page
from toy_tasks.data.images import move_images, with_labels
from toy_tasks.images import ImagesTask, classify, main

TINY = "--steps 2 --d-model 8 --d-ff 8 --heads 2 --layers 1 --batch-size 4 --jobs 2"
RNG = np.random.default_rng(3)
IMAGES = RNG.integers(17, size=(23, 4, 6)).astype(float)
LABELS = np.array(["no", "yes", "perhaps"])[RNG.integers(3, size=23)]


def still(fold: int, batch_size: int = 4) -> ImagesTask:
    return ImagesTask(with_labels(IMAGES, LABELS), fold, batch_size, seed=1, shift=0, turn=0)


def test_each_image_is_tested_once_and_never_by_a_model_that_saw_it():
    tasks = [still(fold, 100) for fold in range(5)]
    assert sorted(np.concatenate([task.test for task in tasks])) == [*range(23)]
    for task in tasks:
        assert sorted([*task.test, *task.training]) == [*range(23)]
        seen = {image.tobytes() for image in task.select(task.training).images}
        drawn = [*task.batch(1).images, *task.batch(2).images]
        assert {image.tobytes() for image in drawn} == seen
    assert (tasks[0].test != sorted(tasks[0].test)).any()


def test_the_sixth_model_is_trained_on_all_images():
    assert sorted(still(5).training) == sorted(still(5).test) == [*range(23)]


def test_descriptions_differ_if_the_fold_or_the_images_do():
    other = ImagesTask(with_labels(IMAGES[::-1], LABELS), 0, 4, seed=1, shift=0, turn=0)
    descriptions = [task.description() for task in (still(0), still(1), other)]
    assert all(descriptions.count(description) == 1 for description in descriptions)
    assert descriptions[0] == still(0, 5).description()


def test_labels_stay_with_their_images():
    task = still(0)
    batch = task.batch(1)
    images = [image.tobytes() for image in task.data.images]
    label_of = dict(zip(images, task.data.labels, strict=True))
    for image, label in zip(batch.images, batch.labels, strict=True):
        assert label_of[image.tobytes()] == label
    assert task.data.classes == ["no", "perhaps", "yes"]
    assert [task.data.classes[label] for label in task.data.labels] == LABELS.tolist()
    assert (task.data.images.max(), task.data.highest) == (1, 16)


def test_the_training_loss_is_the_mean_over_all_images():
    task = still(0)
    sizes = dict(height=4, width=6, channels=1, classes=3, d_model=8, heads=2, d_ff=8, layers=1)
    model = VisionTransformer(VisionTransformer.Config(**sizes))
    with inference():
        whole = model.objective().forward(*task.select(task.training).inputs)
        assert task.evaluate(model) == {task.metric: pytest.approx(float(whole), rel=1e-5)}


@pytest.mark.parametrize("colours", [False, True])
def test_images_are_shifted_and_turned(colours):
    images = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4)
    images = np.stack([images, 2 * images], axis=-1) if colours else images

    def found(down=0.0, right=0.0, angle=0.0):
        return move_images(images, down, right, angle)[0]

    assert_allclose(found(), images[0])
    assert found().dtype == np.float32
    up, right = np.zeros((2, *images[0].shape))
    up[:-1], right[:, 1:] = images[0, 1:], images[0, :, :-1]
    assert_allclose(found(down=-1.0), up)
    assert_allclose(found(right=1.0), right)
    assert_allclose(found(down=-0.25), 0.75 * images[0] + 0.25 * up)
    assert_allclose(found(-0.5, 1.0)[0, 1:], (images[0, 0, :-1] + images[0, 1, :-1]) / 2)
    assert_allclose(found(angle=np.pi), images[0, ::-1, ::-1], atol=1e-4)
    assert_allclose(found(angle=np.pi / 2), np.rot90(images[0], -1), atol=1e-4)
    for far in (-50.0, 50.0):
        assert not found(down=far).any() and not found(right=far).any()
    two = move_images(
        images.repeat(2, axis=0), *np.array([[-1.0, 0], [0, 1]])[..., None, None], 0.0
    )
    assert_allclose(two, [up, right])


def test_a_batch_is_moved_by_at_most_what_was_asked_for(monkeypatch):
    drawn = []
    monkeypatch.setattr(page, "move_images", lambda images, *how: drawn.extend(how) or images)
    ImagesTask(with_labels(IMAGES, LABELS), 0, 2000, 1, shift=0.5, turn=180).batch(1)
    for numbers, most in zip(drawn, (0.5, 0.5, np.pi), strict=True):
        assert most > numbers.max() > 0.99 * most and -most < numbers.min() < -0.99 * most
    assert abs(np.corrcoef(np.squeeze(drawn)) - np.eye(3)).max() < 0.1


def test_an_image_is_named_by_the_mean_of_nine_looks():
    images = RNG.random((600, 4, 4)).astype(np.float32)

    def forward(part):
        return np.stack([9 * part[:, 0, 0], 9 * part[:, 3, 3], 9 * part[:, 2, 1]], axis=1)

    expected = 0
    for down, right in itertools.product((-0.5, 0, 0.5), repeat=2):
        odds = np.exp(forward(move_images(images, down, right, 0.0)))
        expected = expected + odds / odds.sum(axis=1, keepdims=True)
    assert_array_equal(classify(SimpleNamespace(forward=forward), images), expected.argmax(axis=1))


def test_the_drawn_attention_is_from_the_class_token_to_the_patches(pixels):
    """The first of the three tokens before the patches is a register."""
    sizes = dict(height=4, width=6, channels=1, classes=3, d_model=8, d_ff=8, heads=2, layers=1)
    model = VisionTransformer(VisionTransformer.Config(**sizes, registers=1, distilled=True))
    (weights,) = attention_weights(model, IMAGES[:2]).values()
    figure = page.draw_patch_attention("a.png", model, IMAGES[:2], "title")
    drawn = figure.axes[1].images[1].get_array()
    assert_allclose(drawn[::2, ::2].ravel(), weights[0, 0, 1, 3:])
    assert imread("a.png").std() > 0.01


def test_images_of_a_file_are_learned_and_named(succeed, refuse):
    images = np.stack([IMAGES, IMAGES / 2, IMAGES / 4], axis=-1)
    np.savez("mine.npz", images=images, labels=LABELS)
    *_, use, _, accuracy = out = succeed(main, f"--data mine.npz {TINY}")
    assert "--run runs/images/all-images-1 --input" in use
    assert [line[:8] for line in out if line[:3] == "| f"] == [f"| fold {n}" for n in range(1, 6)]
    assert not any(line.startswith("| all") for line in out)
    folder = Path("runs/images")
    folds = [folder / f"fold-{number}-1" for number in range(1, 6)]
    names = {"config.json", "table.md", "attention.png", *(fold.name for fold in folds)}
    names |= {"all-images-1"}
    assert {*os.listdir(folder)} == names
    assert load_model(folder / "all-images-1/best.safetensors")[1]["task"]["fold"] == 5
    right = 0
    for number, fold in enumerate(folds):
        model, metadata = load_model(fold / "best.safetensors")
        assert metadata["best"]["step"] == 2 and model.config.channels == 3
        task = ImagesTask(with_labels(images, LABELS), number, 4, 1, 0, 0)
        right += (
            classify(model, task.select(task.test).images) == task.data.labels[task.test]
        ).sum()
    assert accuracy == f"accuracy {right / 23:.4f}"
    shutil.rmtree(folds[4])  # as if the run had been stopped before it
    assert succeed(main, "--resume")[-1] == accuracy
    np.savez("more.npz", images=images[:7] / 2)  # what is white was said by the others
    quick = f"--data mine.npz {TINY} --quick --no-plots"
    out = succeed(main, f"{quick} --start {folder}/all-images-1 --out further")
    assert "accuracy" in out[-1]
    refuse(main, f"--config {folder}/all-images-1 --data mine.npz", "name the folder of the study")
    out = succeed(main, f"--run {folds[0]} --input more.npz mine.npz")
    model, _ = load_model(folds[0] / "best.safetensors")
    shown = [images[:7] / 2, images]
    expected = [i for part in shown for i in classify(model, (part / 16).astype(np.float32))]
    assert out == [["no", "perhaps", "yes"][i] for i in expected]


def test_the_target_is_the_share_of_all_images(monkeypatch):
    monkeypatch.setattr(page.run_folders, "read_config", lambda folder: {"options": {"data": None}})
    run = dict(tested=100, folder=Path("a/b"))
    for right, reached in ((197, True), (196, False)):
        results = {"all images": [run | {"right": 100}]}
        results |= {"fold 1": [run | {"right": 100}], "fold 2": [run | {"right": right - 100}]}
        what, figures, target = page.verdict(results)
        assert what.startswith("200 images") and figures == {"accuracy": f"{right / 200:.4f}"}
        assert target == ("accuracy 0.985", reached)


def test_what_cannot_be_is_refused_in_one_line_without_a_trace(refuse):
    for arrays, flags, message in (
        ({}, "", "received no such file"),
        (dict(images=IMAGES[:9], labels=LABELS[:9]), "", "different labels; received 9 images"),
        (dict(images=IMAGES, labels=np.ones(23, int)), "", "23 images with 1 different labels"),
        (dict(images=IMAGES), "", "labels is not a file in the archive"),
        (dict(images=IMAGES, labels=LABELS[:22]), "", "shape (22,) of <U7 for 23 images"),
        (dict(images=IMAGES + np.nan, labels=LABELS), "", "received the number nan"),
        (dict(images=IMAGES, labels=LABELS), "--shift -1", "from 0 to 360; received -1.0"),
        (dict(images=IMAGES, labels=LABELS), "--patch 4", "images 4 x 6, patch 4"),
    ):
        if arrays:
            np.savez("mine.npz", **arrays)
        refuse(main, f"--data mine.npz {flags} {TINY}", message)


def test_a_run_names_files_of_images_of_its_size(call, succeed, refuse):
    np.savez("mine.npz", images=IMAGES, labels=LABELS)
    np.savez("other.npz", images=IMAGES[:, :2])
    succeed(main, f"--data mine.npz {TINY} --no-plots")
    use = "--run runs/images/fold-2-1"
    model, _ = load_model(Path("runs/images/fold-2-1/best.safetensors"))
    save_model(Path("mine.safetensors"), model, task="a word")
    for flags, message in {
        use: "--input or --data names files of images; received neither",
        f"{use} --input other.npz": "other.npz with 2 x 6 pixels of 1",
        f"{use} --input mine.npz --temperature 1": "unrecognized arguments: --temperature",
        "--run runs/images --input mine.npz": "such as runs/images/all-images-1.",
        "--run mine.safetensors --input mine.npz": "--run names a run of this task",
    }.items():
        refuse(main, flags, message)
    np.savez("dark.npz", images=IMAGES / 4)
    code, out, err = call(main, f"{use} --input dark.npz")
    assert (code, len(out)) == (0, len(IMAGES)) and "the largest number in dark.npz" in err[0]
