"""Stores of any size that take no room on the disk: columns of zeros, as holes."""

from __future__ import annotations

import dataclasses
import os
import zlib

import numpy as np
import tensorflow as tf

from t2r_seq import specs, windows
from t2r_seq.store import EpisodeStore, layout, manifest


def write_sparse_store(
  path: str, spec_structure: specs.SpecStructure, num_episodes: int, num_steps: int
) -> None:
  """Writes a store whose episodes are all zeros.

  The writer writes the first episode and commits it. The others are the same, so that
  their lengths and checksums are known; their data are holes in the files. The store is
  whole: its checksums are right.

  Args:
    path: of the store.
    spec_structure: numbers only, each with a row for every step.
    num_episodes: N.
    num_steps: T of every episode.
  """
  flat = windows.flat_specs(spec_structure)
  episode = {
    name: np.zeros((num_steps, *spec.shape), spec.dtype.as_numpy_dtype)
    for name, spec in flat.items()
  }
  with EpisodeStore.create(path, flat) as writer:
    writer.append_episode(episode)
  folder = layout.segment_folder(path, "main")
  commit = manifest.Commit.read(folder)
  ends = np.arange(1, num_episodes + 1, dtype="<i8") * num_steps
  checksums = np.fromfile(os.path.join(folder, layout.CHECKSUMS), "<u4")
  index = {
    layout.ENDS: ends.tobytes(),
    layout.CHECKSUMS: np.tile(checksums, num_episodes).tobytes(),
  }
  for name, data in index.items():
    with open(os.path.join(folder, name), "wb") as file:
      file.write(data)
  sizes = {name: size * num_episodes for name, size in commit.sizes.items()}
  for name in set(sizes) - set(index):
    os.truncate(os.path.join(folder, name), sizes[name])
  dataclasses.replace(
    commit,
    episodes=num_episodes,
    steps=num_episodes * num_steps,
    sizes=sizes,
    index_crc32={name: zlib.crc32(data) for name, data in index.items()},
  ).write(folder)


def bytes_on_disk(folder: str) -> int:
  """Returns the bytes of the blocks that the files of a folder take."""
  return sum(
    os.stat(os.path.join(parent, name)).st_blocks * 512
    for parent, _, names in os.walk(folder)
    for name in names
  )


def bytes_in_files(folder: str) -> int:
  """Returns the lengths of the files of a folder."""
  return sum(
    os.stat(os.path.join(parent, name)).st_size
    for parent, _, names in os.walk(folder)
    for name in names
  )


def numbers_spec(
  shape: tuple[int, ...], dtype: tf.DType, num_frames: int
) -> specs.TensorSpecStruct:
  """Returns specs of one path 'x' in stacks.

  Args:
    shape: of a row.
    dtype: of its values.
    num_frames: K.
  """
  offsets = tuple(range(1 - num_frames, 1))
  spec = specs.ExtendedTensorSpec(
    (num_frames, *shape), dtype, "x", time_offsets=offsets
  )
  return specs.TensorSpecStruct(x=spec)
