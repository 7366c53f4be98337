"""Stores that are damaged, foreign, newer or forged: one clear error each."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

from t2r_seq import errors, store
from t2r_seq.store import files, layout, manifest
from tests.store.damages import flip, in_main


def truncate(name, by=1):
  os.truncate(name, os.path.getsize(name) - by)


def extend(name):
  with open(name, "ab") as file:
    file.write(b"more" * 10_000)


def edit(name, seal=True, **changes):
  """Changes fields of a JSON file; seals it again, as another program would."""
  with open(name) as file:
    values = json.load(file)
  del values["crc32"]
  crc = manifest.checksum(values)
  values.update(changes)
  values["crc32"] = manifest.checksum(values) if seal else crc
  with open(name, "w") as file:
    json.dump(values, file)


def write(name, text):
  with open(name, "w") as file:
    file.write(text)


MANIFEST = layout.MANIFEST
COLUMN = {"data": "x.data", "dtype": "float32", "shape": [], "rows": "steps"}
X = {"path": "x", "shape": [], "dtype": "float32", "name": None, "is_sequence": True}
OUT = {**COLUMN, "data": "../../../x.data"}

# name: (what is done to the store, the error when it is opened)
OPENED = {
  "truncated column": (
    lambda p: truncate(in_main(p, "reward.data")),
    r"segments/main: reward\.data: expected 56 committed bytes, got 55 bytes\. Restore",
  ),
  "truncated offsets": (
    lambda p: truncate(in_main(p, "task.offsets"), 8),
    r"task\.offsets: expected 32 committed bytes, got 24 bytes",
  ),
  "truncated index": (
    lambda p: truncate(in_main(p, "episode_ends.index")),
    r"episode_ends\.index: expected 24 committed bytes, got 23 bytes",
  ),
  "missing column": (
    lambda p: os.remove(in_main(p, "obs%2Fimage.data")),
    "obs%2Fimage.data: expected 168 committed bytes, got no such file",
  ),
  "several missing": (
    lambda p: [os.remove(in_main(p, n)) for n in ("goal.data", "checksums.index")],
    "2 mismatches:\n  checksums.index: .*\n  goal.data: expected 72",
  ),
  "flipped index": (
    lambda p: flip(in_main(p, "episode_ends.index")),
    "episode_ends.index: expected 3 rising ends up to 14 .*got others. The index is",
  ),
  "newer store": (
    lambda p: edit(f"{p}/{MANIFEST}", version=2),
    r"store\.json: expected format version 1, got 2\. A newer t2r_seq wrote this",
  ),
  "newer segment": (
    lambda p: edit(in_main(p, "commit.json"), version=2),
    r"commit\.json: expected format version 1, got 2\. A newer t2r_seq wrote this",
  ),
  "no version": (
    lambda p: edit(f"{p}/{MANIFEST}", version="one"),
    "expected format version 1, got 'one'. The file is damaged",
  ),
  "foreign manifest": (
    lambda p: write(f"{p}/{MANIFEST}", '{"zarr_format": 2}'),
    "expected format 't2r_seq.EpisodeStore', got None. The file is damaged",
  ),
  "foreign list": (
    lambda p: write(f"{p}/{MANIFEST}", "[1, 2]"),
    r"expected format 't2r_seq.EpisodeStore', got \[1, 2\]\. The file is damaged, or",
  ),
  "no JSON": (
    lambda p: truncate(f"{p}/{MANIFEST}", 9),
    r"store\.json: expected JSON, got .* The file is damaged",
  ),
  "no text": (
    lambda p: flip(f"{p}/{MANIFEST}"),
    r"store\.json: expected JSON, got .* The file is damaged",
  ),
  "edited by hand": (
    lambda p: edit(f"{p}/{MANIFEST}", seal=False, metadata={"robot": "leg"}),
    "store.json: expected the checksum .*, got .* damaged, or was edited by hand",
  ),
  "edited commit": (
    lambda p: edit(in_main(p, "commit.json"), seal=False, episodes=2),
    "commit.json: expected the checksum .*, got .* damaged, or was edited by hand",
  ),
  "forged count": (
    lambda p: edit(in_main(p, "commit.json"), episodes=2, steps=6),
    "12 mismatches:\n  done.data: expected 6 bytes for its rows, got 14 committed",
  ),
  "forged sizes": (
    lambda p: edit(in_main(p, "commit.json"), sizes={}),
    "reward.data: expected its length in the commit, got none",
  ),
  "missing commit": (
    lambda p: os.remove(in_main(p, "commit.json")),
    r"main/commit\.json: expected the commit of the segment's episodes, got no such",
  ),
  "segment escape": (
    lambda p: edit(in_main(p, "commit.json"), replaces=["../../elsewhere"]),
    r"commit\.json: .*'\.\./\.\./elsewhere' is not a name of a segment",
  ),
  "fields of a commit": (
    lambda p: edit(in_main(p, "commit.json"), sizes=3),
    "commit.json: expected the fields of a commit, got AttributeError",
  ),
  "forged file name": (
    lambda p: edit(f"{p}/{MANIFEST}", spec=[X], columns={"x": OUT}),
    r"x: expected \{'data': 'x.data',.*got \{'data': '\.\./\.\./\.\./x.data'",
  ),
  "path escape": (
    lambda p: edit(f"{p}/{MANIFEST}", spec=[{**X, "path": "../x"}], columns={}),
    r"store\.json: spec: \.\./x: expected a path that can name a file inside of the st",
  ),
  "no such column": (
    lambda p: edit(f"{p}/{MANIFEST}", spec=[X], columns={"x": COLUMN, "y": COLUMN}),
    "y: expected no column, got ",
  ),
  "no spec": (
    lambda p: edit(f"{p}/{MANIFEST}", spec=[{"path": "x"}]),
    "store.json: spec_from_json: .*no dtype and no shape",
  ),
  "no fields": (
    lambda p: edit(f"{p}/{MANIFEST}", metadata=3),
    "store.json: expected the fields of a manifest, got TypeError",
  ),
  "other column shape": (
    lambda p: edit(in_main(p, "commit.json"), sizes=sizes(p, "goal.data", 70)),
    r"goal\.data: expected 72 bytes for its rows, got 70 committed bytes",
  ),
}


def sizes(path, name, size):
  commit = manifest.Commit.read(os.path.join(path, "segments", "main"))
  return {**commit.sizes, name: size}


@pytest.mark.parametrize("name", OPENED)
def test_opening_and_appending_to_a_bad_store_change_nothing(name, path):
  damage, want = OPENED[name]
  damage(path)
  before = {n: read(n) for n in all_files(path)}
  for use in (store.EpisodeStore, store.EpisodeStore.append):
    with pytest.raises(errors.StoreError, match=f"(?s){want}"):
      use(path)
  assert {n: read(n) for n in all_files(path)} == before


def all_files(path):
  return sorted(
    os.path.join(place, name)
    for place, _, names in os.walk(path)
    for name in names
    if name != "lock"
  )


def read(name):
  with open(name, "rb") as file:
    return file.read()


FOLDERS = {
  "nothing": (
    lambda p: None,
    r"a store.json, got nothing there\. Check the path; EpisodeStore\.create makes",
  ),
  "a file": (lambda p: write(p, "x"), "with a store.json, got a file there"),
  "empty": (os.mkdir, r"with a store.json, got \[\]\. This is not an EpisodeStore"),
  "foreign": (
    lambda p: (os.mkdir(p), write(f"{p}/.zgroup", "{}")),
    r"got \[\.zgroup\]\. This is a zarr group: `t2r_seq convert` makes a store of it",
  ),
  "of records": (
    lambda p: (os.mkdir(p), write(f"{p}/a.tfrecord", "")),
    r"got \[a\.tfrecord\]\. TFRecord files are given by a pattern: '.*/folder/\*",
  ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_foreign_folder(name, tmp_path):
  make, want = FOLDERS[name]
  path = str(tmp_path / "folder")
  make(path)
  before = os.path.isdir(path) and os.listdir(path)
  for use in (
    store.EpisodeStore,
    store.EpisodeStore.append,
    store.EpisodeStore.merge,
    store.verify_store,
  ):
    with pytest.raises(errors.StoreError, match=want):
      use(path)
  assert (os.path.isdir(path) and os.listdir(path)) == before


def test_extended_column_reads_and_is_cut(path, episode, same):
  for name in ("reward.data", "task.data", "task.offsets", "episode_ends.index"):
    extend(in_main(path, name))
  for index, length in enumerate((5, 1, 8)):
    same(store.EpisodeStore(path).episode(index), episode(index, length))
  assert store.verify_store(path).is_good
  with store.EpisodeStore.append(path) as writer:
    writer.append_episode(episode(3))
  same(store.EpisodeStore(path).episode(3), episode(3))
  assert store.verify_store(path).is_good


def names_of_columns():
  names = ["obs%2Fimage.data", "obs%2Fjpeg.data", "obs%2Fjpeg.offsets", "done.data"]
  return [*names, "words.offsets", "task.data", "goal.data", "rating.present"]


@pytest.mark.parametrize("name", names_of_columns())
def test_flipped_bit_is_found(name, path):
  assert store.verify_store(path).is_good
  size = os.path.getsize(in_main(path, name))
  flip(in_main(path, name), size - 1)
  report = store.verify_store(path)
  assert not report.is_good
  assert 2 in report.bad("main")
  assert any(str(p).startswith(f"main/{name}: expected") for p in report.problems)


def test_flipped_bit_breaks_one_episode(path):
  flip(in_main(path, "reward.data"), 5 * 4)  # The only step of the second episode.
  (problem,) = store.verify_store(path).problems
  assert (problem.source, problem.episodes) == ("main", (1,))
  want = (
    "main/reward.data: expected the checksums of every episode, got others for 1 of 3: "
    "episode 1 (rows 5 to 5, bytes 20 to 23: CRC-32 "
  )
  assert str(problem).startswith(want)


# name: (damage, problems: file, part of the text, broken episodes)
REPORTS = {
  "missing": (
    lambda p: os.remove(in_main(p, "goal.data")),
    {("goal.data", "no such file", (0, 1, 2))},
  ),
  "truncated": (
    lambda p: truncate(in_main(p, "goal.data")),
    {("goal.data", "71 bytes", (2,))},
  ),
  "truncated a lot": (
    lambda p: truncate(in_main(p, "goal.data"), 30),
    {("goal.data", "42 bytes", (1, 2))},
  ),
  "two files": (
    lambda p: (truncate(in_main(p, "goal.data")), flip(in_main(p, "done.data"), 6)),
    {
      ("goal.data", "71 bytes", (2,)),
      ("done.data", "rows 6 to 13, bytes 6 to 13", (2,)),
    },
  ),
  "index": (
    lambda p: flip(in_main(p, "episode_ends.index")),
    {("episode_ends.index", "got others, which misplace episodes 0, 1", (0, 1))},
  ),
  "truncated index": (
    lambda p: truncate(in_main(p, "episode_ends.index")),
    {("episode_ends.index", "23 bytes", (2,))},
  ),
  "index and data": (
    lambda p: (
      flip(in_main(p, "episode_ends.index")),
      flip(in_main(p, "goal.data"), 70),
    ),
    {
      ("episode_ends.index", "misplace episodes 0, 1", (0, 1)),
      ("goal.data", "others for 1", (2,)),
    },
  ),
  "checksums": (
    lambda p: flip(in_main(p, "checksums.index")),
    {("checksums.index", "of the bytes for episode 0. The checksums are damaged", ())},
  ),
  "missing checksums": (
    lambda p: os.remove(in_main(p, "checksums.index")),
    {("checksums.index", "no such file", ())},
  ),
  "missing offsets": (
    lambda p: os.remove(in_main(p, "task.offsets")),
    {("task.offsets", "no such file", (0, 1, 2))},
  ),
  "truncated offsets": (
    lambda p: truncate(in_main(p, "task.offsets")),
    {("task.offsets", "31 bytes", (2,))},
  ),
  "falling offsets": (
    lambda p: write_offsets(in_main(p, "task.offsets"), 2, 1),
    {
      ("task.offsets", "offsets that rise from 0 to 27, got others in episode 1", (1,)),
      ("task.offsets", "others for 1 of 3", (1,)),
      ("task.data", "others for 1 of 3: episode 2", (2,)),
    },
  ),
  "first offset": (
    lambda p: write_offsets(in_main(p, "task.offsets"), 0, 1),
    {
      ("task.offsets", "offsets that rise from 0 to 27, got others in episode 0", (0,)),
      ("task.data", "others for 1 of 3: episode 0", (0,)),
    },
  ),
  "committed size": (
    lambda p: edit(in_main(p, "commit.json"), sizes=sizes(p, "goal.data", 70)),
    {("goal.data", "the bytes of every episode, got less for episode 2: it", (2,))},
  ),
  "truncated commit": (
    lambda p: truncate(in_main(p, "commit.json"), 9),
    {("commit.json", "expected JSON", ())},
  ),
  "flipped commit": (
    lambda p: edit(in_main(p, "commit.json"), seal=False, steps=15),
    {("commit.json", "expected the checksum", ())},
  ),
  "truncated manifest": (
    lambda p: truncate(f"{p}/{MANIFEST}", 9),
    {(MANIFEST, "Nothing else can be checked without it: give the specs", ())},
  ),
  "missing manifest": (
    lambda p: os.remove(f"{p}/{MANIFEST}"),
    {(MANIFEST, "a manifest, got no such file. Nothing else", ())},
  ),
  "edited manifest": (
    lambda p: (
      edit(f"{p}/{MANIFEST}", seal=False, metadata={}),
      flip(in_main(p, "goal.data")),
    ),
    {(MANIFEST, "expected the checksum", ())},
  ),
}


def write_offsets(name, index, value):
  offsets = np.fromfile(name, "<i8")
  offsets[index] = value
  offsets.tofile(name)


@pytest.mark.parametrize("name", REPORTS)
def test_reports(name, path):
  damage, want = REPORTS[name]
  damage(path)
  problems = store.verify_store(path).problems
  assert len(problems) == len(want), problems
  for file, text, episodes in want:
    assert any(
      problem.path == file and text in str(problem) and problem.episodes == episodes
      for problem in problems
    ), (file, text, episodes, problems)


# Commits whose checksum fits, and that no reader takes: the doctor calls none whole.
FORGED_COMMITS = {
  "infinitely many episodes": {"episodes": float("inf")},
  "fewer than none": {"episodes": -1},
  "more than the index has": {"episodes": 1 << 40},
  "a truth": {"episodes": True},
  "steps of text": {"steps": "many"},
  "no checksums": {"index_crc32": {}},
  "a checksum of one": {"index_crc32": {layout.ENDS: 1}},
  "sizes of a list": {"sizes": []},
  "a size below zero": {"sizes": {"x.data": -1}},
  "a number of segments": {"replaces": 3},
  "itself replaced": {"replaces": ["main"]},
  "fewer than the index has": {"episodes": 0},
  "steps of no episodes": {"episodes": 0, "steps": 9, "sizes": {}},
  "fewer steps than episodes": {"steps": 1},
}


@pytest.mark.parametrize("name", FORGED_COMMITS)
def test_forged_commits_are_refused_by_all(name, path):
  edit(in_main(path, layout.COMMIT), **FORGED_COMMITS[name])
  with pytest.raises(errors.StoreError, match="expected the fields of a commit"):
    store.EpisodeStore(path)
  (problem, *_) = store.verify_store(path).problems
  assert problem.place == f"main/{layout.COMMIT}"


def test_store_that_is_being_written_is_whole(path, episode, monkeypatch):
  monkeypatch.setattr(files, "_BUFFER_BYTES", 0)
  with store.EpisodeStore.append(path, commit_every=100) as writer:
    writer.append_episode(episode(3))
    assert os.path.getsize(in_main(path, "obs%2Fimage.data")) > 168
    assert store.verify_store(path).is_good


def test_copy_is_a_store(path, tmp_path, episode, same):
  shutil.copytree(path, tmp_path / "copy")
  shutil.rmtree(path)
  same(store.EpisodeStore(tmp_path / "copy").episode(2), episode(2, 8))


def test_what_no_checksum_vouches_for(path):
  text = "main: {} not compared with a checksum".format
  flip(in_main(path, "checksums.index"))
  assert store.verify_store(path).notes == (text("episode 0"),)
  os.remove(in_main(path, "checksums.index"))
  assert store.verify_store(path).notes == (text("episodes 0 to 2"),)
  os.remove(f"{path}/{MANIFEST}")
  assert store.verify_store(path).notes == (text("episodes 0 to 2"),)


def test_given_specs_stand_in_for_a_manifest(path, spec):
  flip(in_main(path, "goal.data"))
  os.remove(f"{path}/{MANIFEST}")
  # The order of the columns is that of the commit.
  given = dict(reversed(spec.items()))
  manifest_problem, problem = store.verify_store(path, spec=given).problems
  assert "checked with the specs that were given" in manifest_problem.text
  assert (problem.path, problem.episodes) == ("goal.data", (0,))
  del given["reward"]
  (problem,) = store.verify_store(path, spec=given).problems
  assert "specs that were given are not those of the segments" in problem.text


def test_specs_of_a_whole_store_are_checked(path, spec):
  assert store.verify_store(path, spec=spec).is_good
  with pytest.raises(
    errors.SpecError, match=r"goal: expected .* per step, got .* per ep"
  ):
    store.verify_store(path, spec={**spec, "goal": spec["reward"]})


LEFTOVERS = {
  "tail": lambda p: extend(in_main(p, "goal.data")),
  "temporary": lambda p: write(in_main(p, ".commit.json.tmp"), "{"),
  "foreign": lambda p: write(f"{p}/notes.txt", "x"),
  "removed": lambda p: os.mkdir(f"{p}/segments/.removed.a.1"),
  "merged": lambda p: (
    shutil.copytree(f"{p}/segments/main", f"{p}/segments/other"),
    edit(in_main(p, "commit.json"), replaces=["other"]),
  ),
  "empty segment": lambda p: os.mkdir(f"{p}/segments/other"),
}


@pytest.mark.parametrize("name", LEFTOVERS)
def test_leftovers_are_harmless(name, path):
  LEFTOVERS[name](path)
  assert store.verify_store(path).is_good
  assert len(store.EpisodeStore(path)) == 3


def test_disk_that_fails_is_a_problem_not_a_crash(path, monkeypatch):
  real = open

  class Failing:
    def __init__(self, file):
      self._file = file

    def __enter__(self):
      return self

    def __exit__(self, *_):
      self._file.close()

    def seek(self, position):
      self._file.seek(position)

    def readinto(self, _):
      raise OSError(5, "Input/output error")

  def failing_open(place, *args, **kwargs):
    file = real(place, *args, **kwargs)
    return Failing(file) if str(place).endswith("reward.data") else file

  monkeypatch.setattr("builtins.open", failing_open)
  (problem,) = store.verify_store(path).problems
  assert "got less for episodes 0 to 2: the file cannot be read: Input" in str(problem)
  assert problem.episodes == (0, 1, 2)
