"""Columns read from their files are those that are mapped, and travel as a graph."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.store import EpisodeStore
from t2r_seq.store.columns import FileColumns, StoreColumns

Spec = specs.ExtendedTensorSpec
DTYPES = (
  *(tf.bool, tf.int8, tf.int16, tf.int32, tf.int64),
  *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
  *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
)
# A column costs a graph for each segment: of several these tell what all do.
ALIKE = {dtype.name for dtype in DTYPES} - {"bool", "bfloat16", "float32"}
LENGTHS = (4, 1, 6, 3)
STORED = {
  **{dtype.name: Spec((2, 3), dtype, is_sequence=True) for dtype in DTYPES},
  "word": Spec((), tf.string, is_sequence=True),
  "pair/of": Spec((2,), tf.string, is_sequence=True),
  "none": Spec((0,), tf.string, is_sequence=True),
  "goal": Spec((3,), tf.float32),
  "task": Spec((), tf.string),
  "flag": Spec((), tf.bool),
}


def episode(index, length):
  rng = np.random.default_rng(index)
  values = rng.integers(0, 100, (length, 2, 3))
  return {
    **{d.name: (values % 2 if d == tf.bool else values).astype(d.as_numpy_dtype)
       for d in DTYPES},
    "word": [b"\0" * int(n % 4) + b"%d" % n for n in values[:, 0, 0]],
    "pair/of": [[b"", b"%d" % n] for n in values[:, 0, 0]],
    "none": np.zeros((length, 0), object),
    "goal": values[0, 0].astype(np.float32),
    "task": "" if index % 2 else f"task {index}",
    "flag": bool(index % 2),
  }  # fmt: skip


@pytest.fixture(scope="module", params=["one segment", "three segments"])
def store(request, tmp_path_factory):
  path = tmp_path_factory.mktemp("stores") / "store"
  is_one = request.param == "one segment"
  stored = STORED if is_one else {p: s for p, s in STORED.items() if p not in ALIKE}
  EpisodeStore.create(path, stored).close()
  for index, length in enumerate(LENGTHS):
    values = episode(index, length)
    with EpisodeStore.append(path, "main" if is_one else "abbc"[index]) as writer:
      writer.append_episode({p: values[p] for p in stored})
  return EpisodeStore(path)


# name: numbers of rows
ROWS = {
  "all": np.arange(14),
  "backwards": np.arange(14)[::-1],
  "windows": np.array([[0, 1, 2], [2, 3, 4], [3, 3, 3], [9, 10, 13]]),
  "one": np.array(5),
  "none": np.zeros(0, np.int64),
}


@pytest.fixture(scope="module")
def columns(store):
  return FileColumns(store)


@pytest.fixture(scope="module")
def take_all(columns):
  """Reads rows of all columns: one graph, for rows of any shape."""

  @tf.function(input_signature=[tf.TensorSpec(None, tf.int64)], autograph=False)
  def take(rows):
    return {
      path: columns.take(path, rows if STORED[path].is_sequence else rows % 4)
      for path in columns.element_spec
    }

  return take


@pytest.fixture(scope="module")
def mapped(store):
  return StoreColumns(store)


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_those_of_the_mapped_columns(columns, take_all, mapped, name):
  assert columns.element_spec == mapped.element_spec
  rows = tf.constant(ROWS[name], tf.int64)
  found = take_all(rows)
  assert {*found} == {*columns.element_spec}
  for path, got in found.items():
    want = mapped.take(path, rows if STORED[path].is_sequence else rows % 4)
    assert got.dtype == want.dtype and got.shape == want.shape, path
    np.testing.assert_array_equal(got.numpy(), want.numpy(), path)


def test_graph_holds_no_resources_and_knows_its_shapes(columns):
  @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64)], autograph=False)
  def take(rows):
    return {path: columns.take(path, rows) for path in ("float32", "word", "pair/of")}

  concrete = take.get_concrete_function()
  assert not concrete.captured_inputs
  shapes = {path: spec.shape.as_list() for path, spec in
            concrete.structured_outputs.items()}  # fmt: skip
  assert shapes == {
    "float32": [None, 2, 2, 3],
    "word": [None, 2],
    "pair/of": [None, 2, 2],
  }


def test_store_that_grows_is_refused(store):
  segment = store.segments[0].name
  with (
    EpisodeStore.append(store.path, segment),
    pytest.raises(errors.StoreError, match=rf"expected no writers.*\[{segment}\]"),
  ):
    FileColumns(store)


def test_bytes_after_the_commit_are_ignored(store):
  folder = store.segments[-1].folder
  for name in ("float32.data", "word.data"):
    with open(os.path.join(folder, name), "ab") as file:
      file.write(b"torn")
  columns = FileColumns(EpisodeStore(store.path))
  rows = tf.range(14, dtype=tf.int64)
  want = np.concatenate([episode(i, n)["float32"] for i, n in enumerate(LENGTHS)])
  np.testing.assert_array_equal(columns.take("float32", rows), want)
  assert columns.take("word", rows).shape == [14]
