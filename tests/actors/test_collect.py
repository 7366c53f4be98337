"""Collection of episodes into files."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import actors, errors, records, specs
from t2r_seq.actors.rollouts import generate_episodes
from t2r_seq.records.files import shard_paths
from t2r_seq.training.stopping import Stopped


def make_spec():
  return specs.TensorSpecStruct(
    [
      (
        "state/pos",
        specs.ExtendedTensorSpec((2, 2), tf.float32, "pos", time_offsets=(-1, 0)),
      ),
      ("reward", specs.ExtendedTensorSpec((), tf.float32, "reward", is_sequence=True)),
    ]
  )


FLAT = specs.TensorSpecStruct(
  [
    ("state/pos", specs.ExtendedTensorSpec((2,), tf.float32, "pos", is_sequence=True)),
    ("reward", specs.ExtendedTensorSpec((), tf.float32, "reward", is_sequence=True)),
  ]
)


def _read(paths):
  """Returns the positions of every episode."""
  parse = records.create_parse_tf_example_fn(FLAT)
  return [
    parse(record)["state/pos"].numpy().tolist()
    for path in paths
    for record in tf.data.TFRecordDataset(
      path, compression_type="GZIP" if path.endswith(".gz") else ""
    )
  ]


def test_collects_the_episodes_of_the_seed(make_env, make_policy, tmp_path):
  path = str(tmp_path / "new" / "train.tfrecord")
  result = actors.collect_episodes(
    make_env, make_policy(), make_spec, 3, path, seed=4, max_steps=2
  )
  assert result["files"] == [path]
  assert (result["num_episodes"], result["num_steps"]) == (3, 6)
  want = [
    [step["observation"]["state"]["pos"].tolist() for step in steps]
    for steps in generate_episodes(make_env(), make_policy(), 3, seed=4, max_steps=2)
  ]
  assert _read([path]) == want


def test_shards_hold_the_same_episodes(make_env, make_policy, tmp_path):
  def collect(name, episodes_per_file=None):
    return actors.collect_episodes(
      make_env(),
      make_policy(),
      make_spec(),
      5,
      str(tmp_path / name),
      episodes_per_file=episodes_per_file,
    )["files"]

  sharded = collect("train.tfrecord.gz", episodes_per_file=2)
  assert sharded == [
    str(tmp_path / f"train-0000{shard}-of-00003.tfrecord.gz") for shard in range(3)
  ]
  assert [len(_read([path])) for path in sharded] == [2, 2, 1]
  assert _read(sharded) == _read(collect("all.tfrecord"))


def test_function_of_ones_own(make_env, policy, tmp_path):
  path = str(tmp_path / "train.tfrecord")

  def to_features(steps):
    return {
      "state/pos": np.full([len(steps), 2], 7, np.float32),
      "reward": np.zeros([len(steps)], np.float32),
    }

  actors.collect_episodes(
    make_env(), policy, make_spec(), 1, path, episode_to_features_fn=to_features,
    max_steps=2,
  )  # fmt: skip
  assert _read([path]) == [[[7, 7], [7, 7]]]
  assert policy.num_restores == 1


def test_failure_leaves_no_half_file(make_env, policy, tmp_path):
  def to_features(steps):
    return {"state/pos": np.zeros([1, 5], np.float32), "reward": np.zeros([1], "f")}

  with pytest.raises(errors.SpecError, match="state/pos: expected"):
    actors.collect_episodes(
      make_env, policy, make_spec(), 1, str(tmp_path / "a.tfrecord"),
      episode_to_features_fn=to_features,
    )  # fmt: skip
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  ("kwargs", "want"),
  [
    ({"num_episodes": 0}, "num_episodes must be >= 1, got 0"),
    ({"episodes_per_file": 0}, "episodes_per_file must be >= 1, got 0"),
  ],
)
def test_counts_are_checked(env, policy, tmp_path, kwargs, want):
  arguments = {"num_episodes": 1, **kwargs}
  with pytest.raises(ValueError, match=want):
    actors.collect_episodes(
      env, policy, make_spec(), output_path=str(tmp_path / "a"), **arguments
    )
  assert list(tmp_path.iterdir()) == []


class _NeverRun:
  """An environment, and a policy, that fail when they are used."""

  def __getattr__(self, name):
    raise AssertionError(f"{name} was asked for")


OTHER_SHARDS = {
  "fewer": (1, 2, r"3 of an earlier collection, \[a-00000-of-00003\.tfrecord, .*2-of"),
  "more": (3, 1, r"1 of an earlier collection, \[a-00000-of-00001\.tfrecord\]"),
  "into one": (1, None, r"3 of an earlier collection, \[a-00000-of-00003"),
  "out of one": (None, 1, r"1 of an earlier collection, \[a\.tfrecord\]"),
}


@pytest.mark.parametrize("case", OTHER_SHARDS)
def test_files_of_another_count_are_refused_before_anything_runs(
  make_env, make_policy, tmp_path, case
):
  before, after, want = OTHER_SHARDS[case]

  def collect(env, policy, episodes_per_file):
    return actors.collect_episodes(
      env, policy, make_spec(), 3, str(tmp_path / "a.tfrecord"),
      episodes_per_file=episodes_per_file, max_steps=2,
    )  # fmt: skip

  (tmp_path / "a-b.tfrecord").write_text("another base")
  collect(make_env(), make_policy(), before)
  old = sorted(path.name for path in tmp_path.iterdir())
  with pytest.raises(ValueError, match=want + "(?s:.*)Delete them, or choose another"):
    collect(_NeverRun(), _NeverRun(), after)
  assert sorted(path.name for path in tmp_path.iterdir()) == old
  # The same count replaces what is there.
  collect(make_env(), make_policy(), before)
  assert sorted(path.name for path in tmp_path.iterdir()) == old


def test_files_of_another_compression_are_refused(
  make_env, make_policy, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "a-00000-of-00001.tfrecord.gz").write_text("")
  with pytest.raises(ValueError, match=r"\[a-00000-of-00001\.tfrecord\.gz\], which"):
    actors.collect_episodes(make_env(), make_policy(), make_spec(), 1, "a.tfrecord")


@pytest.mark.parametrize(
  ("path", "want"),
  [
    ("a/b.tfrecord", "a/b-00001-of-00002.tfrecord"),
    ("a.b/c", "a.b/c-00001-of-00002"),
    ("v1.2/b.tfrecord.gz", "v1.2/b-00001-of-00002.tfrecord.gz"),
    ("b.zlib", "b-00001-of-00002.zlib"),
  ],
)
def test_shard_paths(path, want):
  assert shard_paths(path, 2)[1] == want


class _StopsAfter:
  """A condition that is met once it was asked a number of times."""

  def __init__(self, num_questions):
    self.left = num_questions

  def is_set(self):
    self.left -= 1
    return self.left < 0


def test_stopped_collection_keeps_whole_files(make_env, make_policy, tmp_path):
  path = tmp_path / "a.tfrecord"
  with pytest.raises(Stopped):
    actors.collect_episodes(
      make_env, make_policy(), make_spec, 3, str(path), max_steps=2,
      episodes_per_file=1, stop=_StopsAfter(3),
    )  # fmt: skip
  assert sorted(p.name for p in tmp_path.iterdir()) == ["a-00000-of-00003.tfrecord"]


def test_stopped_collection_keeps_whole_episodes_of_a_sink(
  make_env, make_policy, tmp_path
):
  sink = actors.RecordSink(str(tmp_path / "a.tfrecord"), make_spec)
  with pytest.raises(Stopped):
    actors.collect_episodes(
      make_env, make_policy(), None, 3, max_steps=2, sink=sink, stop=_StopsAfter(3)
    )
  assert [len(episode) for episode in _read(sink.files)] == [2]
