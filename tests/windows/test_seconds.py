"""Time offsets in seconds: windows equal those of a brute-force search."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.specs import Seconds
from t2r_seq.windows import cut as cut_lib
from t2r_seq.windows.reader import WindowReader

Spec = specs.ExtendedTensorSpec
OFFSETS = (-0.21, -0.1, 0.0, 0.033, 0.3)
RATES = (10, 25, 30, 100)


def jittered(rng, length, rate):
  return np.sort(np.arange(length) / rate + rng.normal(0, 0.2 / rate, length))


def with_gaps(rng, length, rate):
  return jittered(rng, length, rate) + np.cumsum(rng.random(length) < 0.05)


def repeated(rng, length, rate):
  stamps = jittered(rng, length, rate)
  return stamps[np.maximum.accumulate(np.arange(length) * (rng.random(length) > 0.3))]


def reordered(rng, length, rate):
  """Messages that came in another order, sorted as a conversion does."""
  delays = rng.exponential(2 / rate, length)
  return np.sort((np.arange(length) / rate + delays)[rng.permutation(length)])


def epoch(rng, length, rate):
  return 1.7e9 + with_gaps(rng, length, rate)


def in_nanoseconds(rng, length, rate):
  return np.rint(1e9 * repeated(rng, length, rate)).astype(np.int64) + 10**18


CLOCKS = {
  "jitter": jittered,
  "gaps": with_gaps,
  "repeated": repeated,
  "reordered": reordered,
  "epoch": epoch,
  "nanoseconds": in_nanoseconds,
}


def spec_of(seconds, shape=(), dtype=tf.float32):
  stack = (len(seconds),) if seconds.is_stack else ()
  return {"x": Spec((*stack, *shape), dtype, "x", time_offsets=seconds)}


def brute_force(stamps, anchors, offsets, select, tolerance):
  """Returns the rows that are shown, and which of them are real."""
  if stamps.dtype.kind == "i":
    stamps, anchors = (1e-9 * (each - stamps[0]) for each in (stamps, anchors))
  times = anchors[:, None] + np.asarray(offsets)
  distance, is_past = times[..., None] - stamps, np.asarray(offsets) <= 0
  # A policy does not know the steps after the anchor.
  is_later = np.arange(len(stamps)) > np.arange(len(anchors))[:, None, None]
  distance = np.where(is_past[:, None] & is_later, -np.inf, distance)
  inside = (times >= stamps[0]) & ((times <= stamps[-1]) | is_past)
  if select == "hold":
    count = np.sum(distance >= 0, axis=-1)
    rows = np.maximum(count - 1, 0)
    age = np.take_along_axis(distance, rows[..., None], -1)[..., 0]
    is_near = inside if tolerance is None else age <= tolerance
    return rows, is_near & (count > 0)
  # The last of one stamp.
  rows = len(stamps) - 1 - np.argmin(np.abs(distance)[..., ::-1], axis=-1)
  far = np.abs(np.take_along_axis(distance, rows[..., None], -1)[..., 0])
  return rows, inside if tolerance is None else far <= tolerance


def read(values, spec, cut, survey=False, rtol=0.0):
  """Returns all windows of an episode: of numpy, checked against TensorFlow."""
  element = {
    path: tf.TensorSpec([None, *array.shape[1:]], array.dtype)
    for path, array in values.items()
  }
  reader = WindowReader(element, spec, cut)
  length = len(values["x"])
  starts = reader.grid.start(np.arange(reader.grid.num_windows(length)))
  if survey:
    stamps = {path: values[path] for path in reader.clocks}
    reader.survey_stamps([("it", stamps)])
  anchors = cut_lib.Anchors(starts, starts, length - 1 - starts)
  found = reader.read_at(lambda path, rows: values[path][rows], anchors)
  tensors = {path: tf.constant(array) for path, array in values.items()}
  for path, array in reader.read(tensors, starts).items():
    np.testing.assert_allclose(array, found[path], rtol, err_msg=path)
  return found


@pytest.mark.parametrize("select", ["hold", "nearest"])
@pytest.mark.parametrize("clock", CLOCKS)
def test_windows_equal_a_brute_force_search(clock, select):
  rng, count = np.random.default_rng(7), 0
  lengths = [1, 2, *rng.integers(20, 400, 36).tolist()]
  for number, length in enumerate(lengths):
    stamps = CLOCKS[clock](rng, length, rate=RATES[number % len(RATES)])
    values = {"x": np.arange(1.0, length + 1, dtype=np.float32), "stamp": stamps}
    tolerance, padding = [(None, "repeat"), (0.2, "zero")][number % 2]
    spec = spec_of(Seconds(*OFFSETS, select=select, tolerance=tolerance))
    cut = windows.Cut(clock="stamp", masks=True, padding=padding)
    for survey in (False, length > 10):
      found = read(values, spec, cut, survey)
      rows, real = brute_force(stamps, stamps, OFFSETS, select, tolerance)
      shown = np.where(real | (padding == "repeat"), values["x"][rows], 0)
      np.testing.assert_array_equal(found["x_mask"], real)
      np.testing.assert_array_equal(found["x"], shown)
    count += 2 * length
  assert count > 100_000 / len(CLOCKS) / 2


@pytest.mark.parametrize("select", ["hold", "nearest"])
def test_values_may_have_another_clock_than_the_anchors(select):
  rng = np.random.default_rng(3)
  length = 300
  steps, camera = jittered(rng, length, 30), jittered(rng, length, 29) - 0.05
  values = {"x": np.arange(length, dtype=np.float32), "t": steps, "clocks/x": camera}
  spec = spec_of(Seconds(-0.1, 0.0, select=select, clock="clocks/x"))
  found = read(values, spec, windows.Cut(clock="t", masks=True), survey=True)
  rows, real = brute_force(camera, steps, (-0.1, 0.0), select, None)
  np.testing.assert_array_equal(found["x"], rows)
  np.testing.assert_array_equal(found["x_mask"], real)
  assert not real.all()


@pytest.mark.parametrize("as_clock", ["period", "stamps", "float32"])
def test_regular_clock_gives_the_windows_of_steps(as_clock):
  period, length = 1 / 30, 3000
  steps = (-6, -3, 0, 1, 9)
  values = {"x": np.arange(length, dtype=np.float32)}
  cut = windows.Cut(clock=period, masks=True)
  if as_clock != "period":
    dtype = np.float32 if as_clock == "float32" else np.float64
    values["stamp"] = (np.arange(length) / 30).astype(dtype)
    cut = windows.Cut(clock="stamp", masks=True)
  by_steps = {"x": Spec((5,), tf.float32, "x", time_offsets=steps)}
  want = read(values, by_steps, cut)
  for select in ("hold", "nearest", "linear"):
    spec = spec_of(Seconds(*(step / 30 for step in steps), select=select))
    found = read(values, spec, cut)
    np.testing.assert_array_equal(found["x_mask"], want["x_mask"])
    np.testing.assert_array_equal(found["x"], want["x"])


@pytest.mark.parametrize("as_clock", ["period", "stamps"])
def test_chunks_at_50_hz_of_30_hz_data_are_interpolated(as_clock):
  length, stamps = 60, np.arange(60) / 30
  values = {"x": np.sin(stamps)[:, None] * np.arange(1.0, 4)}
  cut = windows.Cut(clock=1 / 30, masks=True)
  if as_clock == "stamps":
    values["stamp"] = stamps
    cut = windows.Cut(clock="stamp", masks=True)
  seconds = Seconds(np.arange(25) / 50, select="linear")
  found = read(values, spec_of(seconds, (3,), tf.float64), cut)
  times = stamps[:, None] + np.arange(25) / 50
  for column in range(3):
    want = np.interp(times, stamps, values["x"][:, column])
    np.testing.assert_allclose(found["x"][..., column], want, atol=1e-6)
  np.testing.assert_array_equal(found["x_mask"], times <= stamps[-1] + 1e-9)
  assert length - found["x_mask"].all(1).sum() == 15


def test_slerp_turns_quaternions_at_a_constant_rate():
  angles, stamps = np.cumsum([0.3, 0.5, 2.0, 0.1, 1.0]), np.arange(5) * 0.1
  axis = np.array([0.6, 0.0, 0.8])
  turns = np.r_["-1", np.sin(angles / 2)[:, None] * axis, np.cos(angles / 2)[:, None]]
  turns[2] *= -1  # The same rotation.
  values = {"x": turns, "stamp": stamps}
  spec = spec_of(Seconds(0.03, select="slerp"), (4,), tf.float64)
  found = read(values, spec, windows.Cut(clock="stamp"), rtol=1e-12)["x"][:4]
  turned = 0.7 * angles[:-1] + 0.3 * angles[1:]
  want = np.r_["-1", np.sin(turned / 2)[:, None] * axis, np.cos(turned / 2)[:, None]]
  np.testing.assert_allclose(np.abs(np.sum(found * want, -1)), 1, atol=1e-6)
  np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1, atol=1e-6)


def test_sequences_have_seconds_around_each_anchor():
  length = 9
  values = {"x": np.arange(length, dtype=np.float32), "stamp": np.arange(length) / 10}
  for clock in ("stamp", 0.1):
    spec = {
      "x": Spec(
        (2,), tf.float32, "x", is_sequence=True, time_offsets=Seconds(-0.15, 0.0)
      )
    }
    cut = windows.Cut(sequence_length=3, stride=2, masks=True, clock=clock)
    found = read(values, spec, cut)
    starts = 2 * np.arange(len(found["x"]))[:, None] + [0, 2, 4]
    want = np.stack([np.maximum(starts - 2, 0), starts], -1)
    np.testing.assert_array_equal(found["x"], np.minimum(want, length - 1))
    real = np.stack([(starts >= 2) & (starts < length), starts < length], -1)
    np.testing.assert_array_equal(found["x_mask"], real)


def test_steps_and_seconds_mix_in_one_structure():
  values = {"x": np.arange(20, dtype=np.float32), "stamp": np.arange(20) / 10}
  spec = {
    **spec_of(Seconds(-0.25)),
    "chunk": Spec((3,), tf.float32, "x", time_offsets=(0, 1, 2)),
  }
  dataset = tf.data.Dataset.from_tensors(values)
  found = [
    (float(window["x"]), window["chunk"].numpy().tolist())
    for window in windows.windows(dataset, spec, clock="stamp")
  ]
  assert found[10] == (7, [10, 11, 12])


VALUES = {
  "x": np.arange(9, dtype=np.float32),
  "stamp": np.arange(9) / 10,
  "half": np.arange(9) / 20,
  "text": np.array([b""] * 9, object),
  "pair": np.zeros((9, 2)),
}
INVALID = {
  "no clock": (Seconds(-0.1), {}, "expected a clock for .* Name the clock: clock="),
  "unknown clock": (
    Seconds(-0.1),
    {"clock": "stamps"},
    "x: time_offsets: clock: .* at 'stamps', got no such path. Did you mean 'stamp'",
  ),
  "unknown clock of values": (
    Seconds(-0.1, clock="clocks/camera"),
    {"clock": "stamp"},
    "a time stamp for each step at 'clocks/camera', got no such path",
  ),
  "text as a clock": (Seconds(-0.1), {"clock": "text"}, "at 'text', got .*string"),
  "two numbers a step": (Seconds(-0.1), {"clock": "pair"}, "at 'pair', got .*2"),
  "period and stamps": (
    Seconds(-0.1, clock="half"),
    {"clock": 0.1},
    "expected the time stamps of the anchors, too, got a period of 0.1 s",
  ),
  "no period": (Seconds(-0.1), {"clock": 0.0}, "clock: expected the path .* got 0.0"),
  "drop": (
    Seconds(-0.15, 0.0),
    {"clock": "stamp", "padding": "drop"},
    "expected padding 'repeat' or 'zero' for Seconds.*got 'drop'",
  ),
  "n_step": (
    Seconds(-0.15, 0.0),
    {"clock": 0.1, "n_step": (2, 0.9)},
    "x: time_offsets: expected steps for n_step, got Seconds.*Name steps, or a period",
  ),
  "tolerance below half a period": (
    Seconds(-0.1, select="nearest", tolerance=0.04),
    {"clock": "stamp"},
    "tolerance: expected at least half a period of the clock, 0.05 s, got 0.04",
  ),
  "tolerance below half a regular period": (
    Seconds(-0.15, select="nearest", tolerance=0.04),
    {"clock": 0.1},
    "tolerance: expected at least half a period of the clock, 0.05 s, got 0.04",
  ),
}


@pytest.mark.parametrize(("seconds", "fields", "want"), INVALID.values(), ids=INVALID)
def test_clocks_without_windows_are_an_error(seconds, fields, want):
  with pytest.raises(errors.SpecError, match=want):
    read(VALUES, spec_of(seconds), windows.Cut(**fields), survey=True)


BAD_STAMPS = {
  "fall": ([0.0, 0.2, 0.1, 0.3], "never fall, got 0.1 after 0.2 at step 2"),
  "NaN": ([0.0, np.nan, 0.1, 0.3], "finite time stamps, got nan at step 1"),
  "infinite": ([0.0, 0.1, 0.2, np.inf], "finite time stamps, got inf at step 3"),
  "milliseconds": ([0, 33, 67, 100], "floats of seconds or integers of nanoseconds"),
}


@pytest.mark.parametrize(("stamps", "want"), BAD_STAMPS.values(), ids=BAD_STAMPS)
def test_bad_stamps_are_one_error(stamps, want):
  values = {"x": np.zeros(4, np.float32), "stamp": np.array(stamps)}
  spec, cut = spec_of(Seconds(-0.1)), windows.Cut(clock="stamp")
  with pytest.raises(errors.SpecError, match=want):
    read(values, spec, cut, survey=True)


@pytest.mark.parametrize(
  "stamps", [[0.0, 0.2, 0.1], [0.0, np.nan, 0.1], [0.0, 0.1, np.inf]]
)
def test_bad_stamps_of_a_stream_are_an_error(stamps):
  values = {"x": np.zeros(3, np.float32), "stamp": np.array(stamps)}
  dataset = tf.data.Dataset.from_tensors(values)
  cut, want = (
    windows.Cut(clock="stamp"),
    "stamp: expected finite time stamps that never",
  )
  with pytest.raises(tf.errors.InvalidArgumentError, match=want):
    list(windows.windows(dataset, spec_of(Seconds(-0.1)), cut))
