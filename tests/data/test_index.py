"""Batches by index are those of the files, in the order that is asked for."""

from __future__ import annotations

import itertools
import os
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.data import IndexedRecordLoader, Plan
from t2r_seq.data.index import RecordReads
from tests.data.window_reference import episode_windows

Spec = specs.ExtendedTensorSpec
F32 = tf.float32
# Of three files, one of which is empty.
LENGTHS = ((5, 1, 2), (), (9, 3, 12))
ALL_LENGTHS = tuple(length for lengths in LENGTHS for length in lengths)
STORED = {
  "x": Spec((2,), F32, "x", is_sequence=True),
  "flag": Spec((), tf.bool, "flag", is_sequence=True),
  "word": Spec((), tf.string, "word", is_sequence=True),
  "image": Spec((8, 8, 3), tf.uint8, "image", is_sequence=True, data_format="png"),
  "task": Spec((), tf.string, "task"),
  "goal": Spec((3,), F32, "goal"),
}


def make_episode(index, length):
  steps = 100 * index + np.arange(length) + 1
  return {
    "x": np.stack([steps, -steps], 1).astype(np.float32),
    "flag": steps % 3 == 0,
    "word": [b"\0%d\0" % step for step in steps],
    "image": np.broadcast_to(
      (steps % 256).astype(np.uint8)[:, None, None, None], (length, 8, 8, 3)
    ),
    "task": f"task {index}",
    "goal": np.full(3, index, np.float32),
  }


EPISODES = [make_episode(i, length) for i, length in enumerate(ALL_LENGTHS)]


def write_episodes(folder, lengths=LENGTHS, spec=STORED):
  names, first = [], 0
  for number, part in enumerate(lengths):
    names.append(str(folder / f"{number}.tfrecord"))
    episodes = [make_episode(first + i, length) for i, length in enumerate(part)]
    records.write_records(names[-1], spec, episodes)
    first += len(part)
  return names


@pytest.fixture(scope="module", name="files")
def fixture_files(tmp_path_factory):
  names = write_episodes(tmp_path_factory.mktemp("records"))
  records.write_index(names)
  return names


def x(offsets, **kwargs):
  stack = (len(offsets),) if isinstance(offsets, tuple) else ()
  return Spec((*stack, 2), F32, "x", time_offsets=offsets, **kwargs)


IMAGE = Spec((2, 8, 8, 3), tf.uint8, "image", data_format="png", time_offsets=(-1, 0))
# name: (the specs of a window, further arguments)
CASES = {
  "stack": ({"x": x((-3, -2, -1, 0))}, {}),
  "everything": (
    {
      "x": x((-1, 0, 2)),
      "flag": Spec((2,), tf.bool, "flag", time_offsets=(0, 1)),
      "word": Spec((2,), tf.string, "word", time_offsets=(-1, 0)),
      "image": IMAGE,
      "task": Spec((), tf.string, "task"),
      "goal": Spec((3,), F32, "goal"),
    },
    {},
  ),
  "masks": ({"x": x((-1, 0)), "goal": Spec((3,), F32, "goal")}, {"masks": True}),
  "declared mask": (windows.add_mask_specs({"x": x((-1, 0))}), {}),
  "sequence of stacks": (
    {"x": x((-1, 0), is_sequence=True), "f": Spec((), tf.bool, "flag", time_offsets=1)},
    {"sequence_length": 3},
  ),
  "strides": (
    {"x": x((0, 1), is_sequence=True), "task": Spec((), tf.string, "task")},
    {"sequence_length": 2, "stride": 2, "shift": 3},
  ),
}


def reference(spec, padding, kwargs):
  """Takes the windows from their own episodes, one after the other."""
  found = []
  for episode in EPISODES:
    by_path = {
      path: tf.constant(episode[leaf.name], leaf.dtype)
      for path, leaf in windows.flat_specs(spec).items()
    }
    num_steps = len(episode["x"])
    found += rows_of(episode_windows(by_path, num_steps, spec, padding, **kwargs))
  return found


def rows_of(dataset):
  rows = []
  for batch in dataset:
    assert isinstance(batch, specs.TensorSpecStruct)
    arrays = {path: value.numpy() for path, value in batch.items()}
    size = len(next(iter(arrays.values())))
    rows += [
      {path: np.asarray(value[i], value.dtype) for path, value in arrays.items()}
      for i in range(size)
    ]
  return rows


def as_bytes(row):
  return tuple(
    (path, str(np.asarray(row[path]).dtype), np.asarray(row[path]).tolist())
    for path in sorted(row)
  )


def assert_same(got, want, in_order=True):
  assert len(got) == len(want)
  for one in got[:1]:
    assert sorted(one) == sorted(want[0])
    for path in one:
      assert one[path].dtype == want[0][path].dtype, path
  got, want = [as_bytes(row) for row in got], [as_bytes(row) for row in want]
  if not in_order:
    got, want = sorted(got, key=repr), sorted(want, key=repr)
  assert got == want


# Windows are cut by one reader in all orders, so each case meets each padding once.
READ_AS = {
  "stack": (("sequential", "drop"), ("quasi_random", "zero")),
  "everything": (
    *(("sequential", "drop"), ("quasi_random", "zero")),
    *(("global", "zero"), ("quasi_random", "drop")),
  ),
  "masks": (("sequential", "drop"), ("quasi_random", "zero")),
  "declared mask": (("global", "zero"), ("quasi_random", "drop")),
  "sequence of stacks": (("global", "zero"), ("quasi_random", "drop")),
  "strides": (("sequential", "drop"), ("quasi_random", "zero")),
}


@pytest.mark.parametrize(
  "name, order, padding", [(name, *pair) for name in CASES for pair in READ_AS[name]]
)
def test_windows_are_those_of_the_episodes(name, order, padding, files):
  spec, kwargs = CASES[name]
  want = reference(spec, padding, kwargs)
  options = {"padding": padding, **kwargs}
  loader = IndexedRecordLoader(files, spec, 4, order, drop_remainder=False, **options)
  assert loader.num_windows == len(want)
  assert loader.batches_per_epoch == -(-len(want) // 4)
  assert_same(rows_of(loader.dataset()), want, in_order=order == "sequential")


def test_static_shapes(files):
  spec, _ = CASES["everything"]
  for order in ("sequential", "quasi_random"):
    dataset = IndexedRecordLoader(files, spec, 2, order, padding="repeat").dataset()
    for path, element in dataset.element_spec.items():
      want = () if path == "task" else tuple(spec[path].shape)
      assert tuple(element.shape)[1:] == want, path
    (size,) = {element.shape[0] for element in dataset.element_spec.values()}
    assert size in (2, None)


def test_encoded_frames_stay_encoded_if_wanted(files):
  spec = {"image": IMAGE}
  options = {"drop_remainder": False, "decode_images": False, "padding": "drop"}
  rows = rows_of(
    IndexedRecordLoader(files, spec, 3, "quasi_random", **options).dataset()
  )
  decoded = [
    {"image": tf.stack([tf.io.decode_png(frame) for frame in row["image"]])}
    for row in rows
  ]
  assert_same(decoded, reference(spec, "drop", {}), in_order=False)


NOW = {"x": Spec((2,), F32, "x", time_offsets=0)}
ALL = [100 * e + t + 1 for e, n in enumerate(ALL_LENGTHS) for t in range(n)]
ORDERS = ("sequential", "global", "quasi_random")


def anchors(dataset):
  return [batch["x"][:, 0].numpy().astype(int).tolist() for batch in dataset]


def flatten(batches):
  return [anchor for batch in batches for anchor in batch]


# Less than twice the 32 windows of 8 bytes and their order, and records on their way.
SMALL = {"memory_budget": 21_500}


def assert_epochs(epochs, order):
  if order == "sequential":
    assert epochs == [ALL] * len(epochs)
  else:
    for one, other in itertools.combinations([ALL, *epochs], 2):
      assert sorted(one) == sorted(other) and one != other


@pytest.mark.parametrize("order", ORDERS)
def test_an_epoch_is_a_permutation_and_the_shards_are_its_parts(order, files):
  options = {"seed": 4, "num_epochs": 2, "drop_remainder": False, **SMALL}
  shards = [
    anchors(
      IndexedRecordLoader(
        files, NOW, 5, order, shard_index=i, num_shards=3, **options
      ).dataset()
    )
    for i in range(3)
  ]
  epochs = [[], []]
  for shard in shards:
    half = len(shard) // 2
    epochs[0] += flatten(shard[:half])
    epochs[1] += flatten(shard[half:])
  assert sorted(epochs[0]) == sorted(epochs[1]) == ALL
  whole = flatten(
    anchors(IndexedRecordLoader(files, NOW, 5, order, **options).dataset())
  )
  assert_epochs([whole[: len(ALL)], whole[len(ALL) :]], order)


@pytest.mark.parametrize("order", ORDERS)
def test_the_same_batches_again_and_from_any_batch_on(order, files):
  def make(seed=1, num_epochs=3):
    options = {"seed": seed, "num_epochs": num_epochs, **SMALL}
    return IndexedRecordLoader(files, NOW, 6, order, **options)

  want = anchors(make().dataset())
  assert len(want) == 3 * (32 // 6)
  # A store's loader is asked for more starts, and for epochs without end.
  again = make()
  for start in (1, 5, 14):
    assert anchors(again.dataset(start)) == want[start:]
  if order != "sequential":
    assert anchors(make(seed=2, num_epochs=1).dataset()) != want[:5]


def test_pools_keep_within_the_budget_and_mix(files, caplog):
  one = IndexedRecordLoader(files, NOW, 4, **SMALL)
  assert one.pool_size.max_bytes <= 21_500
  assert one.pool_size.num_batches < one.batches_per_epoch
  large = IndexedRecordLoader(files, NOW, 4)
  assert large.pool_size.num_batches >= large.batches_per_epoch
  least = IndexedRecordLoader(files, NOW, 4, memory_budget=10)
  assert least.pool_size.num_batches == 1
  assert "memory_budget: expected at least" in caplog.text


EXAMPLE = {
  "n": Spec((), tf.int64, "n"),
  "image": Spec((4, 4, 3), tf.uint8, "img", data_format="png"),
}


@pytest.fixture(scope="module", name="examples")
def fixture_examples(tmp_path_factory):
  folder = tmp_path_factory.mktemp("examples")
  names = []
  for numbers in (range(20), (), range(20, 45), range(45, 47)):
    names.append(str(folder / f"{len(names)}.tfrecord"))
    rows = [
      {"n": np.int64(n), "image": np.full((4, 4, 3), n, np.uint8)} for n in numbers
    ]
    records.write_records(names[-1], EXAMPLE, rows)
  records.write_index(names)
  return names


# Pools read runs of records; where to start does not depend on how long those are.
@pytest.mark.parametrize(
  "order, run_bytes, starts",
  [
    ("sequential", None, (10,)),
    ("global", None, (3, 17)),
    ("quasi_random", 1, (17,)),
    ("quasi_random", 300, (3, 10, 17)),
  ],
)
def test_examples_in_every_order(order, run_bytes, starts, examples, monkeypatch):
  if run_bytes is not None:
    monkeypatch.setattr("t2r_seq.data.index._RUN_BYTES", run_bytes)
  options = {"drop_remainder": False, "num_epochs": 2, "seed": 3}
  options["memory_budget"] = 4000
  loader = IndexedRecordLoader(examples, EXAMPLE, 5, order, **options)
  assert (loader.num_windows, loader.batches_per_epoch) == (47, 10)
  batches = list(loader.dataset())
  found = flatten([batch["n"].numpy().tolist() for batch in batches])
  assert sorted(found[:47]) == sorted(found[47:]) == list(range(47))
  if order == "sequential":
    assert found == 2 * list(range(47))
  else:
    assert found[:47] != found[47:] and found[:47] != list(range(47))
  for batch in batches:
    np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], batch["n"])
  for start in starts:
    rest = [b["n"].numpy().tolist() for b in loader.dataset(start)]
    assert flatten(rest) == flatten([b["n"].numpy().tolist() for b in batches[start:]])


@pytest.mark.parametrize("run_length", [1, 3, 100])
def test_reads_in_any_order(run_length, files):
  index = records.read_index(files)
  want = [index.read(i) for i in range(len(index))]
  runs = [want[:3][i : i + run_length] for i in range(0, 3, run_length)]
  runs += [want[3:][i : i + run_length] for i in range(0, 3, run_length)]
  reads = RecordReads(index, run_length)
  assert reads.counts.tolist() == [len(run) for run in runs]
  order = [*reversed(range(len(runs))), 0]
  got = tf.function(reads.read)(tf.constant(order, tf.int64)).numpy().tolist()
  assert got == [data for number in order for data in runs[number]]


def test_optional_features_that_the_first_record_lacks(tmp_path):
  spec = {**STORED, "more": Spec((), F32, "more", is_sequence=True, is_optional=True)}
  names = write_episodes(tmp_path, LENGTHS, spec)
  records.write_index(names)
  wanted = {**NOW, "more": Spec((), F32, "more", time_offsets=0, is_optional=True)}
  for order in ORDERS:
    assert list(
      IndexedRecordLoader(names, wanted, 4, order).dataset().element_spec
    ) == ["x"]


def test_what_cannot_be_loaded(files, examples, tmp_path):
  (name,) = write_episodes(tmp_path, [[3, 1]])
  with pytest.raises(
    errors.RecordError, match=rf"index: {re.escape(name)}: .*Run: t2r_seq index"
  ):
    IndexedRecordLoader(name, NOW, 2).dataset()
  zipped = str(tmp_path / "a.tfrecord.gz")
  records.write_records(zipped, STORED, EPISODES[:1])
  records.write_index(zipped)
  with pytest.raises(errors.RecordError, match=r"a\.tfrecord\.gz: expected a file wit"):
    IndexedRecordLoader(zipped, NOW, 2).dataset()
  empty = str(tmp_path / "empty.tfrecord")
  records.write_records(empty, STORED, [])
  records.write_index(empty)
  with pytest.raises(errors.RecordError, match=r"expected records, got none in 1 file"):
    IndexedRecordLoader(empty, NOW, 2).dataset()
  cases = {
    "order: expected one of .* Did you mean 'global'": {"order": "globale"},
    "num_epochs: expected an integer of at least 0, got -1": {"num_epochs": -1},
    "at most the 32 windows of a shard": {"batch_size": 33},
    "51 steps of a window, got none: all 6 episodes .* longest has 12": {
      "spec_structure": {"x": x((-50, 0))},
      "padding": "drop",
    },
    r"y \(feature 'y'\): expected a sequence that the index counts": {
      "spec_structure": {"y": Spec((), F32, "y", time_offsets=0)}
    },
  }
  for message, change in cases.items():
    arguments = {"spec_structure": NOW, "batch_size": 2, **change}
    with pytest.raises(errors.SpecError, match=message):
      IndexedRecordLoader(files, **arguments).dataset()
  with pytest.raises(errors.SpecError, match="sequence_length: expected None for spec"):
    IndexedRecordLoader(examples, EXAMPLE, 2, sequence_length=3).dataset()


def test_large_records_are_not_read_for_each_window(files, monkeypatch):
  monkeypatch.setattr("t2r_seq.data.index._LARGE_RECORD", 100)
  want = r"order: expected 'quasi_random' for .* than 100 bytes, got 'global': each of"
  with pytest.raises(errors.SpecError, match=want):
    IndexedRecordLoader(files, NOW, 2, "global").dataset()
  for order in ("sequential", "quasi_random"):
    IndexedRecordLoader(files, NOW, 2, order).dataset()


def test_a_plan_or_its_fields(files):
  plan = Plan(batch_size=3, order="global", seed=5)
  loader = IndexedRecordLoader(files, NOW, plan=plan, num_epochs=2)
  want = IndexedRecordLoader(files, NOW, 3, "global", seed=5, num_epochs=2)
  assert loader.plan == want.plan
  assert anchors(loader.dataset(18)) == anchors(want.dataset(18))
  for wrong, message in {
    "sed": r"sed: expected an argument that it has.*Did you mean 'seed'",
    "plan": r"plan: expected a Plan, got 3",
  }.items():
    with pytest.raises(errors.SpecError, match=message):
      IndexedRecordLoader(files, NOW, 2, **{wrong: 3})


@pytest.mark.parametrize("order", ["global", "quasi_random"])
def test_a_file_that_changes_while_it_is_read_is_named(order, tmp_path):
  names = write_episodes(tmp_path)
  records.write_index(names)
  loader = IndexedRecordLoader(names, NOW, 4, order, num_epochs=None)
  records.write_records(names[2], STORED, [make_episode(0, 40)])
  with (
    pytest.raises(errors.RecordError, match=r"2\.tfrecord: .*Run: t2r_seq index"),
    loader.explain_failures(),
  ):
    for _ in loader.dataset().take(40):
      pass


def test_flipped_bits_after_indexing_are_found_by_the_checksum(tmp_path):
  (name,) = write_episodes(tmp_path, [[5, 6]])
  records.write_index(name)
  stat = os.stat(name)
  with open(name, "r+b") as file:
    file.seek(60)
    byte = file.read(1)[0]
    file.seek(60)
    file.write(bytes([byte ^ 4]))
  os.utime(name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
  for order in ("sequential", "quasi_random"):
    loader = IndexedRecordLoader(name, NOW, 2, order)
    with (
      pytest.raises(errors.RecordError, match=r"record 0 of .*flipped bits in its"),
      loader.explain_failures(),
    ):
      list(loader.dataset())


def test_no_flipped_byte_is_read(tmp_path):
  (name,) = write_episodes(tmp_path, [[2, 1]], {"x": STORED["x"]})
  records.write_index(name)
  reads = RecordReads(records.read_index(name))
  read = tf.function(lambda: reads.read(tf.constant([1, 0], tf.int64)))
  assert len(read()) == 2
  with open(name, "rb") as file:
    content = file.read()
  for place in range(len(content)):
    damaged = bytearray(content)
    damaged[place] ^= 1 << place % 8
    with open(name, "wb") as file:
      file.write(damaged)
    with pytest.raises(tf.errors.OpError):
      read()


def test_a_thousand_files(tmp_path):
  names = write_episodes(tmp_path, [[2]] * 1000, {"x": STORED["x"]})
  assert all(result.is_new for result in records.write_index(names))
  for order in ("global", "quasi_random"):
    loader = IndexedRecordLoader(names, NOW, 8, order)
    assert loader.num_windows == 2000
    assert len(next(iter(loader.dataset()))["x"]) == 8
