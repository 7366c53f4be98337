"""Episodes of no steps, one rule: left out, and counted, whatever holds them."""

from __future__ import annotations

import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, data, records, store
from t2r_seq.cli import main as t2r_seq
from t2r_seq.specs import ExtendedTensorSpec as Spec

LENGTHS = (5, 0, 4)
PAIR = {"x": Spec((2, 2), tf.float32, "x", time_offsets=(-1, 0))}


def values(length):
  return np.arange(2 * length, dtype=np.float32).reshape(length, 2)


def _feature(kind, items):
  lists = {"int64": tf.train.Int64List, "float": tf.train.FloatList}
  return tf.train.Feature(**{f"{kind}_list": lists[kind](value=items)})


def _write(examples):
  with tf.io.TFRecordWriter("a.tfrecord") as writer:
    for example in examples:
      writer.write(example.SerializeToString())
  return "a.tfrecord"


def _tensor(dtype, *shape):
  shape = {"dimensions": [str(size) for size in shape]} if shape else {}
  return {"tensor": {"shape": shape, "dtype": dtype, "encoding": "none"}}


def make_rlds(is_declared, lengths=LENGTHS):
  """TFDS writes lists of their kind, without values, for an episode of no steps."""
  if is_declared:
    step = {"is_first": _tensor("bool"), "x": _tensor("float32", 2)}
    steps = {"sequence": {"feature": {"featuresDict": {"features": step}}}}
    features = {"id": _tensor("int64"), "steps": steps}
    text = json.dumps({"featuresDict": {"features": features}})
    pathlib.Path("features.json").write_text(text)
  return _write(
    tf.train.Example(
      features=tf.train.Features(
        feature={
          "id": _feature("int64", [number]),
          "steps/is_first": _feature("int64", [int(t == 0) for t in range(length)]),
          "steps/x": _feature("float", values(length).ravel()),
        }
      )
    )
    for number, length in enumerate(lengths)
  )


def make_sequences():
  return _write(
    tf.train.SequenceExample(
      feature_lists=tf.train.FeatureLists(
        feature_list={
          "x": tf.train.FeatureList(feature=[_feature("float", v) for v in values(n)])
        }
      )
    )
    for n in LENGTHS
  )


def make_flagged():
  """Records that are cut into episodes by a flag, and one of no steps among them."""
  lists = {"x": lambda v: _feature("float", v), "end": lambda v: _feature("int64", [v])}

  def example(columns):
    found = {
      name: tf.train.FeatureList(feature=[lists[name](v) for v in column])
      for name, column in columns.items()
    }
    return tf.train.SequenceExample(
      feature_lists=tf.train.FeatureLists(feature_list=found)
    )

  return _write(
    example({"x": values(n), "end": [int(t == n - 1) for t in range(n)]})
    for n in LENGTHS
  )


def make_hdf5():
  h5py = pytest.importorskip("h5py")
  with h5py.File("a.hdf5", "w") as file:
    for number, length in enumerate(LENGTHS):
      demo = file.create_group(f"data/demo_{number}")
      demo.attrs["num_samples"] = length
      demo.create_dataset("x", data=values(length))
  return "a.hdf5"


def make_zarr():
  zarr = pytest.importorskip("zarr")
  group = zarr.open_group("a.zarr", mode="w", zarr_format=2)
  arrays = {
    "data/x": np.concatenate([values(n) for n in LENGTHS]),
    "meta/episode_ends": np.cumsum(LENGTHS),
  }
  for name, array in arrays.items():
    made = group.create_array(name, shape=array.shape, dtype=array.dtype)
    made[...] = array
  return "a.zarr"


def _make_store(lengths=LENGTHS):
  spec = {"x": Spec((2,), tf.float32, "x", is_sequence=True)}
  with store.EpisodeStore.create("a_store", spec) as writer:
    for length in lengths:
      writer.append_episode({"x": values(length)})
    assert writer.num_left_out == lengths.count(0)
  return "a_store"


def make_lerobot():
  """The metadata of one more episode: LeRobot's recorder leaves such ones."""
  pq = pytest.importorskip("pyarrow.parquet")
  convert.convert(_make_store((5, 4)), "a.lerobot", fps=10)
  (name,) = pathlib.Path("a.lerobot/meta/episodes").rglob("*.parquet")
  table = pq.read_table(name)
  row = table.to_pylist()[-1]
  row |= {"episode_index": 2, "length": 0, "dataset_from_index": 9}
  more = type(table).from_pylist([*table.to_pylist(), row], table.schema)
  pq.write_table(more, name)
  info = pathlib.Path("a.lerobot/meta/info.json")
  found = {**json.loads(info.read_text()), "total_episodes": 3}
  info.write_text(json.dumps(found))
  return "a.lerobot"


RLDS, TFRECORD = data.RldsInputGenerator, data.DefaultRecordInputGenerator
# name: (make, what else convert is told, what trains from it)
SOURCES = {
  "rlds, features.json": (lambda: make_rlds(True), {}, RLDS),
  "rlds": (lambda: make_rlds(False), {}, None),
  "rlds, first": (lambda: make_rlds(True, (0, 5, 4)), {}, None),
  "rlds, most": (lambda: make_rlds(False, (0, 5, 0, 4, 0)), {}, None),
  "sequences": (make_sequences, {}, TFRECORD),
  "cut by a flag": (make_flagged, {"last_key": "end"}, TFRECORD),
  "hdf5": (make_hdf5, {}, None),
  "zarr": (make_zarr, {}, None),
  "lerobot": (make_lerobot, {}, data.LeRobotInputGenerator),
}


def _windows(generator, spec, mode):
  generator.set_feature_specifications(spec)
  generator.set_label_specifications({})
  generator.set_padding("drop")
  batch = next(iter(generator.create_dataset(mode)))
  return sorted((batch[0] if isinstance(batch, tuple) else batch)["x"][:, 1, 0].numpy())


@pytest.mark.parametrize("name", SOURCES)
def test_convert_leaves_out_and_counts_empty_episodes(name, capsys):
  make, options, kind = SOURCES[name]
  path = make()
  report = convert.convert(path, "out", **options)
  assert report.num_episodes == 2
  (note,) = [note for note in report.notes if "without a step" in note]
  assert ("3 episodes" if "most" in name else "An episode") in note
  got = [store.EpisodeStore("out").episode(i)["x"] for i in range(2)]
  np.testing.assert_array_equal(np.concatenate(got), [*values(5), *values(4)])

  assert t2r_seq(["inspect", path]) == 0
  assert "without a step" in capsys.readouterr().out
  assert t2r_seq(["doctor", path]) == 0
  assert "without a step" in capsys.readouterr().out

  assert t2r_seq(["stats", path, "--output", "figures.json"]) == 0
  assert "2 episodes of 4 to 5 steps" in capsys.readouterr().out

  for mode in ("eval", "train") if kind else ():
    made = kind(path, batch_size=7, seed=0)
    # The pairs of 5 and of 4 steps.
    assert _windows(made, PAIR, mode) == [2, 2, 4, 4, 6, 6, 8], mode


def test_by_an_index_and_in_batches():
  path = make_rlds(True)
  records.write_index(path)
  made = RLDS(path, batch_size=7, seed=0, index="require")
  assert _windows(made, PAIR, "train") == [2, 2, 4, 4, 6, 6, 8]
  spec = records.propose_spec(records.inspect_records(path))
  found = records.serialized_to_parsed(records.record_dataset([path]).batch(3), spec)
  assert next(iter(found))["x"].shape == (3, 5, 2)


# What else lacks values is no episode of no steps, but wrong.
def _without(name):
  def change(example):
    del example.features.feature[name]

  return change


def _hollow(example):
  example.features.feature["steps/x"].Clear()


def _emptied(example):
  example.features.feature["steps/x"].float_list.Clear()
  example.features.feature["steps/x"].float_list.SetInParent()


# name: (number of the record, its change, want)
MISFITS = {
  "a list is missing": (1, _without("steps/x"), "x.*got a record without it"),
  "a list of no kind": (1, _hollow, "x.*got a record without it"),
  "empty beside others": (0, _emptied, "x.*got a record without it"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_damaged_records_are_not_empty_episodes(name):
  number, change, want = MISFITS[name]
  make_rlds(True)
  spec = records.propose_spec(records.inspect_records("a.tfrecord"))
  examples = [
    tf.train.Example.FromString(r.numpy())
    for r in tf.data.TFRecordDataset("a.tfrecord")
  ]
  change(examples[number])
  _write(examples)
  shutil.rmtree("out", ignore_errors=True)
  with pytest.raises(ValueError, match=want):
    convert.convert("a.tfrecord", "out", spec=spec)
