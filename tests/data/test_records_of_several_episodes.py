"""A window shows steps of one episode, whatever records hold: flags are looked at."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, data, errors, records
from t2r_seq.records.check import examine_records
from t2r_seq.specs import ExtendedTensorSpec as Spec

WHOLE = [1, 0, 0, 0, 0, 0]
TWO = [1, 0, 0, 1, 0, 0]
ENDS = [0, 0, 1, 0, 0, 1]
PAIR = {"x": Spec((2,), tf.float32, "x", time_offsets=(-1, 0))}


def feature(values):
  if isinstance(values[0], float):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))
  return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def as_sequence(columns):
  lists = {
    name: tf.train.FeatureList(feature=[feature([value]) for value in values])
    for name, values in columns.items()
  }
  return tf.train.SequenceExample(
    feature_lists=tf.train.FeatureLists(feature_list=lists)
  )


def as_rlds(columns):
  lists = {f"steps/{name}": feature(values) for name, values in columns.items()}
  return tf.train.Example(features=tf.train.Features(feature=lists))


def write(path, make, episodes):
  """Writes records of x, numbered over all of them, and flags."""
  first = 0
  with tf.io.TFRecordWriter(str(path)) as writer:
    for flags in episodes:
      count = len(next(iter(flags.values())))
      x = [float(first + t) for t in range(count)]
      first += count
      writer.write(make({"x": x, **flags}).SerializeToString())
  return str(path)


def windows_of(path, kind, spec=None, **options):
  made = kind(path, batch_size=1, **options)
  made.set_feature_specifications(spec or PAIR)
  made.set_label_specifications({})
  made.set_padding("drop")
  return made


def read(path, kind, mode, spec=None, **options):
  made = windows_of(path, kind, spec, **options)
  with made.explain_failures():
    dataset = made.create_dataset(mode)
    return [f["x"].numpy()[0].tolist() for f, _ in dataset.take(20)]


SEQUENCES = (as_sequence, data.DefaultRecordInputGenerator)
RLDS = (as_rlds, data.RldsInputGenerator)
FLAGGED = {**PAIR, "last": Spec((2,), tf.int64, "is_last", time_offsets=(-1, 0))}
# name: (layout, flags of the records, specs, mode, options, what is told)
REFUSED = {
  "found, in order": (SEQUENCES, [{"is_first": TWO}], PAIR, "eval", {}, "is_first"),
  "found, in a stream": (SEQUENCES, [{"is_first": TWO}], PAIR, "train", {}, "is_first"),
  "found, by an index": (
    *(SEQUENCES, [{"is_first": TWO}], PAIR, "train", {"index": "require"}, "is_first"),
  ),
  "found, of RLDS": (RLDS, [{"is_first": TWO}], PAIR, "eval", {}, "steps/is_first"),
  "in a later record": (
    *(
      SEQUENCES,
      [{"is_first": WHOLE}, {"is_first": TWO}],
      PAIR,
      "eval",
      {},
      "is_first",
    ),
  ),
  "named": (SEQUENCES, [{"is_last": ENDS}], FLAGGED, "eval", {}, "is_last"),
  "below a branch": (SEQUENCES, [{"a/is_last": ENDS}], PAIR, "eval", {}, "a/is_last"),
  "as floats": (
    *(SEQUENCES, [{"is_first": [1.0, 0.0, 1.0]}], PAIR, "eval", {}, "is_first"),
  ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_several_episodes_in_a_record_are_refused(name, tmp_path):
  (make, kind), episodes, spec, mode, options, flag = REFUSED[name]
  path = write(tmp_path / "r.tfrecord", make, episodes)
  if "index" in options:
    records.write_index(path)
  option = "last" if "last" in flag else "first"
  at = "step [235]"
  want = (
    rf"record {len(episodes) - 1} .*'{flag}'.*expected it set in step \d of \d alone, "
    rf"as a record is an episode, got it set in {at}.*--{option}_key {flag}"
  )
  with pytest.raises(errors.RecordError, match=want):
    read(path, kind, mode, spec, **options)


def test_several_episodes_in_a_record_are_skipped(tmp_path):
  episodes = [{"is_first": flags} for flags in (WHOLE, TWO, WHOLE)]
  path = write(tmp_path / "r.tfrecord", as_sequence, episodes)
  got = []
  for mode in ("eval", "train"):
    got.append(read(path, data.DefaultRecordInputGenerator, mode, on_bad_record="skip"))
  firsts = [0, 1, 2, 3, 4, 12, 13, 14, 15, 16]
  assert got[0] == [[t, t + 1] for t in firsts]
  assert sorted(got[1]) == sorted(2 * got[0])


# name: flags of records, of which each is an episode, or that say nothing
READ = {
  "one episode each": [{"is_first": [1, 0, 0], "is_last": [0, 0, 1]}] * 2,
  "flags that nobody set": [{"is_first": [0, 0, 0], "is_last": [0, 0, 0]}] * 2,
  "one that nobody set": [{"is_first": [1, 0, 0], "is_last": [0, 0, 0]}] * 2,
  "a record without": [{"is_first": [1, 0, 0]}, {"other": [0, 1, 0]}],
}


@pytest.mark.parametrize("name", READ)
def test_records_that_are_read(name, tmp_path):
  path = write(tmp_path / "r.tfrecord", as_sequence, READ[name])
  got = read(path, data.DefaultRecordInputGenerator, "eval")
  assert got == [[0, 1], [1, 2], [3, 4], [4, 5]]


# name: (flags of records, the flag, which record is a part)
CUT = {
  "begins in another record": (
    *([{"is_first": [1, 0, 0]}, {"is_first": [0, 0, 0]}], "is_first", 1),
  ),
  "ends in another record": (
    *([{"is_last": [0, 0, 0]}, {"is_last": [0, 0, 1]}], "is_last", 0),
  ),
}


@pytest.mark.parametrize("name", CUT)
def test_episode_that_is_cut_over_records_is_refused(name, tmp_path):
  episodes, flag, part = CUT[name]
  path = write(tmp_path / "r.tfrecord", as_sequence, episodes)
  edge = flag.removeprefix("is_")
  want = rf"{flag}: expected it set in the {edge} step of every record, .* unset in rec"
  want += rf"ord {part}: an episode that is cut over several records. .*--{edge}_key"
  with pytest.raises(errors.RecordError, match=want):
    read(path, data.DefaultRecordInputGenerator, "eval")
  (problem,) = examine_records(path).problems
  assert (problem.kind, problem.record) == ("episodes", part)
  assert "it unset: a part of an episode" in str(problem)


# name: (specs for the doctor, whether it looks at what windows read only)
DOCTORS = {
  "without specs": None,
  "with specs that lack the flag": {"x": Spec((), tf.float32, "x", is_sequence=True)},
}


@pytest.mark.parametrize("make", [as_sequence, as_rlds])
@pytest.mark.parametrize("name", DOCTORS)
def test_doctor_reports_records_of_several_episodes(name, make, tmp_path):
  flags = [{"is_first": f, "is_last": [*f[1:], 1]} for f in (WHOLE, TWO)]
  path = write(tmp_path / "r.tfrecord", make, flags)
  spec = DOCTORS[name]
  if spec and make is as_rlds:
    spec = records.rlds_specs(spec)
  found = examine_records(path, spec).problems
  assert [(p.record, p.kind) for p in found] == [(1, "episodes")] * 2
  told = " ".join(map(str, found))
  assert "got it set in step 3. Make a store of episodes: t2r_seq convert" in told
  assert "got it set in step 2. Make" in told


def test_converted_they_are_episodes(tmp_path):
  """The way that the errors name leads there."""
  path = write(tmp_path / "r.tfrecord", as_sequence, [{"is_first": TWO}] * 2)
  out = str(tmp_path / "store")
  spec = {"x": Spec((), tf.float32, "x", is_sequence=True)}
  convert.convert(path, out, spec, first_key="is_first")
  got = read(out, data.StoreInputGenerator, "eval")
  firsts = np.flatnonzero([1, 1, 0] * 4)
  assert got == [[t, t + 1] for t in firsts.tolist()]
