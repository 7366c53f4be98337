"""Conversions that resume, are refused, and are verified."""

from __future__ import annotations

import glob
import io
import itertools
import json
import os
import pathlib
import sys

import numpy as np
import pytest

from t2r_seq import convert, files, store
from t2r_seq.convert.conversion import verify_conversion
from t2r_seq.episodes import open_episodes
from t2r_seq.episodes.registry import find_format
from t2r_seq.formats import store as stores
from t2r_seq.formats import zarr as zarr_group
from t2r_seq.progress import Progress


@pytest.fixture(name="source")
def fixture_source(data):
  """A store of five episodes of numbers."""
  return data.make_store("source", 5, data.NUMBERS)


def stopping(source, number):
  """Opens episodes that fail to be read from a number on."""
  episodes, count = open_episodes(source), itertools.count()

  def stop(values):
    if next(count) == number:
      raise KeyboardInterrupt
    return values

  return episodes.map(stop, episodes.spec)


# What is committed is kept; other formats start again, and leave nothing behind.
DESTINATIONS = {
  "x.tfrecord": ({"num_shards": 2}, 2),
  "x.zarr": ({}, 0),
  "x.hdf5": ({}, 0),
  "x.lerobot": ({"fps": 10, "video_codec": "libx264"}, 0),
  "copy": ({"format": "store"}, 3),
}


@pytest.mark.parametrize("destination", DESTINATIONS)
def test_interrupt_keeps_what_is_committed(destination, source):
  options, committed = DESTINATIONS[destination]
  with pytest.raises(KeyboardInterrupt):
    convert.convert(stopping(source, 3), destination, **options)
  left = glob.glob(f"{destination.removesuffix('.tfrecord')}*")
  assert bool(left) == bool(committed), left
  with pytest.raises(ValueError, match="expected a complete conversion to verify"):
    verify_conversion(source, destination)
  report = convert.convert(source, destination, **options)
  assert report.resumed_at == committed
  verify_conversion(source, destination)
  again = convert.convert(source, destination, **options)
  assert (again.resumed_at, again.num_episodes, again.num_bytes) == (5, 5, 0)
  assert not os.path.exists(f"{destination}.partial")


def change_source(source):
  with store.EpisodeStore.append(source) as writer:
    writer.append_episode(store.EpisodeStore(source).episode(0))
  return {}


def change_options(source):
  return {"drop": ("goal",), "seed": 2}


def change_kind(source):
  return {"format": "hdf5"}


def damage_plan(source):
  pathlib.Path("copy.conversion/conversion.json").write_text('{"format": "x"')
  return {}


def newer_plan(source):
  path = pathlib.Path("copy.conversion/conversion.json")
  path.write_text(json.dumps({**json.loads(path.read_text()), "version": 3}))
  return {}


REFUSALS = {
  "the source changed": (change_source, ["expected the data of the first run"]),
  "other options": (
    change_options,
    [
      "drop: expected None, as at its start, got ['goal']",
      "seed: expected None, as at",
    ],
  ),
  "another kind": (
    change_kind,
    ["format: expected 'store', as at its start, got 'hdf5'"],
  ),
  "a damaged plan": (damage_plan, ["expected the record of a conversion, version 2"]),
  "a newer plan": (newer_plan, ["expected the record of a conversion, version 2"]),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_resuming_something_else_is_refused(name, source):
  change, wants = REFUSALS[name]
  with pytest.raises(KeyboardInterrupt):
    convert.convert(stopping(source, 3), "copy")
  arguments = {"format": "store", **change(source)}
  with pytest.raises(ValueError, match=r"^convert: ") as caught:
    convert.convert(source, "copy", **arguments)
  for want in wants:
    assert want in str(caught.value)
  assert len(store.EpisodeStore("copy")) == 3


def test_another_spec_when_it_resumes(source, data):
  convert.convert(source, "x.tfrecord")
  with pytest.raises(KeyboardInterrupt):
    convert.convert(["x.tfrecord"], "copy", data.NUMBERS, progress=Interruption(at=3))
  changed = {path: leaf for path, leaf in data.NUMBERS.items() if path != "goal"}
  with pytest.raises(ValueError, match=r"spec: expected .*'goal'.*, as at its start"):
    convert.convert("x.tfrecord", "copy", changed)
  assert convert.convert("x.tfrecord", "copy", data.NUMBERS).resumed_at == 3


class Interruption(Progress):
  """Interrupts a conversion after some episodes."""

  def __init__(self, at):
    super().__init__(io.StringIO())
    self._at = at

  def advance(self, *args):
    self._at -= 1
    if not self._at:
      raise KeyboardInterrupt


def test_source_that_changes_meanwhile(source, data, monkeypatch):
  convert.convert(source, "x.tfrecord")
  original = stores.StoreWriter.append

  def append(self, values):
    os.utime("x.tfrecord", (1, 1))
    original(self, values)

  monkeypatch.setattr(stores.StoreWriter, "append", append)
  with pytest.raises(ValueError, match="the source changed"):
    convert.convert("x.tfrecord", "copy", data.NUMBERS)


BUSY = {"copy": "conversion/lock", "x.zarr": "partial/lock", "x.hdf5": "partial/lock"}


@pytest.mark.parametrize("destination", BUSY)
def test_two_at_once(source, destination):
  lock = pathlib.Path(f"{destination}.{BUSY[destination]}")
  lock.parent.mkdir()
  held = files.FileLock(str(lock), RuntimeError)
  with pytest.raises(ValueError, match=rf"{destination}: expected no other .*process"):
    convert.convert(source, destination)
  held.release()
  convert.convert(source, destination)


OCCUPIED = {
  "a folder": ("copy", "copy/file", "store"),
  "a file": ("x.tfrecord", "x.tfrecord", None),
  "another shard": ("x.tfrecord", "x-00000-of-00007.tfrecord", None),
  "another compression": ("x.tfrecord.gz", "x.tfrecord", None),
  "an hdf5 file": ("x.hdf5", "x.hdf5", None),
  "an empty zarr folder": ("x.zarr", "x.zarr/", None),
}


@pytest.mark.parametrize("name", OCCUPIED)
def test_existing_destinations_are_refused(name, source):
  destination, taken, kind = OCCUPIED[name]
  path = pathlib.Path(taken)
  (path if taken.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
  if not taken.endswith("/"):
    path.write_bytes(b"mine")
  is_other = name.startswith("another")
  want = "nothing there"
  want = "no other files of that name" if is_other else want
  with pytest.raises(ValueError, match=f"expected {want}"):
    convert.convert(source, destination, format=kind)
  assert taken.endswith("/") or path.read_bytes() == b"mine"
  assert not os.path.exists(f"{destination}.conversion")


def test_destination_that_was_deleted_is_converted_again(source):
  convert.convert(source, "x.hdf5")
  os.remove("x.hdf5")
  assert convert.convert(source, "x.hdf5").resumed_at == 0


def test_shard_that_was_deleted(source):
  convert.convert(source, "x.tfrecord", num_shards=2)
  os.remove("x-00001-of-00002.tfrecord")
  with pytest.raises(ValueError, match=r"got nothing at \[x-00001-of-00002.tfrecord\]"):
    convert.convert(source, "x.tfrecord", num_shards=2)


def flip_byte(path, offset=-1):
  data = bytearray(pathlib.Path(path).read_bytes())
  data[offset] ^= 1
  pathlib.Path(path).write_bytes(data)


def test_verify_finds_flipped_bytes_on_both_sides(data):
  """A byte of one column of each side; the episodes and paths are named."""
  data.make_store("source", 5, data.NUMBERS)
  convert.convert("source", "copy", format="store")
  verify_conversion("source", "copy")
  flip_byte("source/segments/main/dones.data", 0)
  flip_byte("copy/segments/main/goal.data")
  want = "episode 0: dones: expected the values of episode 0 of source, got others in"
  with pytest.raises(ValueError, match=want) as caught:
    verify_conversion("source", "copy")
  caught.match("episode 4: goal: expected .* got others in episode 4 of copy")


DAMAGED = {
  "x.tfrecord": ("x.tfrecord", r"record \d of x.tfrecord .*flipped bits"),
  "x.zarr": ("x.zarr/data/obs_image/0.0.0.0", r"episode \d.*: obs/image: expected"),
}


@pytest.mark.parametrize("destination", DAMAGED)
def test_verify_finds_damaged_files(destination, source):
  convert.convert(source, destination)
  path, want = DAMAGED[destination]
  flip_byte(path, os.path.getsize(path) // 2)
  with pytest.raises(ValueError, match=want):
    verify_conversion(source, destination)


def test_verify_finds_a_flipped_byte_in_hdf5(source):
  import h5py

  convert.convert(source, "x.hdf5")
  with h5py.File("x.hdf5", "a") as file:
    file["data/demo_3/obs/pose"][1, 1] += 1
  with pytest.raises(ValueError, match="episode 3: obs/pose: expected the values"):
    verify_conversion(source, "x.hdf5")


def test_verify_finds_what_was_written_wrongly(source, monkeypatch):
  original = stores.StoreWriter.append

  def append(self, values):
    changed = (
      {**values, "dones": ~values["dones"]} if len(values["dones"]) == 3 else values
    )
    original(self, changed)

  monkeypatch.setattr(stores.StoreWriter, "append", append)
  convert.convert(source, "copy", format="store")
  with pytest.raises(ValueError, match="episode 2: dones: expected the values of"):
    verify_conversion(source, "copy")


def test_verify_counts_episodes(source):
  convert.convert(source, "copy", format="store")
  with store.EpisodeStore.append("copy") as writer:
    writer.append_episode(store.EpisodeStore("copy").episode(0))
  with pytest.raises(ValueError, match="number of episodes: expected 5, as the source"):
    verify_conversion(source, "copy")


def test_verify_without_a_conversion(source):
  with pytest.raises(
    ValueError, match=r"expected a complete conversion .*got nothing in"
  ):
    verify_conversion(source, "copy")


KIND_FAILURES = {
  "nothing there": (
    ("nothing", "copy"),
    {},
    r"expected a store \(with .*, got nothing there",
  ),
  "nearly": (("sources", "copy"), {}, r"Did you mean 'source'\?"),
  "a folder of something": ((".", "copy"), {}, r"got a folder with \[source\]"),
  "itself": (("source", "./source"), {}, "expected another place than the source"),
  "no suffix": (("source", "x.npz"), {}, "expected a name that ends in"),
  "a zip file to write": (("source", "x.zarr.zip"), {}, "expected a name that ends in"),
  "no kind": (
    ("source", "copy"),
    {"format": "zar"},
    r"got 'zar'. Did you mean 'zarr'\?",
  ),
  "a pattern": (("source", "x-*.tfrecord"), {}, "got a pattern"),
  "shards": (
    ("source", "x.tfrecord"),
    {"num_shards": 6},
    "expected 1 to 5 shards for as many episodes, got 6",
  ),
  "an option of another format": (
    ("source", "x.zarr"),
    {"num_shards": 6},
    r"num_shards: expected an option of .*\[cast, .* got 'num_shards'",
  ),
  "dropped": (
    ("source", "x.tfrecord"),
    {"drop": ("gaol",)},
    r"gaol: expected one of the paths \[.*Did you mean 'goal'\?",
  ),
}


@pytest.mark.parametrize("name", KIND_FAILURES)
def test_failures(name, source):
  paths, arguments, want = KIND_FAILURES[name]
  with pytest.raises(ValueError, match=want):
    convert.convert(*paths, **arguments)
  assert not os.path.exists(f"{paths[1]}.conversion")


def test_formats_without_a_suffix(source):
  convert.convert(source, "x.hdf5")
  os.rename("x.hdf5", "no_suffix")
  convert.convert(source, "x.zarr")
  os.rename("x.zarr", "folder")
  pathlib.Path("records").write_bytes(b"")
  found = {
    name: find_format(name).name
    for name in ("no_suffix", "source", "folder", "rec*", "records")
  }
  want = ["hdf5", "store", "zarr", "tfrecord", "tfrecord"]
  assert list(found.values()) == want


EXTRAS = {"x.zarr": ("zarr", "zarr"), "x.hdf5": ("h5py", "hdf5")}


@pytest.mark.parametrize("destination", EXTRAS)
def test_missing_extras(destination, source, monkeypatch):
  package, extra = EXTRAS[destination]
  monkeypatch.setitem(sys.modules, package, None)
  want = rf"{package} is not installed.*pip install 't2r_seq\[{extra}\]'"
  with pytest.raises(ImportError, match=want):
    convert.convert(source, destination)
  assert not os.path.exists(f"{destination}.conversion")


def test_zarr_of_the_second_version(monkeypatch):
  """Its way of making arrays is chosen by the version."""
  import types

  monkeypatch.setitem(sys.modules, "zarr", types.SimpleNamespace(__version__="2.18.7"))
  calls = []
  group = types.SimpleNamespace(create_dataset=lambda *a, **k: calls.append((a, k)))
  zarr_group.create_array(group, "x", (3,), np.float32, (2,))
  (((name,), options),) = calls
  assert name == "x" and options["compressor"].codec_id == "zstd"


def test_no_episodes(data):
  data.make_store("source", 0)
  with pytest.raises(ValueError, match="expected at least one episode, got none"):
    convert.convert("source", "x.tfrecord")


class Terminal(io.StringIO):
  def isatty(self):
    return True


def test_progress_on_a_terminal():
  stream, now = Terminal(), [0.0]
  progress = Progress(stream, lambda: now[0])
  progress.start("converting", 10, 20)
  for _ in range(5):
    now[0] += 2
    progress.advance(3_000_000)
  progress.stop()
  last = stream.getvalue().split("\r\x1b[K")[-2]
  assert last == (
    "converting " + "█" * 18 + "░" * 6 + "  75% 15/20 episodes, 1.5 MB/s, ETA 0:10"
  )


def test_progress_where_the_total_is_not_known():
  stream, now = Terminal(), [0.0]
  progress = Progress(stream, lambda: now[0])
  progress.start("converting", 0, None)
  for fraction in (0.25, 0.5):
    now[0] += 3600
    progress.advance(0, fraction)
  assert " 50% 2 episodes, ETA 4:00:00" in stream.getvalue()


def test_progress_elsewhere(source):
  """A line a minute, and nothing of a short conversion."""
  stream, now = io.StringIO(), [0.0]
  progress = Progress(stream, lambda: now[0])
  convert.convert(source, "copy", format="store", progress=progress)
  assert stream.getvalue() == ""
  progress.start("checking", 0, 100)
  for _ in range(4):
    now[0] += 31
    progress.advance(1)
  lines = stream.getvalue().splitlines()
  assert len(lines) == 2 and lines[0].startswith("checking   2% 2/100 episodes")
