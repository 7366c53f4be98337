"""Training in place: one battery for the data sets of all formats."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, records, specs, store
from t2r_seq.episodes import open_episodes
from tests import format_data
from tests.format_data import EPISODES
from tests.format_data import FORMATS as ALL_FORMATS

Spec = specs.ExtendedTensorSpec
# What has no lengths before it is read.
STREAMS = ("SequenceExamples", "steps with a key", "RLDS", "ArrayRecord")


def make_store():
  path = format_data.make_store("own")
  store.EpisodeStore.write_splits(path, {"train": [0, 2], "eval": [1]})
  return path


def make_indexed():
  path = format_data.make_records()
  records.write_index(path)
  return path


# How each is made, and the options that open it.
FORMATS = {
  **{name: (each.make, dict(each.options)) for name, each in ALL_FORMATS.items()},
  "TFRecord by an index": (make_indexed, {"index": "require"}),
}
IN_PLACE = [name for name in FORMATS if name not in STREAMS]
# Formats do not see the padding: the others are for one engine of windows each.
PASSES = [
  *((name, "repeat") for name in FORMATS),
  *((name, padding) for name in ("a store", "RLDS") for padding in ("drop", "zero")),
]


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def opened(name):
  make, options = FORMATS[name]
  return make(), options


def window_specs(episodes):
  """Returns stacks of three steps, the last one ahead, of all numbers of steps."""
  return {
    path: Spec((3, *leaf.shape), leaf.dtype, path, time_offsets=(-1, 0, 1))
    for path, leaf in episodes.spec.items()
    if leaf.is_sequence and leaf.dtype != tf.string and not leaf.data_format
  }


def oracle(episodes, paths, padding):
  """Cuts windows in plain numpy."""
  windows = {path: [] for path in paths}
  for one in episodes:
    num_steps = len(one.values[paths[0]])
    for anchor in range(num_steps):
      steps = np.array([anchor - 1, anchor, anchor + 1])
      is_inside = (steps >= 0) & (steps < num_steps)
      if padding == "drop" and not is_inside.all():
        continue
      for path in paths:
        rows = one.values[path][steps.clip(0, num_steps - 1)].copy()
        if padding == "zero":
          rows[~is_inside] = 0
        windows[path].append(rows)
  return {path: np.stack(found) for path, found in windows.items()}


def generator(path, open_options, window_spec, padding="repeat", **options):
  opening = {"format": None, **open_options}
  options |= {"format": opening.pop("format"), "open_options": opening}
  found = data.EpisodesInputGenerator(path, **options)
  found.set_feature_specifications(window_spec)
  found.set_label_specifications({})
  found.set_padding(padding)
  return found


def batches(dataset, count=None):
  dataset = dataset if count is None else dataset.take(count)
  return [{p: t.numpy() for p, t in features.items()} for features, _ in dataset]


def joined(found):
  return {path: np.concatenate([b[path] for b in found]) for path in found[0]}


@pytest.mark.parametrize(("name", "padding"), PASSES)
def test_eval_is_one_pass_in_order(name, padding):
  path, options = opened(name)
  episodes = open_episodes(path, **options)
  window_spec = window_specs(episodes)
  want = oracle(episodes, [*window_spec], padding)
  source = generator(path, options, window_spec, padding, batch_size=4)
  got = joined(batches(source.create_dataset("eval")))
  assert {*got} == {*want}
  for key, rows in want.items():
    np.testing.assert_array_equal(got[key], rows)
  assert (episodes.lengths is None) == (name in STREAMS)
  if name in IN_PLACE:
    assert source.num_examples == len(rows)


@pytest.mark.parametrize("name", IN_PLACE)
def test_epoch_has_every_window_once_and_resumes(name):
  path, options = opened(name)
  episodes = open_episodes(path, **options)
  window_spec = window_specs(episodes)
  key = next(iter(window_spec))
  want = oracle(episodes, [key], "repeat")[key]
  source = generator(path, options, window_spec, batch_size=1, seed=3)
  whole = batches(source.create_dataset("train"), len(want) + 7)
  order = [one[key].tobytes() for one in whole]
  first = order[: len(want)]
  assert sorted(first) == sorted(row[None].tobytes() for row in want)
  assert first != [row[None].tobytes() for row in want]
  again = source.create_dataset("train", start_step=4)
  assert [one[key].tobytes() for one in batches(again, 3)] == order[4:7]


def test_resumed_stream_has_another_order():
  path, options = opened("RLDS")
  window_spec = window_specs(open_episodes(path, **options))
  key = next(iter(window_spec))
  source = generator(path, options, window_spec, batch_size=1, seed=3)
  first, again, resumed = (
    [one[key].tobytes() for one in batches(source.create_dataset("train", **start), 9)]
    for start in ({}, {}, {"start_step": 4})
  )
  assert first == again != resumed


@pytest.mark.parametrize("name", IN_PLACE)
def test_shards_are_disjoint(name):
  path, options = opened(name)
  episodes = open_episodes(path, **options)
  window_spec = window_specs(episodes)
  key = next(iter(window_spec))
  want = oracle(episodes, [key], "repeat")[key]
  found = []
  for index in range(2):
    context = tf.distribute.InputContext(2, index, 2)
    source = generator(path, options, window_spec, batch_size=2, seed=3)
    dataset = source.create_dataset("train", input_context=context)
    found += [b[key].tobytes() for b in batches(dataset, len(want) // 2)]
  assert len({*found}) == len(found) == len(want) // 2 * 2


def test_views_train_as_data_sets_do():
  episodes = open_episodes(make_store())
  view = episodes.select(split="train").drop(["action"])
  view = view.rename({"state": "arm/state"})
  want = np.concatenate([EPISODES[0]["state"], EPISODES[2]["state"]])
  spec = {"arm/state": Spec((3,), tf.float32, time_offsets=0)}
  dataset = data.windows_of(view, spec, mode="eval", batch_size=5)
  found = np.concatenate([batch["arm/state"] for batch in dataset])
  np.testing.assert_array_equal(found, want)


def test_windows_of_a_pair():
  spec = {"state": Spec((3,), tf.float32, time_offsets=0)}
  labels = {"action": Spec((2, 2), tf.float32, time_offsets=(0, 1))}
  dataset = data.windows_of(make_store(), spec, labels, batch_size=10, mode="eval")
  ((features, found),) = dataset
  assert features["state"].shape == (10, 3)
  np.testing.assert_array_equal(found["action"][0], EPISODES[0]["action"][:2])


STATE = {"state": Spec((3,), tf.float32)}
FAILURES = {
  "a path that is missing": ({"stat": Spec((3,), tf.float32)}, {}, "stat.*state"),
  "another shape": (
    {"state": Spec((4,), tf.float32)},
    {},
    r"state.*\(4,\).*\(None, 3\)",
  ),
  "an option of another format": (
    STATE,
    {"open_options": {"layout": "x.json"}},
    "layout: expected",
  ),
  "a format among the options": (
    STATE,
    {"open_options": {"format": "store"}},
    "open_options: expected no format, got 'store'",
  ),
  "a split": (STATE, {"split": "trian"}, "one of those of the dataset.*'trian'.*train"),
  "an episode": (STATE, {"episodes": [9]}, "expected numbers from 0 to 2, got 9"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures(name):
  spec, options, message = FAILURES[name]
  window_spec = {
    path: Spec(leaf.shape, leaf.dtype, time_offsets=0) for path, leaf in spec.items()
  }
  make_store()
  with pytest.raises(errors.SpecError, match=f"(?s){message}"):
    list(data.windows_of("own", window_spec, mode="eval", **options))


def test_record_files_are_not_read_before_there_are_specs():
  pathlib.Path("x.tfrecord").write_bytes(b"no record")
  source = data.EpisodesInputGenerator("x.tfrecord")
  assert (source.reads_shards, source.control_period) == (False, None)
  assert (source.num_examples, source.num_episodes) == (None, None)


def test_damaged_file_is_named():
  path = format_data.make_zarr()
  chunk = next(pathlib.Path(path, "data/state").glob("**/*0*"))
  chunk.write_bytes(b"none")
  source = generator(path, {}, {"state": Spec((3,), tf.float32, time_offsets=0)})
  with (
    pytest.raises(errors.SpecError, match=r"a\.zarr: state"),
    source.explain_failures(),
  ):
    batches(source.create_dataset("eval"))
