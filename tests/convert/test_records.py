"""TFRecord files and stores: every value and every encoded byte, both ways."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, records, specs, store
from t2r_seq.episodes import open_episodes
from t2r_seq.records.framing import iterate_records
from t2r_seq.records.images import decode_images
from t2r_seq.records.protos import present_names
from t2r_seq.specs.packing import encode_image

Spec = specs.ExtendedTensorSpec

LAYOUTS = {
  "one file": ("x.tfrecord", dict(), ["x.tfrecord"], "x.tfrecord"),
  "shards": (
    "x.tfrecord",
    dict(num_shards=3),
    [f"x-0000{i}-of-00003.tfrecord" for i in range(3)],
    "x-*.tfrecord",
  ),
  "gzip": ("x.tfrecord.gz", dict(), ["x.tfrecord.gz"], "x.tfrecord.gz"),
  "zlib, no suffix": (
    "x.tfrecord",
    dict(num_shards=2, compression="ZLIB"),
    [f"x-0000{i}-of-00002.tfrecord" for i in range(2)],
    "x-*.tfrecord",
  ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_round_trip(name, data):
  path, options, want_files, pattern = LAYOUTS[name]
  data.make_store("source", 7, metadata={"robot": "arm"})
  report = convert.convert("source", path, **options)
  assert (report.num_episodes, report.num_steps, report.resumed_at) == (7, 18, 0)
  files = [name for name in os.listdir() if os.path.isfile(name)]
  assert sorted(files) == want_files
  back = dict(compression=options.get("compression"))
  assert convert.convert(pattern, "back", data.ALL, **back).num_episodes == 7
  data.assert_episodes("back", [data.make_episode(index) for index in range(7)])
  assert dict(store.EpisodeStore("back").spec) == dict(
    store.EpisodeStore("source").spec
  )


def test_files_are_those_of_the_writer(data):
  """The encoded bytes are in the records, and the writer would give the same file."""
  data.make_store("source", 4)
  convert.convert("source", "x.tfrecord")
  episodes = [data.make_episode(index) for index in range(4)]
  records.write_records("want.tfrecord", data.ALL, episodes)
  want = pathlib.Path("want.tfrecord").read_bytes()
  assert pathlib.Path("x.tfrecord").read_bytes() == want
  assert episodes[3]["frame"][2] in want


def test_specs_without_names(data):
  spec = {"a/b": Spec((2,), tf.float32, is_sequence=True), "c": Spec((), tf.string)}
  with store.EpisodeStore.create("source", spec) as writer:
    writer.append_episode({"a/b": np.ones((3, 2), np.float32), "c": b"\0"})
  convert.convert("source", "x.tfrecord")
  (record,) = iterate_records("x.tfrecord")
  assert present_names(record.data) == {"a/b", "c"}


def test_proposed_specs(data):
  spec = {
    "frame": Spec((8, 6, 3), tf.uint8, "frame", is_sequence=True, data_format="jpeg"),
    "pose": Spec((3,), tf.float32, "pose", is_sequence=True),
  }
  episodes = [
    {"frame": e["frame"], "pose": e["obs/pose"]}
    for e in (data.make_episode(index) for index in range(3))
  ]
  records.write_records("x.tfrecord", spec, episodes)
  report = convert.convert("x.tfrecord", "back")
  assert report.notes == ("The specs were proposed from the files: look at them.",)
  data.assert_episodes("back", episodes)


def test_specs_of_many_records_are_proposed_from_a_sample(data):
  spec = {"pose": Spec((), tf.int64, "pose", is_sequence=True)}
  late = {**spec, "late": Spec((), tf.int64, "late", is_sequence=True)}
  for name in ("x-a.tfrecord", "x-b.tfrecord"):
    with tf.io.TFRecordWriter(name) as writer:
      for number in range(300):
        chosen = spec if number < 250 else late
        values = dict.fromkeys(chosen, np.full(2, number))
        writer.write(records.encode_example(specs.TensorSpecStruct(chosen), values))
  episodes = open_episodes("x-*.tfrecord")
  (note,) = episodes.notes
  assert note == (
    "The specs were proposed from the files (500 records of them): look at them."
  )
  assert [*episodes.spec] == ["pose"]
  assert len([*episodes]) == 600


def test_dropped_paths(data):
  data.make_store("source", 3)
  options = dict(drop=("obs", "words"))
  convert.convert("source", "x.tfrecord", **options)
  convert.convert("x.tfrecord", "back", data.ALL, **options)
  kept = [path for path in data.ALL if path != "words" and not path.startswith("obs/")]
  want = [data.only(data.make_episode(index), kept) for index in range(3)]
  data.assert_episodes("back", want)


def test_decoded_images(data):
  data.make_store("source", 2)
  convert.convert("source", "pixels", decode_images=True, format="store")
  opened = store.EpisodeStore("pixels")
  assert opened.spec["frame"].data_format is None
  for index in range(2):
    episode = data.make_episode(index)
    for path in ("frame", "pair"):
      encoded = tf.constant(episode[path].tolist())
      want = decode_images(encoded, data.ALL[path], path)
      np.testing.assert_array_equal(opened.episode(index)[path], want)


def test_part_of_a_store(data):
  data.make_store("source", 3)
  wanted = {
    "task": Spec((), tf.string, "instruction"),
    "dones": data.ALL["dones"],
    "force": data.ALL["force"],
  }
  convert.convert("source", "x.tfrecord", wanted)
  names = present_names(next(iterate_records("x.tfrecord")).data)
  assert names == {"instruction", "dones"}


def write_bad(data, episode, **changes):
  """Writes five episodes, of which number 3 is changed."""
  spec = {path: data.ALL[path] for path in ("frame", "obs/pose")}
  episodes = [data.only(data.make_episode(i, 4), spec) for i in range(5)]
  episodes[3].update(changes)
  records.write_records("x.tfrecord", spec, episodes)
  return spec, episodes


def test_corrupted_record(data):
  """A flipped byte is found; the episodes before it stay; mended, it goes on."""
  spec, episodes = write_bad(data, 3)
  path = pathlib.Path("x.tfrecord")
  good, offset = path.read_bytes(), 0
  for record in iterate_records("x.tfrecord"):
    offset = record.offset + 100 if record.index == 3 else offset
  stat = os.stat(path)
  path.write_bytes(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
  os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
  with pytest.raises(
    ValueError, match=r"record 3 of x.tfrecord \(byte \d+\): .*flipped"
  ):
    convert.convert("x.tfrecord", "back", spec)
  assert len(store.EpisodeStore("back")) == 3
  path.write_bytes(good)
  os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
  report = convert.convert("x.tfrecord", "back", spec)
  assert (report.resumed_at, report.num_episodes) == (3, 5)
  data.assert_episodes("back", episodes)


BAD_RECORDS = {
  "no image": (
    {"frame": [b"no image"] * 4},
    r"record 3 of x.tfrecord .*, step 0: frame: expected an image of \(8, 6, 3\), got "
    "8 bytes that are not an image",
  ),
  "an image of another size": (
    {"frame": [encode_image(np.zeros((4, 6, 3), np.uint8), "png")] * 4},
    r"record 3 of x.tfrecord .*: frame: expected an image of \(8, 6, 3\), got 4x6 PNG",
  ),
  "NaN": (
    {"obs/pose": np.full((4, 3), np.nan, np.float32)},
    # The command's remedy, not that of who writes a store in Python.
    r"episode 3 \(record 3 of x.tfrecord .*: obs/pose: expected .*, got NaN at"
    r"(?!.*create the writer).*--allow_nan",
  ),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_bad_records(name, data):
  changes, want = BAD_RECORDS[name]
  spec, _ = write_bad(data, 3, **changes)
  with pytest.raises(ValueError, match=want):
    convert.convert("x.tfrecord", "back", spec)
  assert len(store.EpisodeStore("back")) == 3


def test_conversion_resumes_with_allow_nan(data):
  spec, episodes = write_bad(data, 3, **{"obs/pose": np.full((4, 3), np.nan, "f4")})
  with pytest.raises(ValueError, match="got NaN"):
    convert.convert("x.tfrecord", "back", spec)
  report = convert.convert("x.tfrecord", "back", spec, allow_nan=True)
  assert report.resumed_at == 3
  data.assert_episodes("back", episodes)


def test_misfitting_spec(data):
  data.make_store("source", 2)
  convert.convert("source", "x.tfrecord")
  wrong = {**data.ALL, "obs/pose": Spec((4,), tf.float32, "obs/pose", is_sequence=True)}
  with pytest.raises(ValueError, match=r"record 0 of x.tfrecord .*4 values for shape"):
    convert.convert("x.tfrecord", "back", wrong)
  wanted = {
    "obs/pose": Spec((4,), tf.float32, is_sequence=True),
    "tusk": Spec((), tf.string),
  }
  want = r"obs/pose: expected \(4,\) float32, per step, got \(3,\) float32"
  with pytest.raises(ValueError, match=want) as caught:
    convert.convert("source", "y.tfrecord", wanted)
  assert (
    "tusk: expected () string, per episode, got nothing. Did you mean 'task'?"
    in str(caught.value)
  )
  assert not os.path.exists("y.tfrecord.conversion")


def test_consecutive_conversions_do_not_warn_of_retracing(data, caplog):
  data.make_store("source", 1)
  convert.convert("source", "x.tfrecord")
  for number in range(6):
    convert.convert("x.tfrecord", f"copy-{number}")
  assert "retracing" not in caplog.text
