"""What is salvaged of a damaged store: the good episodes, bit for bit, and no other."""

from __future__ import annotations

import json
import os
import random
import shutil

import numpy as np
import pytest

from t2r_seq import errors, store
from t2r_seq.store import EpisodeStore, files, layout, segments
from t2r_seq.store.salvage import salvage_store
from tests.attacks.stores import damage
from tests.store.damages import flip, in_main

COLUMN_FILES = [
  *("obs%2Fimage.data", "obs%2Fjpeg.data", "obs%2Fjpeg.offsets", "obs%2Fhalf.data"),
  *("reward.data", "done.data", "words.data", "words.offsets", "task.data"),
  *("task.offsets", "goal.data", "force.data", "force.present", "rating.data"),
  "rating.present",
]
LENGTHS = (5, 1, 8)


def contents(path):
  """Reads every file of a folder, with the time at which it was written last."""
  found = {}
  for place, _, names in os.walk(path):
    for name in names:
      full = os.path.join(place, name)
      with open(full, "rb") as file:
        found[full] = (file.read(), os.stat(full).st_mtime_ns)
  return found


@pytest.fixture(name="out")
def fixture_out(tmp_path):
  return str(tmp_path / "out")


@pytest.fixture(name="salvaged")
def fixture_salvaged(path, out, episode, same):
  """Salvages `path`, and compares what came out with what had been written."""

  def salvage(want, **options):
    before = contents(path)
    report = salvage_store(path, out, **options)
    assert contents(path) == before
    assert report.num_kept == {"main": len(want)}
    left_out = {number for _, number in report.left_out}
    assert left_out == {*range(len(want) + len(left_out))} - {*want}
    assert store.verify_store(out).is_good
    opened = EpisodeStore(out)
    assert len(opened) == len(want)
    for position, index in enumerate(want):
      same(opened.episode(position), episode(index, LENGTHS[index]))
    return report

  return salvage


def test_files_are_those_of_the_fixture(path):
  names = [
    name
    for name in os.listdir(os.path.join(path, "segments", "main"))
    if name not in (layout.COMMIT, layout.LOCK, *layout.INDEX_FILES)
  ]
  assert sorted(names) == sorted(COLUMN_FILES)


def test_whole_store(path, salvaged, out):
  report = salvaged([0, 1, 2])
  assert report.source.is_good and not report.left_out
  assert report.path == out
  assert EpisodeStore(out).metadata == {"robot": "arm"}
  for path_, spec in EpisodeStore(path).spec.items():
    assert EpisodeStore(out).spec[path_].is_identical_to(spec)
  # A store of one segment that nothing was cut from is copied byte for byte.
  for name in (*COLUMN_FILES, *layout.INDEX_FILES):
    with open(in_main(path, name), "rb") as old, open(in_main(out, name), "rb") as new:
      assert new.read() == old.read(), name


@pytest.mark.parametrize("position", ["first", "last"])
@pytest.mark.parametrize("name", COLUMN_FILES)
def test_flipped_bit_costs_what_it_hits(name, position, path, salvaged):
  size = os.path.getsize(in_main(path, name))
  if not size:
    pytest.skip("An empty file has no bits.")
  flip(in_main(path, name), 0 if position == "first" else size - 1)
  lost = 0 if position == "first" else 2
  report = salvaged([index for index in range(3) if index != lost])
  ((segment, index),) = report.left_out
  assert (segment, index) == ("main", lost)
  assert name in report.left_out[segment, index]


@pytest.mark.parametrize("name", COLUMN_FILES)
def test_truncated_file_costs_the_end(name, path, salvaged):
  size = os.path.getsize(in_main(path, name))
  os.truncate(in_main(path, name), size - 1)
  assert set(salvaged([0, 1]).left_out) == {("main", 2)}


@pytest.mark.parametrize("name", [*COLUMN_FILES, *layout.INDEX_FILES])
def test_extended_file_costs_nothing(name, path, salvaged):
  with open(in_main(path, name), "ab") as file:
    file.write(b"more" * 100)
  assert salvaged([0, 1, 2]).source.is_good


@pytest.mark.parametrize("name", COLUMN_FILES)
def test_missing_file_costs_the_segment(name, path, salvaged):
  os.remove(in_main(path, name))
  report = salvaged([])
  assert all(name in reason for reason in report.left_out.values())


def test_bytes_of_an_absent_optional_are_checked_too(path, salvaged):
  assert not EpisodeStore(path).is_present("force")[2]
  flip(in_main(path, "force.data"), os.path.getsize(in_main(path, "force.data")) - 1)
  salvaged([0, 1])


INDEX_DAMAGE = {
  "flipped end": (lambda p: flip(in_main(p, layout.ENDS), 8), [0], []),
  "huge end": (lambda p: flip(in_main(p, layout.ENDS), 15), [0], []),
  "truncated ends": (lambda p: os.truncate(in_main(p, layout.ENDS), 17), [0, 1], []),
  "missing ends": (lambda p: os.remove(in_main(p, layout.ENDS)), [], []),
  "flipped sums": (lambda p: flip(in_main(p, layout.CHECKSUMS), 1), [1, 2], [0]),
  "truncated sums": (
    lambda p: os.truncate(in_main(p, layout.CHECKSUMS), 4 * len(COLUMN_FILES) + 3),
    [0],
    [1, 2],
  ),
  "missing sums": (lambda p: os.remove(in_main(p, layout.CHECKSUMS)), [], [0, 1, 2]),
  "commit": (lambda p: os.truncate(in_main(p, layout.COMMIT), 20), [0, 1, 2], []),
}


@pytest.mark.parametrize("name", INDEX_DAMAGE)
def test_index(name, path, salvaged):
  damage, want, _ = INDEX_DAMAGE[name]
  damage(path)
  report = salvaged(want)
  assert not report.source.is_good
  assert len(report.left_out) == 3 - len(want)


@pytest.mark.parametrize("name", INDEX_DAMAGE)
def test_lenient(name, path, salvaged):
  damage, want, unverified = INDEX_DAMAGE[name]
  damage(path)
  salvaged(sorted([*want, *unverified]), lenient=True)


def test_damaged_commit_and_a_damaged_episode(path, salvaged):
  os.truncate(in_main(path, layout.COMMIT), 20)
  flip(in_main(path, "goal.data"), 70)
  assert salvaged([0, 1]).left_out == {("main", 2): "damaged in goal.data"}


@pytest.mark.parametrize("byte", [6, 7])
def test_damaged_commit_and_an_impossible_end(byte, path, salvaged):
  os.truncate(in_main(path, layout.COMMIT), 20)
  flip(in_main(path, layout.ENDS), 8 + byte)
  salvaged([0])


def test_lost_commit(path, salvaged):
  os.remove(in_main(path, layout.COMMIT))
  salvaged([0, 1, 2])


def test_lost_manifest_needs_specs(path, out, spec, salvaged):
  os.remove(f"{path}/{layout.MANIFEST}")
  want = (
    r"salvage: .*store: store\.json: expected a whole manifest, got a damaged one\. G"
  )
  with pytest.raises(errors.StoreError, match=want):
    salvage_store(path, out)
  assert not os.path.exists(out)
  with pytest.raises(errors.StoreError, match=want):
    salvage_store(path, out, spec={"reward": spec["reward"]})
  salvaged([0, 1, 2], spec=spec)
  assert EpisodeStore(out).metadata == {}


def test_manifest_that_was_edited_is_not_believed(path, out):
  place = f"{path}/{layout.MANIFEST}"
  with open(place) as file:
    values = json.load(file)
  with open(place, "w") as file:
    json.dump({**values, "metadata": {"robot": "leg"}}, file)
  with pytest.raises(errors.StoreError, match="expected a whole manifest"):
    salvage_store(path, out)


def test_several_segments_become_one(path, out, episode, same):
  with EpisodeStore.append(path, segment="other") as writer:
    for index in (3, 4):
      writer.append_episode(episode(index))
  flip(in_main(path, "goal.data"), 0)
  report = salvage_store(path, out)
  assert (report.num_kept, {*report.left_out}) == ({"main": 4}, {("main", 0)})
  opened = EpisodeStore(out)
  assert opened.column("goal").shape == (4, 3)
  want = [episode(1, 1), episode(2, 8), episode(3), episode(4)]
  for index, expected in enumerate(want):
    same(opened.episode(index), expected)
  with EpisodeStore.append(out) as writer:
    writer.append_episode(episode(5))
  assert len(EpisodeStore(out)) == 5


def test_nan_is_kept_bit_for_bit(tmp_path, out, spec, episode):
  values = episode(0)
  values["reward"].view(np.uint32)[:] = 0x7FC01234
  with EpisodeStore.create(tmp_path / "nan", spec, allow_nan=True) as writer:
    writer.append_episode(values)
  salvage_store(tmp_path / "nan", out)
  got = EpisodeStore(out).episode(0)["reward"].view(np.uint32)
  assert got.tolist() == [0x7FC01234] * 5


def test_store_that_is_being_written(path, out, episode, monkeypatch):
  monkeypatch.setattr(files, "_BUFFER_BYTES", 0)
  with EpisodeStore.append(path, commit_every=100) as writer:
    writer.append_episode(episode(3))
    report = salvage_store(path, out)
  assert report.source.is_good
  assert len(EpisodeStore(out)) == 3


def test_read_only_source(path, out, monkeypatch):
  real = os.open

  def read_only(place, flags, *args, **kwargs):
    is_write = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    assert not (str(place).startswith(path) and is_write), place
    return real(place, flags, *args, **kwargs)

  monkeypatch.setattr(os, "open", read_only)
  assert salvage_store(path, out).num_kept == {"main": 3}


REFUSED = {
  "a store": (
    lambda p, out: shutil.copytree(p, out),
    "expected nothing there, got a fol",
  ),
  "a folder": (lambda p, out: os.mkdir(out), "expected nothing there, got a folder. N"),
  "a file": (
    lambda p, out: open(out, "w").close(),
    "expected nothing there, got a file",
  ),
  "a link": (
    lambda p, out: os.symlink("gone", out),
    "expected nothing there, got a fil",
  ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_salvage_refuses_existing_targets(name, path, out):
  make, want = REFUSED[name]
  make(path, out)
  before = contents(out)
  with pytest.raises(errors.StoreError, match=f"salvage: .*/out: {want}"):
    salvage_store(path, out)
  assert contents(out) == before


def test_not_into_the_source(path):
  with pytest.raises(errors.StoreError, match="a place outside of the damaged store"):
    salvage_store(path, os.path.join(path, "out"))


def test_no_folder_to_write_to(path, tmp_path):
  (tmp_path / "missing").write_text("a file")
  with pytest.raises(OSError, match=r"missing/out: File exists.* Nothing was salvaged"):
    salvage_store(path, tmp_path / "missing" / "out")


def test_full_disk_leaves_nothing(path, out, tmp_path, monkeypatch):
  def fail(self, *_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(segments.SegmentWriter, "end_episode", fail)
  with pytest.raises(
    OSError, match=r"/out: No space left on device\. Nothing was salv"
  ):
    salvage_store(path, out)
  assert os.listdir(tmp_path) == ["store"]


@pytest.mark.parametrize("seed", range(8))
def test_salvage_returns_written_values_only(seed, path, tmp_path, spec, episode, same):
  rng = random.Random(seed)
  names = [
    os.path.relpath(os.path.join(place, name), path)
    for place, _, found in os.walk(path)
    for name in sorted(found)
    if name != "lock"
  ]
  for number in range(8):
    damaged, out = tmp_path / f"damaged{number}", tmp_path / f"out{number}"
    shutil.copytree(path, damaged)
    for name in rng.sample(names, rng.choice([1, 1, 2, 3])):
      damage(str(damaged / name), rng)
    try:
      report = salvage_store(damaged, out, rng.choice([None, spec]))
    except errors.StoreError:
      continue  # It says why.
    opened = EpisodeStore(out)
    kept = [n for n in range(len(LENGTHS)) if ("main", n) not in report.left_out]
    for position, index in enumerate(kept[: len(opened)]):
      same(opened.episode(position), episode(index, LENGTHS[index]))
    assert len(opened) + len(report.left_out) <= len(LENGTHS)
    assert len(opened) == len(LENGTHS) or not report.source.is_good
