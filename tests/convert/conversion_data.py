"""Episodes with every kind of value, and how two folders of files are compared."""

from __future__ import annotations

import hashlib
import os
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import specs, store
from t2r_seq.specs.packing import encode_image

Spec = specs.ExtendedTensorSpec

# What plain arrays can hold.
NUMBERS = {
  "obs/image": Spec((8, 6, 3), tf.uint8, "obs/image", is_sequence=True),
  "obs/pose": Spec((3,), tf.float32, "obs/pose", is_sequence=True),
  "actions": Spec((2,), tf.float64, "actions", is_sequence=True),
  "dones": Spec((), tf.bool, "dones", is_sequence=True),
  "goal": Spec((2,), tf.int32, "goal"),
}
# What only records and stores can.
ALL = {
  **NUMBERS,
  "frame": Spec((8, 6, 3), tf.uint8, "frame", is_sequence=True, data_format="jpeg"),
  "pair": Spec((2, 8, 6, 1), tf.uint8, "pair", is_sequence=True, data_format="png"),
  "words": Spec((2,), tf.string, "words", is_sequence=True),
  "task": Spec((), tf.string, "task"),
  "force": Spec((2,), tf.float16, "force", is_sequence=True, is_optional=True),
  "rating": Spec((), tf.uint64, "rating", is_optional=True),
}


def objects(items: Any, shape: tuple[int, ...]) -> np.ndarray:
  """Makes an array of bytes objects."""
  flat = np.empty(len(items), object)
  flat[:] = items
  return flat.reshape(shape)


def make_episode(index: int, num_steps: int = 0) -> dict[str, np.ndarray]:
  """Makes the flat episode of an index; odd ones have the optional paths."""
  rng = np.random.default_rng(index)
  steps = num_steps or index % 5 + 1
  image = rng.integers(0, 256, (steps, 8, 6, 3)).astype(np.uint8)
  jpeg = [encode_image(frame, "jpeg", 90) for frame in image]
  png = [
    encode_image(frame[..., channel : channel + 1], "png")
    for frame in image
    for channel in (0, 1)
  ]
  words = [b"w" * (t % 3) for t in range(steps)]
  episode = {
    "obs/image": image,
    "obs/pose": rng.normal(size=(steps, 3)).astype(np.float32),
    "actions": rng.normal(size=(steps, 2)),
    "dones": np.arange(steps) == steps - 1,
    "goal": rng.integers(-9, 9, 2).astype(np.int32),
    "frame": objects(jpeg, (steps,)),
    "pair": objects(png, (steps, 2)),
    "words": objects([word for w in words for word in (w, b"\0z\0")], (steps, 2)),
    "task": objects([f"episode {index}".encode()], ()),
  }
  if index % 2:
    episode["force"] = rng.normal(size=(steps, 2)).astype(np.float16)
    episode["rating"] = np.asarray(2**64 - 1 - index, np.uint64)
  return episode


def only(episode: dict[str, np.ndarray], paths: Any) -> dict[str, np.ndarray]:
  """Leaves out the other paths."""
  return {path: value for path, value in episode.items() if path in paths}


def make_store(
  path: str, num_episodes: int, spec: Any = None, metadata: Any = None, **options: Any
) -> str:
  """Writes a store of episodes."""
  spec = ALL if spec is None else spec
  with store.EpisodeStore.create(path, spec, metadata, commit_every=99) as writer:
    for index in range(num_episodes):
      writer.append_episode(only(make_episode(index, **options), spec))
  return path


def assert_same(got: Any, want: Any) -> None:
  """Compares an episode in paths, dtypes, shapes and values."""
  assert sorted(got) == sorted(want)
  for path in want:
    assert got[path].dtype == want[path].dtype, path
    assert got[path].shape == want[path].shape, path
    np.testing.assert_array_equal(np.asarray(got[path]), want[path], err_msg=path)


def assert_episodes(path: str, wanted: list[dict[str, np.ndarray]]) -> None:
  """Compares all episodes of a store."""
  opened = store.EpisodeStore(path)
  assert len(opened) == len(wanted)
  for index, want in enumerate(wanted):
    assert_same(opened.episode(index), want)
  assert store.verify_store(path).is_good


def file_hashes(*places: Any) -> dict[str, str]:
  """Hashes all files, by their name below the place; locks say who was there."""
  found = {}
  for place in places:
    names = [place]
    if os.path.isdir(place):
      names = [os.path.join(f, n) for f, _, ns in os.walk(place) for n in ns]
    for name in names:
      data = pathlib.Path(name).read_bytes()
      if os.path.basename(name) != "lock":
        found[os.path.relpath(name, place)] = hashlib.sha256(data).hexdigest()
  return found
