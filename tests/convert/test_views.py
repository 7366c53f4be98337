"""Conversions as views: sources are joined, and paths renamed, cast and dropped."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, errors, specs, store
from t2r_seq.convert.conversion import verify_conversion
from t2r_seq.episodes import open_episodes, write_episodes
from t2r_seq.store import videos
from tests.convert import lerobot_sets as sets

Spec = specs.ExtendedTensorSpec


def make(path, lengths, name="pose", dtype=np.float32, first=0, **options):
  """Writes a store with one path, whose values are the number of the episode."""
  spec = {name: Spec((2,), dtype, name, is_sequence=True)}
  metadata = {"robot": "arm", "lerobot": {"fps": 10, "tasks": [path]}}
  with store.EpisodeStore.create(path, spec, metadata) as writer:
    for number, length in enumerate(lengths, first):
      writer.append_episode({name: np.full((length, 2), number, dtype)})
  splits = {"eval": [len(lengths) - 1], "empty": []}
  store.EpisodeStore.write_splits(path, splits)
  return path


def values_of(path, name):
  return [int(episode.values[name][0, 0]) for episode in open_episodes(path)]


# The options, the options of the second source, and the name of the path afterwards.
JOINED = {
  "alike": ({}, {}, "pose"),
  "renamed": ({"rename": {"state": "pose"}}, {"name": "state"}, "pose"),
  "cast": ({"cast": ["float64=float32"]}, {"dtype": np.float64}, "pose"),
  "renamed below": ({"rename": ["pose=arm/pose"]}, {}, "arm/pose"),
  "some episodes": ({"episodes": [0, 2, 3]}, {}, "pose"),
}


@pytest.mark.parametrize(
  ("name", "destination"),
  [
    *((name, "s") for name in JOINED),
    *(("alike", path) for path in ("x.zarr", "x.hdf5", "x.lerobot")),
  ],
)
def test_sources_are_joined(name, destination):
  options, others, path = JOINED[name]
  sources = [make("a", (2, 3)), make("b", (1, 4), first=2, **others)]
  report = convert.convert(sources, destination, **options)
  want = options.get("episodes", [0, 1, 2, 3])
  assert report.num_episodes == len(want)
  written = open_episodes(destination)
  assert values_of(destination, path) == want
  assert written.metadata["robot"] == "arm" and written.metadata["lerobot"]["fps"] == 10
  held_out = [want.index(number) for number in (1, 3) if number in want]
  assert [*written.splits["eval"]] == held_out
  assert verify_conversion(sources, destination).num_episodes == len(want)


def test_joined_sources_that_differ_are_named():
  sources = [make("a", (2,)), make("b", (1,), name="state")]
  want = r"join: a, b: 2 mis.*\n  pose: .*in b. Make"
  with pytest.raises(errors.SpecError, match=want):
    convert.convert(sources, "s")
  with pytest.raises(errors.SpecError, match=r"rename: b: stat: .*mean 'state'"):
    convert.convert(sources[1:], "s", rename={"stat": "pose"})
  with pytest.raises(errors.SpecError, match="gaol: expected one of the paths"):
    convert.convert(sources, "s", drop=["gaol"])


def test_path_that_one_source_has_is_dropped():
  spec = {
    "pose": Spec((2,), tf.float32, "pose", is_sequence=True),
    "debug": Spec((), tf.int64, "debug", is_sequence=True),
  }
  with store.EpisodeStore.create("b", spec) as writer:
    writer.append_episode({"pose": np.ones((3, 2), np.float32), "debug": np.arange(3)})
  convert.convert([make("a", (2,)), "b"], "s", drop=["debug"])
  assert values_of("s", "pose") == [0, 1]


def test_splits_are_dealt_when_the_number_of_episodes_is_unknown():
  convert.convert(make("a", (1,) * 10), "x.tfrecord")
  shares = "train=0.8,eval=0.2"
  convert.convert("x.tfrecord", "counted", split=shares, seed=3)
  convert.convert("a", "known", split=shares, seed=3)
  found = open_episodes("counted").splits
  assert found == open_episodes("known").splits and len(found["train"]) == 8


def test_resampling_without_other_clocks_changes_nothing():
  convert.convert(make("a", (1, 2)), "b", resample="hold")
  assert values_of("b", "pose") == values_of("a", "pose")
  assert open_episodes("b").lengths.tolist() == [1, 2]


def test_records_to_shards_of_records():
  convert.convert(make("a", (1, 2, 3)), "x.tfrecord")
  report = convert.convert("x.tfrecord", "y.tfrecord", num_shards=2)
  assert (report.num_episodes, report.num_steps) == (3, 6)
  again = convert.convert("x.tfrecord", "y.tfrecord", num_shards=2)
  assert (again.resumed_at, again.num_steps) == (3, 6)
  assert verify_conversion("x.tfrecord", "y.tfrecord").num_steps == 6


def test_lerobot_to_lerobot_copies_videos(monkeypatch):
  own = sets.make_folder()
  chosen = {"episodes": [0, 2], "rename": {"reward": "return"}}
  with monkeypatch.context() as patched:
    patched.setattr(videos.FrameWriter, "write", None)
    convert.convert(own, "some.lerobot", **chosen)
    convert.convert([own, own], "both.lerobot", drop=["task"])
  assert verify_conversion(own, "some.lerobot").num_episodes == 2
  read, written = open_episodes(own), open_episodes("some.lerobot")
  np.testing.assert_array_equal(written.read(1)[sets.CAMERA], read.read(2)[sets.CAMERA])
  assert "return" in written.spec and "reward" not in written.spec
  both = open_episodes("both.lerobot")
  assert both.num_episodes == 2 * read.num_episodes
  np.testing.assert_array_equal(
    both.read(read.num_episodes)[sets.CAMERA], read.read(0)[sets.CAMERA]
  )


def test_views_are_written_by_one_call():
  episodes = open_episodes(make("a", (2, 3))).rename({"pose": "state"}).select([1])
  write_episodes(episodes, "x.hdf5")
  write_episodes(episodes, "s", "store")
  assert values_of("x.hdf5", "state") == values_of("s", "state") == [1]
  with pytest.raises(errors.ConversionError, match=r"write: x.hdf5: expected nothing"):
    write_episodes(episodes, "x.hdf5")
