"""An index says what a scan of the file says, and is refused when the file changes."""

from __future__ import annotations

import os
import re
import struct
import zlib

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from t2r_seq import errors, records, specs
from t2r_seq.records import index_file, rlds
from t2r_seq.records.files import get_data_format_and_filenames
from t2r_seq.records.framing import iterate_records
from t2r_seq.records.index import check_index, read_index
from t2r_seq.records.index_file import index_path, read_file_index

Spec = specs.ExtendedTensorSpec
F32 = tf.float32
EPISODE = {
  "a": Spec((2,), F32, "a", is_sequence=True),
  "text": Spec((), tf.string, "text", is_sequence=True),
  "task": Spec((), tf.string, "task"),
}


def episode(length, text=b"x"):
  return {
    "a": np.full((length, 2), length, np.float32),
    "text": [text * (i + 1) for i in range(length)],
    "task": "t",
  }


def write(path, lengths, spec=EPISODE):
  records.write_records(path, spec, [episode(length) for length in lengths])
  return str(path)


def write_raw(path, datas, compression=""):
  with tf.io.TFRecordWriter(str(path), compression) as writer:
    for data in datas:
      writer.write(data)
  return str(path)


FEATURE = st.one_of(
  st.lists(st.binary(max_size=200), max_size=3).map(
    lambda v: tf.train.Feature(bytes_list=tf.train.BytesList(value=v))
  ),
  st.lists(st.floats(width=32), max_size=3).map(
    lambda v: tf.train.Feature(float_list=tf.train.FloatList(value=v))
  ),
  st.just(tf.train.Feature()),
)
NAME = st.text(max_size=5)


@st.composite
def protos(draw):
  proto = tf.train.SequenceExample()
  for name, feature in draw(st.dictionaries(NAME, FEATURE, max_size=2)).items():
    proto.context.feature[name].CopyFrom(feature)
  for name in draw(st.sets(NAME, max_size=3)):
    steps = proto.feature_lists.feature_list[name]
    if draw(st.booleans()):
      steps.feature.extend(draw(st.lists(FEATURE, max_size=6)))
    else:
      steps.feature.extend([draw(FEATURE)] * draw(st.integers(0, 300)))
  return proto.SerializeToString()


def brute_force(filename, compression=""):
  """Reads every record: where it ends, its bytes, and the steps of its sequences."""
  found = list(iterate_records(filename, compression))
  ends = [record.offset + len(record.data) + 16 for record in found]
  steps = [record.contents().num_steps for record in found]
  return ends, [record.data for record in found], steps


def assert_is_of(index, filename, compression=""):
  ends, datas, steps = brute_force(filename, compression)
  assert index.num_records == len(ends) and index.ends.tolist() == ends
  assert index.lengths.tolist() == [len(data) for data in datas]
  assert index.offsets.tolist() == [0, *ends][: len(ends)]
  names = sorted({name for record in steps for name in record})
  assert sorted(index.steps) == names
  for name in names:
    assert index.steps[name].tolist() == [record.get(name, 0) for record in steps]
    assert index.steps[name].dtype == np.int64


@hypothesis.settings(max_examples=12)
@hypothesis.given(st.lists(st.lists(protos(), max_size=6), min_size=1, max_size=4))
def test_index_equals_a_scan(tmp_path_factory, files):
  folder = tmp_path_factory.mktemp("files")
  names = [
    write_raw(folder / f"{number}.tfrecord", datas)
    for number, datas in enumerate(files)
  ]
  results = records.write_index(names)
  assert [result.filename for result in results] == names
  for result in results:
    assert result.is_new and not result.error
    assert_is_of(result.index, result.filename)
    assert_is_of(read_file_index(result.filename), result.filename)
  index = read_index(names)
  assert len(index) == sum(map(len, files))
  got = [index.read(i) for i in range(len(index))]
  assert got == [data for datas in files for data in datas]


@pytest.mark.parametrize("size", [0, 1, 4000, 70_000, 1 << 20])
def test_records_around_the_sizes_of_chunks(size, tmp_path):
  context = tf.train.Features(
    feature={"x": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x" * size]))}
  )
  data = tf.train.Example(features=context).SerializeToString()
  name = write_raw(tmp_path / "a.tfrecord", [data, b"", data, data[:0], data])
  (result,) = records.write_index(name)
  assert_is_of(result.index, name)


@pytest.mark.parametrize("suffix, compression", [(".gz", "GZIP"), (".zz", "ZLIB")])
def test_compressed_files_are_counted_but_not_read_at_random(
  suffix, compression, tmp_path
):
  name = write(tmp_path / f"a.tfrecord{suffix}", [3, 1, 4])
  (result,) = records.write_index(name)
  assert_is_of(result.index, name, compression)
  index = read_index(name)
  assert index.num_steps(EPISODE).tolist() == [3, 1, 4]
  with pytest.raises(
    errors.RecordError,
    match=rf"index: .*tfrecord{suffix}: expected a file without compression, got "
    rf"{compression}: .* Decompress it and index it again",
  ):
    index.read(0)
  content = bytearray((tmp_path / f"a.tfrecord{suffix}").read_bytes())
  stat = os.stat(name)
  content[-1] ^= 1
  with open(name, "r+b") as file:
    file.write(content)
  os.utime(name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
  (state,) = check_index(name)
  assert (state.state, state.reason[:21]) == ("stale", "expected the records ")


def append(path):
  with tf.io.TFRecordWriter(str(path) + ".more") as writer:
    writer.write(b"")
  with open(path, "ab") as file, open(f"{path}.more", "rb") as more:
    file.write(more.read())


def truncate(path):
  os.truncate(path, os.path.getsize(path) - 20)


def rewrite(path):
  """Other records of the same size, a moment later."""
  stat = os.stat(path)
  records.write_records(path, EPISODE, [episode(n, b"y") for n in (3, 1, 4)])
  assert os.path.getsize(path) == stat.st_size
  os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 2_000_000_000))


def go_back(path):
  stat = os.stat(path)
  os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - 1_000_000_000))


def damage_index(path):
  with open(index_path(path), "r+b") as file:
    file.seek(40)
    file.write(b"!")


def cut_index(path):
  os.truncate(index_path(path), 11)


def newer_index(path):
  with open(index_path(path), "r+b") as file:
    file.seek(4)
    file.write(struct.pack("<I", 7))


def remove_index(path):
  os.remove(index_path(path))


# name: (what happens, the state, what the error says)
CHANGES = {
  "appended": (
    append,
    "stale",
    r"expected the \d+ bytes that were indexed, got a file",
  ),
  "truncated": (truncate, "stale", r"expected the \d+ bytes that were indexed"),
  "rewritten": (rewrite, "stale", r"of the same size that was changed 2 s later"),
  "an older one": (go_back, "stale", r"same size that was changed 1 s earlier"),
  "a damaged index": (damage_index, "damaged", "expected a whole index, got other byt"),
  "a cut index": (cut_index, "damaged", "expected a whole index, got 11 bytes"),
  "a newer index": (newer_index, "damaged", "expected version 1 of the format, got 7"),
  "no index": (
    remove_index,
    "missing",
    r"expected an index at .*b\.tfrecord\.t2ri, go",
  ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_file_is_refused_until_it_is_reindexed(name, tmp_path):
  change, state, message = CHANGES[name]
  names = [write(tmp_path / f"{x}.tfrecord", [3, 1, 4]) for x in "abc"]
  records.write_index(names)
  assert len(read_index(names)) == 9
  change(names[1])
  want = rf"index: {re.escape(str(tmp_path))}/b\.tfrecord.*{message}(.|\n)*"
  with pytest.raises(
    errors.RecordError, match=want + r"Run: t2r_seq index .*b\.tfreco"
  ):
    read_index(names)
  states = [found.state for found in check_index(names)]
  assert states == ["fresh", state, "fresh"]
  again = records.write_index(names)
  assert [result.is_new for result in again] == [False, True, False]
  if name == "truncated":
    assert "truncated" in again[1].error and again[1].index is None
  else:
    assert len(read_index(names)) == 9 + (name == "appended")


def test_several_changed_files_are_listed(tmp_path):
  names = [write(tmp_path / f"{i}.tfrecord", [1]) for i in range(30)]
  with pytest.raises(
    errors.RecordError, match=r"30 files have no valid(.|\n)*/0\.tf(.|\n)*and 10 more"
  ):
    read_index(names)


def test_other_records_of_the_same_size_and_time_are_found_by_the_frames(tmp_path):
  name = write(tmp_path / "a.tfrecord", [3, 1, 4])
  records.write_index(name)
  stat = os.stat(name)
  rewrite(name)
  os.utime(name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
  assert len(read_index(name)) == 3  # Cheap, so it cannot know.
  (state,) = check_index(name)
  assert state.state == "stale"
  assert state.reason == (
    "expected the records that were indexed, got others of the same size"
  )


def test_damage_is_found_when_it_is_indexed(tmp_path):
  names = [write(tmp_path / f"{x}.tfrecord", [3, 1, 4]) for x in "abcd"]
  second = brute_force(names[1])[0][0]
  flip(names[1], second + 5)  # A length.
  flip(names[2], 40)  # Data.
  with open(names[3], "wb") as file:
    file.write(b"PK\x03\x04" + b"0" * 100)
  a, b, c, d = records.write_index(names)
  assert a.index is not None and os.path.exists(index_path(names[0]))
  assert "record 1 of" in b.error and "b.tfrecord" in b.error
  assert "flipped bits in the length" in b.error
  assert "record 0 of" in c.error and "c.tfrecord" in c.error
  assert "a zip archive" in d.error
  for result in (b, c, d):
    assert result.index is None
    assert not os.path.exists(index_path(result.filename))


def flip(name, place):
  with open(name, "r+b") as file:
    file.seek(place)
    byte = file.read(1)[0]
    file.seek(place)
    file.write(bytes([byte ^ 16]))


def test_records_that_are_no_protos(tmp_path):
  name = write_raw(tmp_path / "a.tfrecord", [b"", b"\x12\x50nothing"])
  (result,) = records.write_index(name)
  assert "record 1 of" in result.error and "(byte 16)" in result.error
  assert "expected a serialized tf.train.Example" in result.error


def test_spec_is_kept_compared_and_checked(tmp_path):
  name = write(tmp_path / "a.tfrecord", [3, 1])
  only_a = {"x": EPISODE["a"]}
  (result,) = records.write_index(name, only_a)
  assert list(result.index.steps) == ["a"]
  index = read_file_index(name)
  assert index.spec == specs.flatten_spec_structure(only_a)
  # Fresh for whoever does not ask for another one.
  assert not records.write_index(name)[0].is_new
  assert not records.write_index(name, only_a)[0].is_new
  (state,) = check_index(name, EPISODE)
  assert (state.state, state.reason) == (
    "stale",
    "expected the index to be made with the given spec, got another",
  )
  with pytest.raises(
    errors.SpecError, match=r"text \(feature 'text'\): expected a sequence that the in"
  ):
    read_index(name).num_steps(EPISODE)
  other = {"y": Spec((3,), F32, "a", is_sequence=True)}
  with pytest.raises(
    errors.SpecError,
    match=r"y \(feature 'a'\): expected a sequence of float32 \(2,\), got a sequence",
  ):
    read_index(name).num_steps(other)
  # It may be that of any file.
  without_spec = write(tmp_path / "0.tfrecord", [2])
  records.write_index(without_spec)
  with pytest.raises(
    errors.SpecError, match=rf"^index: {re.escape(name)}: y \(feature"
  ):
    read_index([without_spec, name]).num_steps(other)
  # The parser takes as many values in another shape.
  alike = {"y": Spec((2, 1), F32, "a", is_sequence=True)}
  assert read_index(name).num_steps(alike).tolist() == [3, 1]
  (result,) = records.write_index(name, other)
  assert "y (feature 'a'): expected 3 values for shape (3,), got 2" in result.error
  assert records.write_index(name, EPISODE)[0].is_new
  assert read_index(name).num_steps(EPISODE).tolist() == [3, 1]


def test_steps_and_windows_are_exact(tmp_path):
  names = [
    write(tmp_path / f"{i}.tfrecord", lengths)
    for i, lengths in enumerate([[5, 1], [], [9, 2, 3]])
  ]
  records.write_index(names)
  index = read_index(names)
  assert index.num_records == len(index) == 5
  assert index.record_ends.tolist() == [2, 2, 5]
  stack = {"s": Spec((3, 2), F32, "a", time_offsets=(-2, -1, 0))}
  assert index.num_steps(stack).tolist() == [5, 1, 9, 2, 3]
  with pytest.raises(
    errors.SpecError, match="expected at least one sequence, got none"
  ):
    index.num_steps({"task": EPISODE["task"]})
  with pytest.raises(IndexError, match=r"expected a record in range\(5\), got 5"):
    index.read(5)


def sequence_example(**lengths):
  proto = tf.train.SequenceExample()
  for name, length in lengths.items():
    for _ in range(length):
      proto.feature_lists.feature_list[name].feature.add().float_list.value.append(0)
  return proto.SerializeToString()


def test_sequences_of_several_lengths(tmp_path):
  datas = [
    sequence_example(a=3, b=3, words=7),
    sequence_example(a=2, words=1),
    sequence_example(a=4, b=3, words=1),
  ]
  name = write_raw(tmp_path / "a.tfrecord", datas)
  records.write_index(name)
  index = read_index(name)
  a = Spec((), F32, "a", is_sequence=True)
  words = Spec((), F32, "words", is_sequence=True)
  maybe = Spec((), F32, "b", is_sequence=True, is_optional=True)
  never = Spec((), F32, "never", is_sequence=True, is_optional=True)
  assert index.num_steps({"a": a}).tolist() == [3, 2, 4]
  assert index.num_steps({"words": words, "never": never}).tolist() == [7, 1, 1]
  with pytest.raises(
    errors.RecordError,
    match=r"record 2 of .*: b \(feature 'b'\): expected 4 steps, as feature 'a' has, g",
  ):
    index.num_steps({"a": a, "b": maybe})
  with pytest.raises(errors.SpecError, match=r"Did you mean 'words'\?"):
    index.num_steps({"w": Spec((), F32, "word", is_sequence=True)})


def test_patterns_do_not_match_indices(tmp_path):
  name = write(tmp_path / "train.tfrecord", [2])
  records.write_index(name)
  assert os.path.exists(tmp_path / "train.tfrecord.t2ri")
  pattern = str(tmp_path / "train.tfrecord*")
  assert get_data_format_and_filenames(pattern)[1] == [name]
  assert not records.write_index(str(tmp_path / "*"))[0].is_new
  _, found = get_data_format_and_filenames(str(tmp_path / "*.t2ri"))
  assert found == [index_path(name)]
  with pytest.raises(errors.RecordError, match=r"name the file without \.t2ri"):
    records.record_dataset(found)


def test_layout_is_as_it_is_documented(tmp_path):
  name = write(tmp_path / "a.tfrecord", [3, 1])
  records.write_index(name)
  data = (tmp_path / "a.tfrecord.t2ri").read_bytes()
  magic, version, size = struct.unpack_from("<4sIQ", data)
  assert (magic, version, size % 8) == (b"T2RI", 1, 0)
  ends, steps = np.frombuffer(data[16 + size : -4], "<i8").reshape(2, 2)
  assert ends[-1] == os.path.getsize(name) and steps.tolist() == [3, 1]
  assert struct.unpack("<I", data[-4:]) == (zlib.crc32(data[:-4]),)


@hypothesis.settings(max_examples=200)
@hypothesis.given(st.data())
def test_damaged_indices_are_refused(data):
  index = index_file.FileIndex(
    *(100, 5, 7, ""), np.asarray([50, 100]), {"a": np.asarray([1, 2])}
  )
  content = bytearray(index.to_bytes())
  if data.draw(st.booleans()):
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
  else:
    del content[data.draw(st.integers(0, len(content) - 1)) :]
  with pytest.raises(errors.RecordError, match="expected"):
    index_file.FileIndex.from_bytes(bytes(content))


def test_file_that_changes_while_it_is_read(tmp_path, monkeypatch):
  name = write(tmp_path / "a.tfrecord", [3, 1])
  original = rlds.divide_unknown

  def divide_and_change(found):
    os.utime(name, ns=(1, 1))
    return original(found)

  monkeypatch.setattr(rlds, "divide_unknown", divide_and_change)
  (result,) = records.write_index(name)
  assert "expected a file at rest, got one that changed" in result.error
  assert not os.path.exists(index_path(name))


def test_urls_and_several_datasets_are_refused(tmp_path):
  name = write(tmp_path / "a.tfrecord", [1])
  two = {"a": EPISODE["a"], "b": Spec((), F32, "b", dataset_key="other")}
  with pytest.raises(
    errors.SpecError, match="expected specs of one dataset, got those"
  ):
    records.write_index(name, two)
  ram = "ram://folder/a.tfrecord"
  with tf.io.TFRecordWriter(ram) as writer:
    writer.write(b"")
  with pytest.raises(errors.SpecError, match="expected local files, got a URL"):
    records.write_index(ram)


def test_progress_and_many_files(tmp_path):
  names = [write(tmp_path / f"{i:03d}.tfrecord", [1 + i % 3]) for i in range(100)]
  seen = []
  results = records.write_index(names, num_parallel=2, progress=seen.append)
  assert sorted(one.filename for one in seen) == names
  assert all(result.is_new and not result.error for result in results)
  assert len(read_index(names)) == 100
  seen.clear()
  assert not any(r.is_new for r in records.write_index(names, progress=seen.append))
  assert len(seen) == 100
  assert all(r.is_new for r in records.write_index(names[:3], force=True))
