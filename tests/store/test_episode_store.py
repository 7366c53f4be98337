"""Reading: views of the files, several segments, and stores that others write to."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, store
from tests.store.damages import flip

Spec = specs.ExtendedTensorSpec


def test_attributes_of_an_open_store(path, spec):
  opened = store.EpisodeStore(path)
  assert len(opened) == 3 and opened.num_steps == 14 and opened.path == path
  assert opened.episode_lengths.tolist() == [5, 1, 8]
  assert opened.episode_ends.tolist() == [5, 6, 14]
  assert opened.metadata == {"robot": "arm"}
  want = specs.flatten_spec_structure(spec)
  assert list(opened.spec) == list(want)
  assert all(opened.spec[p].is_identical_to(want[p]) for p in want)
  assert opened.is_present("force").tolist() == [False, True, False]
  assert opened.is_present("task").all()


def test_metadata_and_spec_are_copies(path):
  opened = store.EpisodeStore(path)
  opened.metadata["robot"] = "leg"
  del opened.spec["task"]
  assert opened.metadata == {"robot": "arm"} and "task" in opened.spec


def test_episodes_and_columns_are_read_only_views(path, episode):
  opened = store.EpisodeStore(path)
  for name in ("obs/image", "obs/half", "reward", "goal"):
    column, part = opened.column(name), opened.episode(2)[name]
    assert isinstance(column, np.memmap)
    assert np.shares_memory(column, part)
    with pytest.raises(ValueError, match="read-only"):
      part[...] = 0
  image = np.concatenate(
    [episode(i, n)["obs/image"] for i, n in ((0, 5), (1, 1), (2, 8))]
  )
  np.testing.assert_array_equal(opened.column("obs/image"), image)
  goal = np.stack([episode(i, n)["goal"] for i, n in ((0, 5), (1, 1))])
  np.testing.assert_array_equal(opened.column("goal")[:2, 2], goal[:, 2])


def test_byte_strings(path, episode):
  opened = store.EpisodeStore(path)
  words = opened.column("words")
  assert len(words) == 14 and words.shape == (14, 2)
  assert words[6].tolist() == episode(2, 8)["words"][0].tolist()
  assert words[-1].tolist() == episode(2, 8)["words"][7].tolist()
  assert words.rows(5, 7).shape == (2, 2) and words.rows(3, 3).shape == (0, 2)
  assert opened.column("task")[1] == b"episode 1"
  with pytest.raises(IndexError, match="expected a row below 14, got 14"):
    words[14]
  start, end = words.offsets[12:14]
  assert words.data[start:end].tobytes() == episode(2, 8)["words"][0][0]


def test_episode_numbers(path, episode, same):
  opened = store.EpisodeStore(path)
  same(opened.episode(-1), episode(2, 8))
  for index in (3, -4):
    with pytest.raises(IndexError, match=f"expected an episode below 3, got {index}"):
      opened.episode(index)


def test_unknown_column(path):
  opened = store.EpisodeStore(path)
  for read in (opened.column, opened.tensor, opened.is_present):
    with pytest.raises(errors.UnknownPathError, match="Did you mean 'reward'"):
      read("rewards")
  with pytest.raises(errors.StoreError, match="task: expected numbers, got byte str"):
    opened.tensor("task")
  with pytest.raises(
    errors.StoreError, match=r"goal: expected byte .*\(3, 3\) float64"
  ):
    opened.bytes_tensors("goal")


def test_no_episodes(tmp_path, spec):
  store.EpisodeStore.create(tmp_path / "s", spec).close()
  opened = store.EpisodeStore(tmp_path / "s")
  assert len(opened) == 0 and opened.num_steps == 0 and opened.segments == ()
  assert opened.episode_lengths.shape == (0,) and opened.refresh() == 0
  assert store.verify_store(tmp_path / "s").is_good
  assert store.EpisodeStore.merge(tmp_path / "s") == 0
  for read in (opened.column, opened.tensor):
    with pytest.raises(errors.StoreError, match="expected episodes, got none"):
      read("reward")
  with pytest.raises(IndexError, match="expected an episode below 0, got 0"):
    opened.episode(0)


def test_segments_and_merge(path, episode, same):
  for segment, indices in {"a": (10, 11), "z": (12,), "empty": ()}.items():
    with store.EpisodeStore.append(path, segment) as writer:
      for index in indices:
        writer.append_episode(episode(index, index))
  want = [(10, 10), (11, 11), (0, 5), (1, 1), (2, 8), (12, 12)]
  opened = store.EpisodeStore(path)
  assert [segment.name for segment in opened.segments] == ["a", "main", "z"]
  for index, numbers in enumerate(want):
    same(opened.episode(index), episode(*numbers))
  assert opened.episode_lengths.tolist() == [length for _, length in want]
  assert opened.is_present("force").tolist() == [False, True, False, True, False, False]
  with pytest.raises(
    errors.StoreError, match=r"one segment .* got \[a, main, z\]\. Run"
  ):
    opened.column("reward")
  assert opened.segments[1].column("reward").shape == (14,)

  before = [opened.episode(index) for index in range(6)]
  assert store.EpisodeStore.merge(path) == 6
  for got, numbers in zip(before, want, strict=True):
    same(got, episode(*numbers))  # Still mapped, though the files are gone.
  assert opened.refresh() == 0
  assert [segment.name for segment in opened.segments] == ["a"]
  assert os.listdir(f"{path}/segments") == ["a"]
  for index, numbers in enumerate(want):
    same(opened.episode(index), episode(*numbers))
  assert opened.column("reward").shape == (47,)
  assert store.verify_store(path).is_good
  assert store.EpisodeStore.merge(path) == 6


def test_merge_is_refused_while_someone_writes(path, episode):
  with store.EpisodeStore.append(path, "other") as writer:
    writer.append_episode(episode(3))
    with pytest.raises(
      errors.StoreError, match="expected no other writer, got process"
    ):
      store.EpisodeStore.merge(path)
  assert store.EpisodeStore.merge(path) == 4


def test_merge_of_a_damaged_segment_changes_nothing(path, episode, same):
  with store.EpisodeStore.append(path, "other") as writer:
    writer.append_episode(episode(3))
  name = f"{path}/segments/other/reward.data"
  flip(name, 6)
  want = (
    "reward.data: expected the checksum .* for episode 0, got .* nothing was merged"
  )
  with pytest.raises(errors.StoreError, match=want):
    store.EpisodeStore.merge(path)
  flip(name, 6)
  assert store.verify_store(path).is_good
  same(store.EpisodeStore(path).episode(3), episode(3))
  assert store.EpisodeStore.merge(path) == 4


def test_refresh(path, episode, same):
  opened = store.EpisodeStore(path)
  old = opened.episode(0)
  with store.EpisodeStore.append(path) as writer:
    writer.append_episode(episode(3))
    assert len(opened) == 3
    assert opened.refresh() == 1
    same(opened.episode(3), episode(3))
    assert opened.refresh() == 0
  same(old, episode(0))


# name: (spec, the error, whether it is an error for readers, too)
OTHER_SPECS = {
  "same": ({}, None, False),
  "dtype": (
    {"reward": Spec((), tf.float64, is_sequence=True)},
    r"reward: expected \(\) float64, per step, got \(\) float32, per step",
    True,
  ),
  "shape": ({"goal": Spec((4,), tf.float64)}, r"goal: expected \(4,\) float64", True),
  "time axis": (
    {"goal": Spec((3,), tf.float64, is_sequence=True)},
    r"goal: expected \(3,\) float64, per step, got \(3,\) float64, per episode",
    True,
  ),
  "encoding": (
    {"obs/image": Spec((4, 3, 1), tf.uint8, is_sequence=True, data_format="png")},
    "obs/image: expected .* encoded as png, per step, got .* uint8, per step",
    True,
  ),
  "further": (
    {"rewards": Spec((), tf.float32, is_sequence=True)},
    r"rewards: expected \(\) float32, per step, got nothing",
    True,
  ),
  "further, optional": (
    {"new": Spec((), tf.float32, is_sequence=True, is_optional=True)},
    "new: expected .* got nothing",
    False,
  ),
  "fewer": (
    {"goal": None},
    r"goal: expected nothing, got \(3,\) float64.*or begin an",
    False,
  ),
  "required": (
    {"force": Spec((2,), tf.float32, is_sequence=True)},
    "force: expected .*per step, got .*per step, optional",
    True,
  ),
  "name": ({"reward": Spec((), tf.float32, "r", is_sequence=True)}, None, False),
  "all at once": (
    {"goal": Spec((4,), tf.float64), "reward": Spec((1,), tf.int32, is_sequence=True)},
    r"2 mismatches:\n  goal: .*\n  reward: ",
    True,
  ),
  "offsets": (
    {"reward": Spec((2,), tf.float32, time_offsets=(-1, 0))},
    r"reward: expected a spec without time offsets.*windows\.flat_specs",
    True,
  ),
}


@pytest.mark.parametrize("name", OTHER_SPECS)
def test_manifest_of_another_spec(name, path, spec):
  change, want, concerns_readers = OTHER_SPECS[name]
  flat = specs.flatten_spec_structure(spec).to_dict() | change
  flat = {p: s for p, s in flat.items() if s is not None}
  if want is None:
    store.EpisodeStore.append(path, spec=flat).close()
  else:
    with pytest.raises(errors.SpecError, match=want):
      store.EpisodeStore.append(path, spec=flat)
  if concerns_readers:
    with pytest.raises(errors.SpecError, match=want):
      store.EpisodeStore(path, spec=flat)
  else:
    assert len(store.EpisodeStore(path, spec=flat)) == 3


def test_refresh_of_a_store_that_was_deleted(path, episode, same):
  opened = store.EpisodeStore(path)
  shutil.rmtree(path)
  want = "expected the store that was opened, got nothing there any more"
  with pytest.raises(errors.StoreError, match=want):
    opened.refresh()
  assert len(opened) == 3
  same(opened.episode(1), episode(1, 1))


def test_opening_costs_episodes_not_bytes(tmp_path):
  spec = {"x": Spec((1 << 20,), tf.uint8, is_sequence=True)}
  with store.EpisodeStore.create(tmp_path / "s", spec) as writer:
    writer.append_episode({"x": np.zeros((1, 1 << 20), np.uint8)})
  grow_sparse(str(tmp_path / "s"), 100 << 10)
  opened = store.EpisodeStore(tmp_path / "s")
  assert opened.column("x").nbytes == 100 << 30
  assert opened.tensor("x").shape == (100 << 10, 1 << 20)
  assert disk_bytes(tmp_path / "s/segments/main/x.data") < 16 << 20


def grow_sparse(path, num_steps):
  """Makes one long episode of a store's only one, with holes for data."""
  import zlib

  from t2r_seq.store import layout, manifest

  folder = f"{path}/segments/main"
  ends = np.asarray([num_steps], "<i8").tobytes()
  with open(f"{folder}/{layout.ENDS}", "wb") as file:
    file.write(ends)
  commit = manifest.Commit.read(folder)
  row = commit.sizes["x.data"] // commit.steps
  os.truncate(f"{folder}/x.data", row * num_steps)
  manifest.Commit(
    1,
    num_steps,
    {**commit.sizes, "x.data": row * num_steps},
    {**commit.index_crc32, layout.ENDS: zlib.crc32(ends)},
  ).write(folder)


def disk_bytes(name):
  return os.stat(name).st_blocks * 512
