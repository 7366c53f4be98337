"""Bad records: they stop the dataset, or are left out, counted and explained."""

from __future__ import annotations

import collections
import itertools
import logging
import os
import re
import struct

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, records, specs, windows
from t2r_seq.data import record_files

_FRAME, _HEADER = 16, 12


@pytest.fixture(name="build")
def fixture_build(tmp_path, kit):
  """Makes a generator of numbers 'x', or of windows of the kit's episodes."""

  def build(mode="eval", model=None, **kwargs):
    kwargs = {"batch_size": 4, "seed": 1, "on_bad_record": "skip", **kwargs}
    generator = data.DefaultRecordInputGenerator(str(tmp_path / "*"), **kwargs)
    spec = {"x": kit.spec((), tf.int64, "x")}
    model = model or kit.FakeModel(lambda mode: spec, lambda mode: {})
    generator.set_specification_from_model(model, mode)
    return generator

  return build


def frames(path):
  """Returns (start, length of the data) of every record."""
  with open(path, "rb") as file:
    content = file.read()
  found, start = [], 0
  while start < len(content):
    (length,) = struct.unpack_from("<Q", content, start)
    found.append((start, length))
    start += _FRAME + length
  return found


def flip(path, place):
  with open(path, "rb+") as file:
    file.seek(place)
    (byte,) = file.read(1)
    file.seek(place)
    file.write(bytes([byte ^ 0x10]))


def write(path, rows):
  """Writes serialized records as they are."""
  with tf.io.TFRecordWriter(str(path)) as writer:
    for row in rows:
      writer.write(row)


def number(value):
  proto = tf.train.Example()
  proto.features.feature["x"].int64_list.value.append(value)
  return proto.SerializeToString()


def floating(value):
  proto = tf.train.Example()
  proto.features.feature["x"].float_list.value.append(value)
  return proto.SerializeToString()


def values(dataset):
  return [features["x"].numpy().tolist() for features, _ in dataset]


# name: what stands in the place of record 5
BAD_CONTENT = {
  "no proto": b"\xff\xff nothing",
  "another kind": floating(1.0),
  "missing": tf.train.Example(features=tf.train.Features()).SerializeToString(),
  "empty": b"",
}


@pytest.mark.parametrize("name", BAD_CONTENT)
def test_rest_of_a_batch_is_kept(build, tmp_path, caplog, name):
  bad = BAD_CONTENT[name]
  rows = [bad if i == 5 else number(i) for i in range(10)]
  write(tmp_path / "a", rows)
  write(tmp_path / "b", [number(i) for i in range(10, 13)])
  generator = build()
  with caplog.at_level(logging.WARNING, logger="absl"):
    got = values(generator.create_dataset("eval"))
  assert got == [[0, 1, 2, 3], [4, 6, 7, 8], [9, 10, 11, 12]]
  (problem,) = generator.report.problems
  assert (problem.source, problem.record) == (str(tmp_path / "a"), 5)
  assert caplog.text.count("Left out bad record 5 of") == 1
  assert generator.report.num_skipped == 1
  assert str(generator.report) == "1 bad records left out"


def test_skipping_keeps_the_order_of_good_records(build, tmp_path, kit):
  for i in range(3):
    kit.write_examples(tmp_path / f"{i}.tfrecord", range(40 * i, 40 * i + 40))

  def batches(mode, **kwargs):
    return values(build(mode, **kwargs).create_dataset(mode).take(40))

  want = batches("train", on_bad_record="raise")
  for num_parallel_calls in (tf.data.AUTOTUNE, 1, None):
    assert batches("train", num_parallel_calls=num_parallel_calls) == want
  assert batches("eval") == batches("eval", on_bad_record="raise")


def test_batches_stay_full_and_the_same_over_many_epochs(build, tmp_path):
  write(tmp_path / "a", [b"bad" if i % 7 == 3 else number(i) for i in range(30)])
  good = [i for i in range(30) if i % 7 != 3]

  def batches(**kwargs):
    generator = build("train", shuffle_buffer_size=10, **kwargs)
    dataset = generator.create_dataset("train")
    assert dataset.element_spec[0]["x"].shape == [4]
    return values(dataset.take(40)), generator.report.num_skipped

  got, skipped = batches()
  # A record is one bad record, however often it is read.
  assert skipped == 4
  assert (got, skipped) == batches(num_parallel_calls=1)
  flat = [value for batch in got for value in batch]
  assert sorted(flat[: len(good)]) == good


# Damaged files.


def test_skipping_continues_after_each_damage(build, tmp_path, kit):
  """One file has flipped bits in data and checksums, one in lengths, one is cut."""
  in_data, in_lengths, cut, _ = (
    kit.write_examples(tmp_path / f"{name}.tfrecord", range(first, first + 10))
    for first, name in zip((0, 10, 20, 30), "abcd", strict=True)
  )
  starts = [start for start, _ in frames(in_data)]
  for place in (starts[3] + _HEADER + 2, starts[5] - 1, starts[9] + _HEADER):
    flip(in_data, place)
  for start, _ in [frames(in_lengths)[record] for record in (0, 6)]:
    flip(in_lengths, start + 1)
  last, _ = frames(cut)[9]
  with open(cut, "rb+") as file:
    file.truncate(last + 15)
  generator = build(batch_size=7)
  got = sum(values(generator.create_dataset("eval")), [])  # noqa: RUF017
  assert got == [number for number in range(40) if number not in (3, 4, 9, 10, 16, 29)]
  places = [(p.source, p.record) for p in generator.report.problems]
  want = [(in_data, 3), (in_data, 4), (in_data, 9)]
  assert sorted(places) == [*want, (in_lengths, 0), (in_lengths, 6), (cut, 9)]


def test_skipping_loses_records_after_damage_in_compressed_files(build, tmp_path, kit):
  path = kit.write_examples(tmp_path / "a.tfrecord.gz", range(500))
  kit.write_examples(tmp_path / "b.tfrecord", [1000])
  with open(path, "rb+") as file:
    file.truncate(file.seek(0, 2) // 2)
  generator = build()
  got = sum(values(generator.create_dataset("eval")), [])  # noqa: RUF017
  assert got[-1] == 1000
  assert got[:-1] == list(range(len(got) - 1))
  (problem,) = generator.report.problems
  assert problem.record == len(got) - 1


def test_skipping_finds_later_damage_in_the_next_epoch(build, tmp_path, kit, caplog):
  path = kit.write_examples(tmp_path / "a.tfrecord", range(10))
  generator = build("train", batch_size=5, shuffle_buffer_size=0)
  batches = iter(generator.create_dataset("train"))
  assert values([next(batches), next(batches)]) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
  flip(path, frames(path)[3][0] + _HEADER)
  os.utime(path, (0, 0))
  # Some hundred records have been read ahead, and one epoch ends at the damage.
  few = itertools.islice(batches, 2_000)
  late = (batch for batch in few if generator.report.num_skipped)
  next(late)
  (problem,) = generator.report.problems
  assert (problem.source, problem.record) == (path, 3)
  assert "a.tfrecord: changed while it was in use" in caplog.text
  later = sum(values(next(late) for _ in range(300)), [])[-9 * 9 :]  # noqa: RUF017
  assert sorted(later) == sorted([0, 1, 2, 4, 5, 6, 7, 8, 9] * 9)


# Windows and sequences.


def episodes(path, kit, spoil):
  """Writes five episodes of six steps; `spoil` changes the protos by number."""
  kit.write_episodes(path, [6] * 5)
  rows = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
  for index, change in spoil.items():
    proto = tf.train.SequenceExample.FromString(rows[index])
    change(proto.feature_lists.feature_list)
    rows[index] = proto.SerializeToString()
  write(path, rows)


def one_byte(features):
  # It stands in every other record, too.
  features["img"].feature[2].bytes_list.value[:] = [b"i"]


def no_image(features):
  features["img"].feature[2].bytes_list.value[:] = [b"no image"]


def fewer_steps(features):
  del features["state"].feature[-1]


@pytest.mark.parametrize(("mode", "at_once"), [("train", 8), ("eval", 1)])
def test_episodes_are_left_out(build, tmp_path, kit, monkeypatch, mode, at_once):
  monkeypatch.setattr(record_files, "_MAX_CHUNK", at_once)
  episodes(tmp_path / "a", kit, {1: no_image, 3: fewer_steps})
  generator = build(mode, kit.FakeModel())
  dataset = generator.create_dataset(mode).take(3)
  tasks = {int(t) for features, _ in dataset for t in features["task"]}
  assert tasks <= {0, 2, 4}
  assert (tasks == {0, 2, 4}) or mode == "train"
  report = generator.report
  if mode == "eval":
    assert (report.window_report.episodes, report.num_skipped) == (3, 2)
    assert "9 windows from 3 episodes" in str(report)
    assert "2 bad records left out" in str(report)
  text = "\n".join(str(problem) for problem in report.problems)
  assert re.search("record 1 of ", text)
  if mode == "eval":
    assert re.search("record 3 of ", text)


@pytest.mark.parametrize(
  ("name", "spoil"), [("a.tfrecord", one_byte), ("a.tfrecord.gz", no_image)]
)
def test_image_that_cannot_be_decoded_leaves_out_its_episode(
  build, tmp_path, kit, name, spoil
):
  """It is found with the pool that its episode is in."""
  path, plain = tmp_path / name, tmp_path.parent / "plain"
  episodes(plain, kit, {1: spoil})
  compression = "GZIP" if name.endswith("gz") else ""
  with tf.io.TFRecordWriter(str(path), compression) as writer:
    for row in tf.data.TFRecordDataset(str(plain)):
      writer.write(row.numpy())
  kit.write_episodes(tmp_path / "b.tfrecord", [6] * 2, first=10)
  generator = build("train", kit.FakeModel(), batch_size=9)
  dataset = generator.create_dataset("train").take(2)
  tasks = [int(t) for features, _ in dataset for t in features["task"]]
  # Each of six episodes has three windows.
  assert collections.Counter(tasks) == dict.fromkeys([0, 2, 3, 4, 10, 11], 3)
  (problem,) = generator.report.problems
  assert (problem.source, problem.record) == (str(path), 1)
  windows, episodes_read = (
    generator.report.window_report.windows,
    generator.report.window_report.episodes,
  )
  # What was counted of the bad one is taken back.
  assert windows == 3 * episodes_read


def test_one_bad_image_of_any_path_leaves_out_its_episode(build, tmp_path, kit):
  """Of an episode's goal, of a step's camera, of a step; and no other is touched."""

  def png(shape, **more):
    return kit.spec(shape, tf.uint8, None, data_format="png", **more)

  cameras = specs.ExtendedTensorSpec.from_spec(
    png((2, 2, 4, 4, 3), time_offsets=(-1, 0)), name="cameras"
  )
  goal = specs.ExtendedTensorSpec.from_spec(png((4, 4, 3)), name="goal")
  declared = specs.TensorSpecStruct(
    {**kit.feature_spec(), "cameras": cameras, "goal": goal}
  )
  rows = []
  for i in range(6):
    episode = kit.make_episode(i, 5)
    pixels = episode["image"] + np.uint8(100)
    more = {"cameras": np.stack([pixels, pixels + 1], 1), "goal": pixels[0]}
    records.write_records(
      str(tmp_path / "one"), windows.flat_specs(declared), [{**episode, **more}]
    )
    (row,) = tf.data.TFRecordDataset(str(tmp_path / "one"))
    rows.append(row.numpy())
  os.remove(tmp_path / "one")

  def read(rows, **kwargs):
    write(tmp_path / "a", rows)
    generator = build(
      "train", kit.FakeModel(lambda mode: declared), batch_size=3, **kwargs
    )
    found = {}
    for features, _ in generator.create_dataset("train").take(len(rows)):
      for i, (task, state) in enumerate(
        zip(features["task"].numpy(), features["state"].numpy(), strict=True)
      ):
        window = {k: v[i].numpy().tolist() for k, v in features.items()}
        found[int(task), int(state[-1, 1])] = window
    return found, generator.report

  want, _ = read(rows[:1] + rows[4:], on_bad_record="raise")
  bad = [tf.train.SequenceExample.FromString(row) for row in rows[1:4]]
  bad[0].context.feature["goal"].bytes_list.value[:] = [b"no image"]
  bad[1].feature_lists.feature_list["cameras"].feature[4].bytes_list.value[1] = b"i"
  no_image(bad[2].feature_lists.feature_list)
  spoilt = [row.SerializeToString() for row in bad]
  got, report = read([rows[0], *spoilt, *rows[4:]])
  assert {(0, 2), (4, 3), (5, 2)} <= set(want)
  assert got == want
  assert {problem.record for problem in report.problems} == {1, 2, 3}
  assert report.window_report.windows == 2 * report.window_report.episodes


# Graphs of images take long to make: one way is enough for them.
@pytest.mark.parametrize(
  ("paths", "ways"),
  [
    (["image", "state", "task"], [(1, tf.data.AUTOTUNE)]),
    (["state", "task"], [(1, None), (8, 2)]),
  ],
)
def test_good_windows_are_read_as_without_it(
  build, tmp_path, kit, monkeypatch, paths, ways
):
  for i in range(3):
    kit.write_episodes(tmp_path / f"{i}.tfrecord", [6, 4, 7], first=3 * i)

  def features(mode):
    return {path: kit.feature_spec(mode)[path] for path in paths}

  def batches(policy, num_parallel_calls):
    how = {"memory_budget": 300_000, "num_parallel_calls": num_parallel_calls}
    model = kit.FakeModel(features)
    generator = build("train", model, on_bad_record=policy, **how)
    batches = generator.create_dataset("train").take(30)
    return [
      {path: value.numpy().tolist() for path, value in features.items()}
      for features, _ in batches
    ]

  for at_once, num_parallel_calls in ways:
    monkeypatch.setattr(record_files, "_MAX_CHUNK", at_once)
    want = batches("raise", None)
    assert batches("skip", num_parallel_calls) == want


def test_whole_sequences(build, tmp_path, kit):
  flat = {"x": kit.spec((1,), tf.float32, "x", is_sequence=True)}
  path = tmp_path / "a"
  rows = [{"x": np.full((1 + i % 3, 1), i, np.float32)} for i in range(6)]
  records.write_records(path, flat, rows)
  serialized = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
  serialized[2] = b"bad"
  write(path, serialized)
  model = kit.FakeModel(
    lambda mode: specs.add_sequence_length_specs(flat), lambda mode: {}
  )
  generator = build(model=model, batch_size=3)
  batches = [features for features, _ in generator.create_dataset("eval")]
  assert [b["x"][:, 0, 0].numpy().tolist() for b in batches] == [[0, 1, 3], [4, 5]]
  assert [b["x_length"].numpy().tolist() for b in batches] == [[1, 2, 1], [2, 3]]
  assert generator.report.num_skipped == 1


# Limits.


@pytest.mark.parametrize(("limit", "is_error"), [(3, False), (2, True), (0, True)])
def test_too_many_bad_records_are_an_error(build, tmp_path, limit, is_error):
  write(
    tmp_path / "a", [b"bad %d" % i if i in (2, 5, 8) else number(i) for i in range(9)]
  )
  generator = build(max_bad_records=limit)
  if not is_error:
    assert len(values(generator.create_dataset("eval"))) == 2
    return
  want = (
    rf"max_bad_records: expected at most {limit}, got one more: record \d of .*a\. "
    r"The first: record 2 of .*t2r_seq doctor FILES, which explains"
  )
  with pytest.raises(errors.RecordError, match=want), generator.explain_failures():
    list(generator.create_dataset("eval"))


@pytest.mark.parametrize(("mode", "windowed"), [("train", True), ("eval", False)])
def test_skipping_fails_if_no_record_is_good(build, tmp_path, kit, mode, windowed):
  write(tmp_path / "a", [b"\xff bad", b"\xff worse"])
  state = kit.spec((3, 2), tf.float32, "state", time_offsets=(-2, -1, 0))
  model = kit.FakeModel(lambda mode: {"state": state}) if windowed else None
  generator = build(mode, model)
  want = (
    r"expected at least the 1 examples of one batch, got 0 and 2 bad records left out"
    r"\. The first: record 0 of .*a\. Run t2r_seq doctor"
  )
  with pytest.raises(errors.RecordError, match=want):
    generator.create_dataset(mode)


@pytest.mark.parametrize(
  ("policy", "kind", "shuffle_buffer_size"),
  [("skip", "windows", 9), ("raise", "windows", 0), ("skip", "examples", 9)],
)
def test_files_emptied_during_a_run_raise(
  build, tmp_path, kit, policy, kind, shuffle_buffer_size
):
  path, model = tmp_path / "a.tfrecord", None
  if kind == "windows":
    kit.write_episodes(path, [6] * 5)
    state = kit.spec((3, 2), tf.float32, "state", time_offsets=(-2, -1, 0))
    model = kit.FakeModel(lambda mode: {"state": state})
  else:
    write(path, [number(i) for i in range(30)])
  options = {"on_bad_record": policy, "shuffle_buffer_size": shuffle_buffer_size}
  generator = build("train", model, **options)
  batches = iter(generator.create_dataset("train"))
  next(batches)
  os.truncate(path, 0)
  want = "expected an example in each epoch, got none: .* files have become empty"
  with pytest.raises(errors.RecordError, match=want), generator.explain_failures():
    collections.deque(batches, maxlen=0)


@pytest.mark.parametrize("num_parallel_calls", [None, 2])
def test_only_bad_records_raise(build, tmp_path, num_parallel_calls):
  write(tmp_path / "a", [number(i) for i in range(6)])
  generator = build("train", num_parallel_calls=num_parallel_calls)
  batches = iter(generator.create_dataset("train"))
  next(batches)
  # At once: a file that is being written is empty for a moment.
  write(tmp_path / "new", [b"bad %d" % i for i in range(6)])
  os.replace(tmp_path / "new", tmp_path / "a")
  want = r"\*: expected an example in each epoch, got none: .* all of their records bad"
  with pytest.raises(errors.RecordError, match=want), generator.explain_failures():
    collections.deque(batches, maxlen=0)
  assert generator.report.num_skipped == 6


@pytest.mark.parametrize(("windowed", "policy"), [(True, "skip"), (False, "raise")])
def test_count_names_what_is_bad(build, tmp_path, kit, windowed, policy):
  path = str(tmp_path / "a.tfrecord")
  (kit.write_episodes if windowed else kit.write_examples)(path, [6] * 5)
  (_, _), (start, _), *_ = frames(path)
  flip(path, start + _HEADER)
  state = kit.spec((3, 2), tf.float32, "state", time_offsets=(-2, -1, 0))
  model = kit.FakeModel(lambda mode: {"state": state}) if windowed else None
  generator = build("eval", model, on_bad_record=policy)
  want = rf"record 1 of .*a\.tfrecord \(byte {start}\): frame: expected data with"
  with pytest.raises(errors.RecordError, match=want):
    generator.count_examples()


NO_PROTOS = {
  "empty": (b"", r"an empty record \(0 bytes\)\.$"),
  "random": (bytes(range(250, 200, -1)), r"50 bytes that are neither, b'\\xfa"),
  "text": (b"no episode", "10 bytes that are neither, b'no episode'"),
  "unknown fields": (bytes([13 << 3, 5]), r"2 bytes that are neither, b'h\\x05'"),
}


# (name, windowed, place): the message is the same at each place.
NO_PROTOS_AT = [
  *(("empty", windowed, place) for windowed in (True, False) for place in (0, 2)),
  ("random", True, 2),
  ("text", False, 0),
  ("unknown fields", True, 0),
  ("unknown fields", False, 2),
]


@pytest.mark.parametrize(("name", "windowed", "place"), NO_PROTOS_AT)
def test_raise_names_records_that_are_no_proto(
  build, tmp_path, kit, name, windowed, place
):
  """Of both formats: windows are read from SequenceExamples, numbers from Examples."""
  bad, got = NO_PROTOS[name]
  rows = [number(i) for i in range(3)]
  if windowed:
    kit.write_episodes(tmp_path / "a", [6] * 3)
    rows = [record.numpy() for record in tf.data.TFRecordDataset(str(tmp_path / "a"))]
  write(tmp_path / "a", [*rows[:place], bad, *rows[place:]])
  generator = build(model=kit.FakeModel() if windowed else None, on_bad_record="raise")
  offset = frames(tmp_path / "a")[place][0]
  want = (
    rf"record {place} of .*a \(byte {offset}\): proto: expected a serialized "
    rf"tf\.train\.Example or tf\.train\.SequenceExample, got {got}"
  )
  with pytest.raises(errors.RecordError, match=want), generator.explain_failures():
    list(generator.create_dataset("eval"))


REFUSED = {
  "policy": ({"on_bad_record": "skpi"}, "expected 'raise' or 'skip', .*mean 'skip'"),
  "limit": ({"max_bad_records": -1}, "max_bad_records: expected an integer of at le"),
  "index": ({"index": "require"}, "got 'skip' with index='require'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_are_checked(build, name):
  arguments, message = REFUSED[name]
  with pytest.raises(errors.SpecError, match=message):
    build(**arguments)


def test_zipped_datasets_are_not_skipped_in(tmp_path, kit):
  patterns = {
    key: kit.write_examples(tmp_path / f"{key}.tfrecord", [1]) for key in ("a", "b")
  }
  model = kit.FakeModel(
    lambda mode: {k: kit.spec((), tf.int64, "x", dataset_key=k) for k in patterns},
    lambda mode: {},
  )
  generator = data.DefaultRecordInputGenerator(patterns, on_bad_record="skip")
  generator.set_specification_from_model(model, "eval")
  with pytest.raises(errors.SpecError, match=r"for the zipped datasets \[a, b\]"):
    generator.create_dataset("eval")


@pytest.mark.parametrize(("policy", "mode"), [("skip", "eval"), ("raise", "train")])
def test_file_that_is_gone_is_named(build, tmp_path, policy, mode):
  for i in range(3):
    write(tmp_path / f"{i}.tfrecord", [number(i)] * 8)
  generator = build(mode, on_bad_record=policy, cycle_length=1)
  dataset = generator.create_dataset(mode)
  for i in range(3):
    (tmp_path / f"{i}.tfrecord").unlink()
  with (
    pytest.raises(errors.RecordError, match=r"\d\.tfrecord: expected a file"),
    generator.explain_failures(),
  ):
    list(dataset.take(20))


def test_first_three_places_are_named(build, tmp_path, caplog):
  write(tmp_path / "a", [number(0), *(b"bad %d" % i for i in range(11))])
  with caplog.at_level(logging.WARNING, logger="absl"):
    generator = build()
    assert values(generator.create_dataset("eval")) == [[0]]
  assert caplog.text.count("Left out bad record") == 3
  assert "record 3 of " in caplog.text and "record 4 of " not in caplog.text
  assert generator.report.num_skipped == 11
