"""Transitions by number and in batches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, transitions

CHAINS = [(7, "terminal"), (1, "gap"), (9, "truncated"), (4, "terminal")]
NUM = 21


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, make):
  path = tmp_path_factory.mktemp("reading") / "s"
  transitions.save_transitions(path, make(CHAINS))
  return transitions.load_transitions(path)


@pytest.fixture(params=["one step", "n-step"])
def reading(request, loaded):
  return loaded if request.param == "one step" else loaded.n_step(3, 0.9)


def assert_equal(got, want):
  assert list(got) == list(want)
  for path in want:
    got_path = np.asarray(got[path])
    assert got_path.dtype == want[path].dtype, path
    np.testing.assert_array_equal(got_path, want[path], err_msg=path)


def test_getitem(reading):
  everything = reading.to_numpy()
  assert len(reading) == NUM
  for index in (0, 6, 7, 8, 20, -1):
    want = {path: values[index] for path, values in everything.items()}
    assert_equal(reading[index], want)


@pytest.mark.parametrize("index", [NUM, -NUM - 1])
def test_getitem_out_of_range(reading, index):
  with pytest.raises(IndexError, match=f"expected a number below 21, got {index}"):
    reading[index]


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, NUM + 1)])
def test_to_numpy_out_of_range(reading, start, stop):
  with pytest.raises(IndexError, match="expected 0 <= start <= stop <= 21"):
    reading.to_numpy(start, stop)


def test_any_numbers_in_any_shape(reading):
  everything = reading.to_numpy()
  ids = np.array([[20, 0, 7], [7, 8, 3]])
  got = reading.read(tf.constant(ids))
  assert_equal(got, {path: values[ids] for path, values in everything.items()})
  for path, spec in reading.spec.items():
    assert got[path].shape == (2, 3, *spec.shape)


def test_numbers_out_of_range(reading):
  with pytest.raises(tf.errors.InvalidArgumentError):
    reading.read(tf.constant([NUM], tf.int64))


def test_sequential_batches(reading):
  dataset = reading.dataset(4, "sequential", drop_remainder=False)
  batches = list(dataset.as_numpy_iterator())
  assert [len(batch["act"]) for batch in batches] == [4, 4, 4, 4, 4, 1]
  together = {
    path: np.concatenate([batch[path] for batch in batches]) for path in batches[0]
  }
  assert_equal(together, reading.to_numpy())


def ids_of(dataset):
  """Observations tell the transitions."""
  return [batch["obs/state"][:, 0].tolist() for batch in dataset.as_numpy_iterator()]


def joined(batches):
  return [each for batch in batches for each in batch]


def test_run_resumes_from_one_integer(reading):
  whole = ids_of(reading.dataset(4, seed=1, num_epochs=3))
  for start in (1, 5, 7, 14):
    resumed = reading.dataset(4, seed=1, num_epochs=3, start_batch=start)
    assert ids_of(resumed) == whole[start:]


@pytest.mark.parametrize(
  ("arguments", "want"),
  [
    ({"batch_size": 22}, "batch_size: expected at most the 21"),
    ({"batch_size": 2, "order": "globall"}, "Did you mean 'global'"),
    (
      {"batch_size": 2, "start_batch": -1},
      "start_batch: expected an integer of at least 0",
    ),
  ],
)
def test_bad_arguments(reading, arguments, want):
  with pytest.raises(errors.SpecError, match=want):
    reading.dataset(**arguments)


@pytest.mark.parametrize("drop_remainder", [True, False])
@pytest.mark.parametrize("start_batch", [0, 3, 7])
def test_numpy_batches_are_those_of_the_dataset(reading, drop_remainder, start_batch):
  options = {"seed": 5, "num_epochs": 2, "drop_remainder": drop_remainder}
  options["start_batch"] = start_batch
  want = list(reading.dataset(4, **options))
  batches = reading.numpy_batches(4, **options)
  got = list(batches)
  assert len(got) == len(want) > 0 and batches.next_batch == start_batch + len(want)
  for one, other in zip(got, want, strict=True):
    assert_equal(one, {path: value.numpy() for path, value in other.items()})
