"""Sub-sampling of sequences, held to a numpy oracle and to Tensor2Robot's rules."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.windows import subsample

LENGTHS = (1, 2, 3, 4, 5, 7, 12, 100, 2**31)
SAMPLES = (1, 2, 3, 4, 9)

RANDOM = {
  "random": subsample.random_indices,
  "boundary": subsample.boundary_indices,
  "span": lambda lengths, n, seed=None: subsample.random_span_indices(
    lengths, n, 3, 6, seed
  ),
}


def uniform_oracle(length, num_samples):
  """Tensor2Robot's formula: from the last step backwards, rounded half to even."""
  back = np.round(np.arange(num_samples) * (length - 1) / num_samples)
  return np.sort(length - 1 - back).astype(np.int64)


@pytest.mark.parametrize("num_samples", SAMPLES)
def test_uniform_indices_are_those_of_the_oracle(num_samples):
  lengths = [*range(1, 60), *LENGTHS]
  got = subsample.uniform_indices(lengths, num_samples)
  assert got.dtype == tf.int64
  want = [uniform_oracle(length, num_samples) for length in lengths]
  np.testing.assert_array_equal(got, want)
  np.testing.assert_array_equal(got[:, -1], np.array(lengths) - 1)


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("num_samples", SAMPLES)
def test_padding_is_never_sampled_and_steps_are_sorted(name, num_samples):
  lengths = np.repeat(LENGTHS, 50)
  got = RANDOM[name](tf.constant(lengths), num_samples).numpy()
  assert got.dtype == np.int64
  assert got.shape == (len(lengths), num_samples)
  assert (got >= 0).all()
  assert (got < lengths[:, None]).all()
  assert (np.diff(got, axis=1) >= 0).all()


@pytest.mark.parametrize("num_samples", SAMPLES[1:])
def test_long_rows_split_at_boundaries_without_repeats(num_samples):
  lengths = np.repeat(LENGTHS, 50)
  got = subsample.boundary_indices(lengths, num_samples, [1, 2]).numpy()
  np.testing.assert_array_equal(got[:, 0], 0)
  np.testing.assert_array_equal(got[:, -1], lengths - 1)
  is_distinct = (np.diff(got, axis=1) > 0).all(axis=1)
  np.testing.assert_array_equal(is_distinct | (lengths < num_samples), True)


def test_row_of_exactly_n_steps_is_kept_whole():
  got = subsample.boundary_indices(tf.fill([20], 5), 5)
  np.testing.assert_array_equal(got, np.tile(np.arange(5), (20, 1)))


# Chances of everything that may be drawn, over n rows: name -> (indices, outcomes).
NUM_ROWS = 20000
CHANCES = {
  "choices without replacement": (
    lambda: subsample.boundary_indices(tf.fill([NUM_ROWS], 7), 4, [3, 4])[:, 1:-1],
    [(*pair,) for pair in itertools.combinations(range(1, 6), 2)],
  ),
  "with replacement": (
    lambda: subsample.boundary_indices(tf.fill([NUM_ROWS], 3), 4, [3, 4])[:, 1:-1],
    # Sorted with the ends, 0 and 2: two draws of three, the smaller one first.
    None,
  ),
  "a single step": (
    lambda: subsample.boundary_indices(tf.fill([NUM_ROWS], 6), 1, [5, 6]),
    [(step,) for step in range(6)],
  ),
  "no boundaries": (
    lambda: subsample.random_indices(tf.fill([NUM_ROWS], 6), 1, [5, 6]),
    [(step,) for step in range(6)],
  ),
}


@pytest.mark.parametrize("name", CHANCES)
def test_every_outcome_is_as_likely_as_any_other(name):
  draw, outcomes = CHANCES[name]
  counts = collections.Counter(map(tuple, draw().numpy().tolist()))
  if outcomes is None:
    pairs = itertools.product(range(3), repeat=2)
    chances = collections.Counter(tuple(sorted(pair)) for pair in pairs)
  else:
    chances = collections.Counter(outcomes)
  assert counts.keys() == chances.keys()
  for outcome, weight in chances.items():
    want = NUM_ROWS * weight / chances.total()
    assert abs(counts[outcome] - want) < 5 * want**0.5


@pytest.mark.parametrize(("min_steps", "max_steps"), [(3, 6), (2, 2), (6, 40)])
def test_spans_have_the_requested_length_and_any_start(min_steps, max_steps):
  length = 10
  got = subsample.random_span_indices(
    tf.fill([3000], length), 2, min_steps, max_steps, [1, 1]
  ).numpy()
  spans = collections.Counter((got[:, 1] - got[:, 0] + 1).tolist())
  assert set(spans) == set(range(min_steps, min(max_steps, length) + 1))
  starts = {start for start, _ in got.tolist()}
  assert starts == set(range(length - min_steps + 1))


@pytest.mark.parametrize("name", RANDOM)
def test_seed_makes_it_repeatable(name):
  lengths = tf.fill([50], 30)
  first, again, other = (
    RANDOM[name](lengths, 4, seed).numpy() for seed in ([1, 2], [1, 2], [2, 2])
  )
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()
  unseeded = [RANDOM[name](lengths, 4).numpy() for _ in range(2)]
  assert (unseeded[0] != unseeded[1]).any()


@pytest.mark.parametrize("name", ["uniform", *RANDOM])
def test_xla_compiles_it_and_shapes_are_static(name):
  function = RANDOM.get(name, subsample.uniform_indices)
  arguments = [] if name == "uniform" else [[1, 2]]

  @tf.function(jit_compile=True, autograph=False)
  def compiled(lengths):
    indices = function(lengths, 5, *arguments)
    assert indices.shape == (4, 5)
    return indices

  lengths = np.array([1, 4, 5, 50])
  got = compiled(tf.constant(lengths)).numpy()
  assert (got < lengths[:, None]).all()
  assert (np.diff(got, axis=1) >= 0).all()
  if name == "boundary":
    np.testing.assert_array_equal(got[:, -1], lengths - 1)


def test_boundary_indices_of_batches_of_unknown_size():
  dataset = tf.data.Dataset.from_tensors([3, 9]).map(
    lambda lengths: subsample.boundary_indices(lengths, 4)
  )
  assert dataset.element_spec.shape.as_list() == [2, 4]
  unknown = tf.data.Dataset.range(6).batch(4)
  unknown = unknown.map(lambda lengths: subsample.boundary_indices(lengths + 1, 4))
  assert unknown.element_spec.shape.as_list() == [None, 4]
  assert [len(batch) for batch in unknown] == [4, 2]


SPEC = specs.add_sequence_length_specs(
  {
    "pose": specs.ExtendedTensorSpec((2,), tf.float32, "pose", is_sequence=True),
    "text": specs.ExtendedTensorSpec((), tf.string, "text", is_sequence=True),
    "task": specs.ExtendedTensorSpec((), tf.int64, "task"),
  }
)


def test_sequences_are_gathered_and_the_rest_stays():
  pose = np.arange(24, dtype=np.float32).reshape(2, 6, 2)
  text = pose[..., 0].astype(str).astype(bytes)
  lengths = np.array([6, 3])
  batch = {
    "pose": pose,
    "pose_length": lengths,
    "task": np.array([7, 8]),
    "text": text,
    "text_length": lengths,
  }
  indices = subsample.boundary_indices(lengths, 4, [0, 1])
  got = subsample.gather_steps(batch, indices, SPEC)
  assert list(got) == sorted(batch)
  rows = np.arange(2)[:, None]
  np.testing.assert_array_equal(got["pose"], pose[rows, indices])
  np.testing.assert_array_equal(got["text"], text[rows, indices])
  np.testing.assert_array_equal(got["task"], [7, 8])
  np.testing.assert_array_equal(got["pose_length"], [4, 4])
  assert got["pose_length"].dtype == tf.int64


REFUSED = {
  "no samples": (lambda: subsample.uniform_indices([3], 0), "num_samples: expected an"),
  "floats": (
    lambda: subsample.random_indices([3.0], 2),
    r"random_indices: lengths: expected integers \[B\], got \(1,\) float32",
  ),
  "a scalar": (lambda: subsample.boundary_indices(3, 2), r"integers \[B\], got \(\)"),
  "a seed": (lambda: subsample.random_indices([3], 2, 5), r"integers \[2\], got \(\)"),
  "spans": (
    lambda: subsample.random_span_indices([3], 2, 4, 3),
    "min_steps: expected at most max_steps = 3, got 4",
  ),
  "an empty row": (
    lambda: subsample.random_indices([3, 0], 2),
    "random_indices: lengths: expected at least 1 step in every row, got 0 in row 1",
  ),
  "a length below 0": (
    lambda: subsample.boundary_indices([-1], 2),
    "boundary_indices: lengths: expected at least 1 step in every row, got -1 in row",
  ),
  "all that is wrong": (
    lambda: subsample.gather_steps(
      {"pose": np.zeros(3), "tusk": np.zeros(3)}, tf.constant([[0]]), SPEC
    ),
    r"(?s)2 mismatches.*pose: expected \[B, T\] steps.*tusk: .*Did you mean 'task'",
  ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_name_what_is_wrong(name):
  function, message = REFUSED[name]
  with pytest.raises(errors.SpecError, match=message):
    function()


@pytest.mark.parametrize("name", ["uniform", "random", "boundary"])
def test_empty_row_fails_in_a_graph(name):
  indices = getattr(subsample, f"{name}_indices")
  dataset = tf.data.Dataset.from_tensors(tf.constant([2, 0, 5]))
  dataset = dataset.map(lambda lengths: indices(lengths, 3))
  message = f"{name}_indices: lengths: expected at least 1 step in every row"
  with pytest.raises(tf.errors.InvalidArgumentError, match=message):
    next(iter(dataset))
