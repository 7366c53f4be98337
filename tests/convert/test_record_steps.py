"""Records that are steps: where episodes end, and what is wrong with some."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, errors, records, specs, store
from t2r_seq.episodes import open_episodes

Spec = specs.ExtendedTensorSpec

STEP = {
  "x": Spec((2,), tf.float32, "x"),
  "id": Spec((), tf.int64, "id"),
  "name": Spec((), tf.string, "name"),
  "is_last": Spec((), tf.int64, "is_last"),
  "force": Spec((), tf.float32, "force", is_optional=True),
}
LENGTHS = (3, 1, 300, 2)


def steps(lengths=LENGTHS, first=0):
  """Lists the steps of episodes; odd ones have a force."""
  found = []
  for index, length in enumerate(lengths, start=first):
    for t in range(length):
      step = {"x": np.asarray([index, t], np.float32), "id": np.asarray(index)}
      step["name"] = f"episode {index}".encode()
      step["is_last"] = np.asarray(int(t == length - 1))
      if index % 2:
        step["force"] = np.asarray(t, np.float32)
      found.append(step)
  return found


def write(path, found):
  records.write_records(path, STEP, found)


def want_episode(index, length, constant=()):
  rows = steps([length], index)
  values = {path: [row[path] for row in rows] for path in rows[0]}
  want = {}
  for path, items in values.items():
    if path == "name":
      items = np.asarray(items, object)
    want[path] = np.asarray(items[0] if path in constant else items)
  if "name" in constant:
    want["name"] = np.empty((), object)
    want["name"][()] = values["name"][0]
  return want


def split(found, *sizes):
  """Writes the steps to files of these sizes."""
  for index, size in enumerate(sizes):
    write(f"x-{index}.tfrecord", found[:size])
    found = found[size:]
  assert not found


BOUNDS = {
  "key": (dict(episode_key="id"), (306,), ("id",)),
  "key, text": (dict(episode_key="name"), (306,), ("name",)),
  "key, episodes over several files": (
    dict(episode_key="id"),
    (2, 100, 204),
    ("id",),
  ),
  "last": (dict(last_key="is_last"), (306,), ()),
  "last, over several files": (dict(last_key="is_last"), (5, 256, 45), ()),
  "file": (dict(episode_per_file=True), LENGTHS, ()),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds(name, data):
  options, sizes, constant = BOUNDS[name]
  split(steps(), *sizes)
  report = convert.convert("x-*.tfrecord", "back", STEP, **options)
  assert report.num_episodes == 4
  want = [want_episode(i, length, constant) for i, length in enumerate(LENGTHS)]
  data.assert_episodes("back", want)


def test_file_of_a_whole_batch(data):
  """256 records are parsed at once: an episode ends with its file all the same."""
  split(steps((256, 2)), 256, 2)
  convert.convert("x-*.tfrecord", "back", STEP, episode_per_file=True)
  assert store.EpisodeStore("back").episode_lengths.tolist() == [256, 2]


def test_context_and_sequences(data):
  """Where specs say what is a sequence, the rest is the same in all steps."""
  spec = {
    path: Spec(**{**leaf.fields(), "is_sequence": path != "name"})
    for path, leaf in STEP.items()
  }
  write("x.tfrecord", steps())
  convert.convert("x.tfrecord", "back", spec, last_key="is_last")
  want = [want_episode(i, length, ("name",)) for i, length in enumerate(LENGTHS)]
  data.assert_episodes("back", want)


def test_proposed_specs():
  write("x.tfrecord", steps((3, 2)))
  report = convert.convert("x.tfrecord", "back", episode_key="id")
  assert report.notes == ("The specs were proposed from the files: look at them.",)
  opened = store.EpisodeStore("back")
  assert opened.episode_lengths.tolist() == [3, 2]
  assert not opened.spec["id"].is_sequence and opened.spec["x"].is_sequence
  assert opened.spec["force"].is_optional


def test_convert_notes_fill_values_of_missing_values():
  with tf.io.TFRecordWriter("x.tfrecord") as writer:
    for values in ([41.0], [41.0], []):
      floats = tf.train.Feature(float_list=tf.train.FloatList(value=values))
      number = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
      features = tf.train.Features(feature={"lat": floats, "id": number})
      writer.write(tf.train.Example(features=features).SerializeToString())
  report = convert.convert("x.tfrecord", "back", episode_per_file=True)
  (_, note) = report.notes
  assert note.startswith("'lat' has different numbers of values in records: shorter")
  assert "filled up with 0.0, which is not data" in note and "--drop lat" in note


def test_files_that_end_within_an_episode():
  write("x.tfrecord", steps((3, 4))[:-2])
  report = convert.convert("x.tfrecord", "back", STEP, last_key="is_last")
  assert store.EpisodeStore("back").episode_lengths.tolist() == [3, 2]
  (note,) = report.notes
  assert "'is_last' is not set in record 4 of x.tfrecord" in note


def test_encoded_images(data):
  spec = {
    "frame": Spec((8, 6, 3), tf.uint8, "frame", data_format="jpeg"),
    "id": Spec((), tf.int64, "id"),
  }
  frames = data.make_episode(4)["frame"]
  records.write_records("x.tfrecord", spec, [{"frame": f, "id": 7} for f in frames])
  convert.convert("x.tfrecord", "back", spec, episode_key="id")
  np.testing.assert_array_equal(store.EpisodeStore("back").episode(0).frame, frames)


def interleaved(found):
  return found[:5] + found[7:] + found[5:7]


def without_force(found):
  del found[5]["force"]
  return found


FAILURES = {
  "no bounds": (
    lambda found: found,
    dict(),
    r"expected sequences, because a record is an episode, got none in .*--episode_key",
  ),
  "no such key": (
    lambda found: found,
    dict(episode_key="idd"),
    r"record 0 of x.tfrecord .*: expected the feature 'idd'.*Did you mean 'id'\?",
  ),
  "an episode that comes twice": (
    interleaved,
    dict(episode_key="id"),
    r"id 1, 2 steps from record 7 of x.tfrecord .*: expected the steps of an episode "
    r"one after the other, got 'id' 1 a second time",
  ),
  "an optional path in some steps": (
    without_force,
    dict(episode_key="id"),
    r"force: expected it in every step of the episode or in none, got 3 of 4 steps",
  ),
  "no episode key in one": (
    lambda found: found,
    dict(episode_key="force"),
    r"record 0 of x.tfrecord",
  ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures(name):
  change, options, want = FAILURES[name]
  write("x.tfrecord", change(steps((3, 4, 2))))
  with pytest.raises(ValueError, match=want):
    convert.convert("x.tfrecord", "back", STEP, **options)


def test_damaged_first_record_is_an_error():
  with tf.io.TFRecordWriter("x.tfrecord") as writer:
    writer.write(b"\xff")
  want = r"^record 0 of x.tfrecord \(byte 0\): .*expected a serialized tf.train.Example"
  with pytest.raises(errors.RecordError, match=want):
    convert.convert("x.tfrecord", "back", STEP, episode_key="id")


def test_context_that_changes():
  spec = {
    "x": Spec((2,), tf.float32, "x"),
    "id": Spec((), tf.int64, "id", is_sequence=True),
  }
  write("x.tfrecord", steps((3,)))
  with pytest.raises(
    ValueError, match=r"x: expected the same value in all steps.* step 1"
  ):
    convert.convert("x.tfrecord", "back", spec, episode_per_file=True)


def test_several_bounds(here):
  (here / "x.tfrecord").write_bytes(b"")
  want = r"expected one of \[.*\], got \[episode_key, last_key\]"
  with pytest.raises(ValueError, match=want):
    open_episodes("x.tfrecord", episode_key="id", last_key="is_last")


FIRST, MID, LAST = 0, 1, 2
STEP_TYPES = np.asarray([FIRST, MID, LAST, FIRST, MID, MID, LAST], np.int32)
FLAG_CASES = {
  # values of the key, its spec, options, lengths of the episodes
  "int64": (STEP_TYPES == LAST, Spec((), tf.int64, "k"), {"last_key": "k"}, [3, 4]),
  "bool": (STEP_TYPES == LAST, Spec((), tf.bool, "k"), {"last_key": "k"}, [3, 4]),
  "float": (STEP_TYPES == LAST, Spec((), tf.float32, "k"), {"last_key": "k"}, [3, 4]),
  "first": (STEP_TYPES == FIRST, Spec((), tf.int64, "k"), {"first_key": "k"}, [3, 4]),
  "step types": (STEP_TYPES, Spec((), tf.int64, "k"), {"last_key": "k=2"}, [3, 4]),
  "first of step types": (
    STEP_TYPES,
    Spec((), tf.int64, "k"),
    {"first_key": "k=0"},
    [3, 4],
  ),
  "raw int32": (
    STEP_TYPES,
    Spec((), tf.int32, "k", data_format="raw"),
    {"last_key": "k=2"},
    [3, 4],
  ),
  "text": (
    np.asarray([b"False", b"True", b"False", b"True"], object),
    Spec((), tf.string, "k"),
    {"last_key": "k=True"},
    [2, 2],
  ),
  "one value in a list": (
    (STEP_TYPES == LAST)[:, None],
    Spec((1,), tf.int64, "k"),
    {"last_key": "k"},
    [3, 4],
  ),
}
KINDS = ("steps", "a sequence", "sequences of two steps")


def write_keys(kind, keys, leaf):
  """Writes steps as records, as one sequence, or as sequences of two; x counts."""
  x = np.arange(len(keys), dtype=np.float32)
  is_step = kind == "steps"
  spec = {
    "x": Spec((), tf.float32, "x", is_sequence=not is_step),
    "k": Spec(**{**leaf.fields(), "is_sequence": not is_step}),
    "task": Spec((), tf.string, "task"),
  }
  keys = keys if leaf.dtype == tf.string else keys.astype(leaf.dtype.as_numpy_dtype)
  size = {"steps": 1, "a sequence": len(keys)}.get(kind, 2)
  starts = range(0, len(keys), size)
  rows = [(i if is_step else slice(i, i + size)) for i in starts]
  records.write_records(
    "x.tfrecord", spec, [{"x": x[i], "k": keys[i], "task": b"put"} for i in rows]
  )
  return spec


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FLAG_CASES)
def test_flags(name, kind):
  keys, leaf, options, lengths = FLAG_CASES[name]
  spec = write_keys(kind, keys, leaf)
  convert.convert("x.tfrecord", "back", spec, **options)
  opened = store.EpisodeStore("back")
  assert opened.episode_lengths.tolist() == lengths
  want = np.split(np.arange(len(keys), dtype=np.float32), np.cumsum(lengths)[:-1])
  for index, x in enumerate(want):
    np.testing.assert_array_equal(opened.episode(index).x, x)


BAD_FLAGS = {
  "other numbers": (
    STEP_TYPES,
    Spec((), tf.int64, "k"),
    {"last_key": "k"},
    r"record \d of x.tfrecord.*: k: expected 0 or 1, got 2. Say which value it is: "
    r"--last_key 'k=VALUE'",
  ),
  "bytes": (
    np.asarray([b"False", b"True"], object),
    Spec((), tf.string, "k"),
    {"first_key": "k"},
    r"k: expected 0 or 1, got bytes b'False'. Say .* --first_key 'k=VALUE'",
  ),
  "a number that is none": (
    STEP_TYPES,
    Spec((), tf.int64, "k"),
    {"last_key": "k=LAST"},
    r"k: expected a value of --last_key that is a number, .* got 'LAST'",
  ),
  "several a step": (
    np.zeros((4, 2)),
    Spec((2,), tf.int64, "k"),
    {"last_key": "k"},
    r"k: expected one value per step, got shape \(2,\)",
  ),
  "never": (
    STEP_TYPES,
    Spec((), tf.int64, "k"),
    {"last_key": "k=7"},
    r"k: expected it to be set in some step, got none in 7 steps",
  ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BAD_FLAGS)
def test_bad_flags(name, kind):
  keys, leaf, options, want = BAD_FLAGS[name]
  spec = write_keys(kind, keys, leaf)
  with pytest.raises(errors.ConversionError, match=want):
    convert.convert("x.tfrecord", "back", spec, **options)


def test_files_that_begin_within_an_episode():
  spec = write_keys("a sequence", np.asarray([0, 1, 0]), Spec((), tf.int64, "k"))
  report = convert.convert("x.tfrecord", "back", spec, first_key="k")
  assert store.EpisodeStore("back").episode_lengths.tolist() == [1, 2]
  assert (
    "The files begin within an episode: 'k' is not set in record 0" in (report.notes[0])
  )


def flagged(first, last=None):
  """Writes a record of six steps with flags."""
  flags = {"is_first": first, "is_last": last}
  flags = {name: np.asarray(value) for name, value in flags.items() if value}
  spec = {name: Spec((), tf.int64, name, is_sequence=True) for name in flags}
  spec["x"] = Spec((), tf.float32, "x", is_sequence=True)
  records.write_records(
    "x.tfrecord", spec, [{**flags, "x": np.arange(6, dtype=np.float32)}]
  )
  return spec


# What the specs that are proposed, or given, make of the flag: {path: (name, shape)}.
READ_AS = {
  "a number": {"is_first": ("is_first", ())},
  "a list of one number": {"is_first": ("is_first", (1,))},
  "another path": {"begins": ("is_first", ())},
  "whatever is proposed": None,
}


@pytest.mark.parametrize("name", READ_AS)
def test_record_of_several_episodes_is_no_episode(name):
  spec = flagged([1, 0, 0, 1, 0, 0])
  given, path = None, "is_first"
  if read_as := READ_AS[name]:
    ((path, (key, shape)),) = read_as.items()
    given = {path: Spec(shape, tf.int64, key, is_sequence=True), "x": spec["x"]}
  want = (
    rf"record 0 of x.tfrecord.*: {path}: expected it to be set in step 0 of 6 alone, "
    r"because a record is an episode, got it in step 3. Cut .* --first_key is_first;"
  )
  with pytest.raises(errors.ConversionError, match=want):
    convert.convert("x.tfrecord", "back", given)


def test_record_of_several_episodes_is_cut():
  spec = flagged([1, 0, 0, 1, 0, 0])
  convert.convert("x.tfrecord", "cut", spec, first_key="is_first")
  assert store.EpisodeStore("cut").episode_lengths.tolist() == [3, 3]
  spec = flagged([1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 1])
  with pytest.raises(
    errors.ConversionError, match=r"is_last: .* got it in step 1.*last_"
  ):
    convert.convert("x.tfrecord", "back2", spec)


@pytest.mark.parametrize("name", ["is_first", "is_last"])
def test_flags_that_no_spec_reads_are_looked_at(name):
  spec = flagged([1, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 1])
  option = name.replace("is_", "--") + "_key"
  unread = {"x": spec["x"]}
  other = "is_last" if name == "is_first" else "is_first"
  with pytest.raises(errors.ConversionError, match=rf"{name}: .*Cut .*{option}"):
    convert.convert("x.tfrecord", "back2", unread, drop=(other,))
  both = dict(drop=("is_first", "is_last"))
  report = convert.convert("x.tfrecord", "back3", unread, **both)
  assert report.num_episodes == 1


def test_episode_of_several_records_is_refused_and_joined():
  spec = flagged([1, 0, 0, 0, 0, 0])
  parts = [([1, 0], [0, 1]), ([0, 0], [2, 3]), ([1, 0], [4, 5])]
  episodes = [{"is_first": np.asarray(f), "x": np.float32(x)} for f, x in parts]
  records.write_records("x.tfrecord", spec, episodes)
  want = r"record 1 of .*is_first: .*as in record 0 of .*Join the records"
  for wanted in (spec, {"x": spec["x"]}):
    with pytest.raises(errors.ConversionError, match=want):
      convert.convert("x.tfrecord", f"back{len(wanted)}", wanted)
  convert.convert("x.tfrecord", "cut", spec, first_key="is_first")
  assert store.EpisodeStore("cut").episode_lengths.tolist() == [4, 2]


def test_records_that_are_parts_of_episodes_are_reported():
  report = convert.convert("x.tfrecord", "back", flagged([0] * 6, [0] * 5 + [1]))
  (note,) = report.notes
  assert note.startswith("'is_first' is set in no step of record 0 of x.tfrecord")


def test_conversion_resumes_within_a_record():
  spec = flagged([1, 0, 1, 0, 0, 1])
  x = np.asarray([0, 1, np.nan, 3, 4, 5], np.float32)
  records.write_records(
    "x.tfrecord", spec, [{"is_first": np.asarray([1, 0, 1, 0, 0, 1]), "x": x}]
  )
  with pytest.raises(errors.ConversionError, match=r"episode 1 .*NaN"):
    convert.convert("x.tfrecord", "back", spec, first_key="is_first")
  report = convert.convert(
    "x.tfrecord", "back", spec, first_key="is_first", allow_nan=True
  )
  assert report.resumed_at == 1
  opened = store.EpisodeStore("back")
  np.testing.assert_array_equal(
    np.concatenate([opened.episode(index).x for index in range(3)]), x
  )
  assert opened.episode_lengths.tolist() == [2, 3, 1]


@pytest.mark.parametrize("bound", [{"episode_per_file": True}, {"episode_key": "a"}])
def test_record_of_several_steps_among_those_of_one(bound, tmp_path, monkeypatch):
  """It had been read as a step in which everything is absent."""
  monkeypatch.chdir(tmp_path)
  spec = {"a": Spec((1,), tf.float32, "a")}
  records.write_records("x-0.tfrecord", spec, [{"a": np.ones(1, np.float32)}] * 3)
  sequence = {"a": Spec((1,), tf.float32, "a", is_sequence=True)}
  records.write_records("x-1.tfrecord", sequence, [{"a": np.ones((2, 1), np.float32)}])
  want = (
    r"record 0 of .*x-1.tfrecord .*: expected a step, a tf.train.Example, as the first "
    "record is one, got a tf.train.SequenceExample, which has several. Convert the "
  )
  with pytest.raises(errors.ConversionError, match=want):
    convert.convert("x-*.tfrecord", "out", None, **bound)
