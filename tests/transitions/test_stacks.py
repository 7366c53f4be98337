"""Stacks of frames are stored as frames, and read as the stacks that they were."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest

from t2r_seq import errors, store, transitions

DATA = pathlib.Path(__file__).parent / "data"


def stacks(frames, num_frames=3, axis=0, padding="repeat"):
  """Returns the stack that ends with each frame."""
  front = frames[:1] if padding == "repeat" else np.zeros_like(frames[:1])
  padded = np.concatenate([front] * (num_frames - 1) + [frames])
  return np.stack(
    [padded[i : i + len(frames)] for i in range(num_frames)], axis=1 + axis % 3
  )


def make(lengths=(5, 1, 3), axis=0, padding="repeat", start=0):
  """Makes transitions of 2x1 images, of which the first ones may be missing."""
  parts = []
  for number, length in enumerate(lengths):
    steps = np.arange(length + 1)
    frames = (100 * number + 10 * steps[:, None, None] + [[1], [2]]).astype(np.uint16)
    image, state = stacks(frames, axis=axis, padding=padding), steps[:, None] / 4.0
    part = {
      "obs/image": image[:-1],
      "obs/state": state[:-1],
      "rew": steps[:-1].astype(np.float32),
      "next_obs/image": image[1:],
      "next_obs/state": state[1:],
      "done": steps[1:] == length,
    }
    parts.append(
      {path: values[start * (not number) :] for path, values in part.items()}
    )
  return {path: np.concatenate([part[path] for part in parts]) for path in parts[0]}


# (what is saved, of which axis, rows of the store).
SAVED = {
  "the first frame is repeated": ({}, 0, 9 + 3),
  "zeros come first": ({"padding": "zero"}, 0, 9 + 3),
  "frames on the last axis": ({"axis": 2}, -1, 9 + 3),
  "frames before the first transition": ({"start": 3}, 0, 6 + 3 + 3 * 2),
}


@pytest.mark.parametrize("name", SAVED)
def test_stacks_round_trip_with_frames_stored_once(name, tmp_path, same):
  options, axis, num_rows = SAVED[name]
  given = make(**options)
  transitions.save_transitions(tmp_path / "s", given, stacked={"obs/image": axis})
  opened = store.EpisodeStore(tmp_path / "s")
  assert opened.spec["obs/image"].shape == (2, 1) and opened.num_steps == num_rows
  loaded = transitions.load_transitions(tmp_path / "s")
  assert len(loaded) == len(given["rew"])
  same(loaded.to_numpy(), given)
  assert loaded.spec["obs/image"].shape == given["obs/image"].shape[1:]
  batch = next(iter(loaded.dataset(4, order="sequential")))
  np.testing.assert_array_equal(batch["next_obs/image"], given["next_obs/image"][:4])
  joined = loaded.n_step(2, 0.5).to_numpy(0, 1)
  np.testing.assert_array_equal(joined["next_obs/image"][0], given["next_obs/image"][1])


def broken():
  given = make()
  given["obs/image"][3, 2] = 0
  return given


BAD = {
  "frames that do not fit": (
    lambda path: transitions.save_transitions(path, broken(), stacked={"obs/image": 0}),
    r"next_obs/image: expected the last 2 frames of obs/image, and a new one, got "
    r"others at 3\. Is axis 0",
  ),
  "another axis": (
    lambda path: transitions.save_transitions(path, make(), stacked={"obs/image": 1}),
    "got others at 0",
  ),
  "no such axis": (
    lambda path: transitions.save_transitions(path, make(), stacked={"obs/image": 3}),
    re.escape("obs/image: expected an observation with frames on axis 3, got the shap"),
  ),
  "no observation": (
    lambda path: transitions.save_transitions(path, make(), stacked={"rew": 0}),
    re.escape("stacked: rew: expected one of [obs/image, obs/state], got no such"),
  ),
  "an episode of other stacks": (
    lambda path: transitions.frames_of_stacks(broken()["obs/image"][:5]),
    "stacks: expected the last 2 frames of the step before, and a new one, got others "
    r"at 3\. Is axis 0 .*\? If these are not stacks of consecutive frames, save them "
    r"unchanged\.$",
  ),
  "an episode without its beginning": (
    lambda path: transitions.frames_of_stacks(make()["obs/image"][2:5]),
    "stacks: expected a first stack of its newest frame repeated, or of zeros before",
  ),
  "n-step ones": (
    lambda path: transitions.save_transitions(
      path, make(), n_step=(2, 0.9), stacked={"obs/image": 0}
    ),
    "stacked: expected one-step transitions, got 2-step",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_rejects_invalid_stacks(name, tmp_path):
  save, match = BAD[name]
  with pytest.raises(errors.SpecError, match=match):
    save(tmp_path / "s")
  assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("name", ["stacks", "ring_of_stacks"])
def test_stacks_of_cpprb(name, tmp_path, same):
  path = DATA / f"{name}.npz"
  transitions.import_cpprb(path, tmp_path / "plain")
  transitions.import_cpprb(path, tmp_path / "s", stacked={"obs": -1})
  want = transitions.load_transitions(tmp_path / "plain").to_numpy()
  assert want.obs.shape[1:] == (2, 3, 4)
  same(transitions.load_transitions(tmp_path / "s").to_numpy(), want)
  assert store.EpisodeStore(tmp_path / "s").spec.obs.shape == (2, 3)


def test_stacks_of_gymnasium(tmp_path, same):
  gymnasium = pytest.importorskip("gymnasium")
  env = gymnasium.wrappers.FrameStackObservation(gymnasium.make("CartPole-v1"), 4)
  rows = []
  for seed in range(2):
    obs, _ = env.reset(seed=seed)
    done = False
    while not done:
      next_obs, rew, done, _, _ = env.step(1)
      rows.append((obs, np.float32(rew), next_obs, done))
      obs = next_obs
  names = ("obs", "rew", "next_obs", "done")
  given = dict(zip(names, map(np.stack, zip(*rows, strict=True)), strict=True))
  transitions.save_transitions(tmp_path / "s", given, stacked={"obs": 0})
  same(transitions.load_transitions(tmp_path / "s").to_numpy(), given)
  assert store.EpisodeStore(tmp_path / "s").num_steps == len(rows) + 2
  frames = transitions.frames_of_stacks(given["obs"][: np.argmax(given["done"]) + 1])
  np.testing.assert_array_equal(frames, given["obs"][: len(frames), -1])
