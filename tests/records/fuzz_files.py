"""Damaged files through everything that reads files, held to another reading."""

from __future__ import annotations

import collections
import os
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import fake_model
import file_mutations
import mutations
import tensorflow as tf

from t2r_seq import data, errors, records, specs
from t2r_seq.records import framing, index_file
from t2r_seq.records.check import examine_records, salvage_records
from t2r_seq.records.framing import iterate_records
from t2r_seq.records.index import check_index, read_index
from t2r_seq.records.index_file import index_path
from t2r_seq.records.write import ExampleEncoder

_SPEC = specs.TensorSpecStruct(
  {
    "id": specs.ExtendedTensorSpec((), tf.int64, "id"),
    "word": specs.ExtendedTensorSpec((), tf.string, "word"),
  }
)
_ENCODER = ExampleEncoder(_SPEC)
_SUFFIXES = ("", "", "", "", ".gz", ".zz")


class FileCase:
  """A damaged file, what was in it, and what still is."""

  def __init__(self, where: str, path: str, suffix: str, rng: random.Random) -> None:
    self.where, self.path, self.suffix = where, path, suffix
    self.rows = [
      {"id": rng.randrange(1 << 40), "word": rng.randbytes(rng.randrange(1, 80))}
      for _ in range(rng.randrange(1, 12))
    ]
    self.payloads = [_ENCODER.encode(row) for row in self.rows]
    framed = b"".join(file_mutations.frame(payload) for payload in self.payloads)
    self.original = file_mutations.compress(framed, suffix)
    self.what, self.content, before = file_mutations.mutate_file(
      self.payloads, suffix, rng
    )
    frames = file_mutations.read_frames(before)
    self.num_written = sum(payload is not None for _, payload in frames)
    plain, self.is_whole = file_mutations.decompress(self.content, suffix)
    self.frames = file_mutations.read_frames(plain)
    by_payload = dict(zip(self.payloads, self.rows, strict=True))
    self.num_records = sum(bool(payload) for _, payload in frames)
    # Parsed records that are left, and the places of those that are not.
    self.want = [by_payload[d] for _, d in self.frames if d]
    self.bad = {(i, start) for i, (start, d) in enumerate(self.frames) if not d}

  @property
  def is_damaged(self) -> bool:
    """Whether something is wrong that can be seen in the file."""
    return bool(self.bad) or not self.is_whole

  def write(self, content: bytes) -> None:
    with open(self.path, "wb") as file:
      file.write(content)

  def is_same(self, rows: list[Any]) -> bool:
    """Compares what was read; of compressed data, how much is readable is open."""
    want = self.want if not self.suffix else self.want[: len(rows)]
    return rows == want


class FileFuzz:
  """Runs rounds of damaged files.

  Attributes:
    counts: files by what is wrong with them.
  """

  def __init__(self, seed: int, folder: str, say: Callable[[str, Any], None]) -> None:
    self._seed = seed
    self._folder = os.path.join(folder, "files")
    self._say = say
    self.counts: collections.Counter[str] = collections.Counter()

  def run(self, number: int, count: int) -> None:
    """Makes and reads the files of one round."""
    where = f"round {number} of seed {self._seed}"
    os.makedirs(self._folder)
    try:
      cases = []
      for i in range(count):
        rng = random.Random(f"files/{self._seed}/{number}/{i}")
        suffix = rng.choice(_SUFFIXES)
        path = os.path.join(self._folder, f"{i:03}.tfrecord{suffix}")
        case = FileCase(f"file {i} of {where}", path, suffix, rng)
        case.write(case.original)
        cases.append(case)
        self.counts["damaged" if case.is_damaged else "other records"] += 1
      self._say("at", f"indices of files of {where}")
      records.write_index([case.path for case in cases])
      for case in cases:
        self._try(f"{case.where}: {case.what}: its index", _check_index, case)
        case.write(case.content)
        self._try(f"{case.where}: {case.what}: one by one", _read_one_by_one, case)
      for step in (_skip, _examine):
        self._try(f"files of {where}: {step.__name__}", step, cases, self._folder)
    finally:
      shutil.rmtree(self._folder)

  def _try(self, where: str, step: Callable[..., Iterator[str]], *args: Any) -> None:
    self._say("at", where)
    try:
      found = list(step(*args))
    except Exception as error:
      found = [f"{type(error).__name__}: {error}"]
    for wrong in found:
      self._say("wrong", f"{where}: {wrong}")


def _read_one_by_one(case: FileCase) -> Iterator[str]:
  """The records before the first damage, and then an error that says where it is."""
  read, text = [], ""
  try:
    for record in iterate_records(case.path, _compression(case)):
      read.append(record.data)
  except errors.RecordError as error:
    text = str(error)
  whole: list[bytes] = []
  for _, payload in case.frames:
    if payload is None:
      break
    whole.append(payload)
  if case.suffix:
    whole = whole[: len(read)]
  if read != whole:
    yield f"read {len(read)} records, not the {len(whole)} before the damage"
  offset = sum(16 + len(payload) for payload in read)
  if text and not text.startswith(framing.place(case.path, len(read), offset)):
    yield f"the place is another: {text}"
  is_lost = len(read) < case.num_written and case.is_damaged
  if not text and (is_lost or (not case.suffix and None in dict(case.frames).values())):
    yield f"no error after {len(read)} of {case.num_written} records"
  if text and not case.is_damaged:
    yield f"an error in a good file: {text}"


def _compression(case: FileCase) -> str:
  return {"": "", ".gz": "GZIP", ".zz": "ZLIB"}[case.suffix]


def _check_index(case: FileCase) -> Iterator[str]:
  """An index is of the file as it was, and of no other; a damaged one is none."""
  path = index_path(case.path)
  with open(path, "rb") as file:
    good = file.read()
  before = os.stat(case.path)
  case.write(case.content)
  os.utime(case.path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
  if case.content != case.original:
    yield from _expect_refusal(case, "a stale index")
  case.write(case.original)
  os.utime(case.path, ns=(before.st_atime_ns, before.st_mtime_ns))
  if (state := check_index(case.path)[0]).state != "fresh":
    yield f"a good index is {state.state}: {state.reason}"
  rng = random.Random(case.where)
  kind = rng.choice(["flip", "insert", "delete", "zeros", "cut", "garbage after"])
  damaged = bytes(mutations.BYTES[kind](bytearray(good), rng))
  with open(path, "wb") as file:
    file.write(damaged)
  if damaged != good:
    yield from _expect_refusal(case, f"an index with {kind}")
    try:
      index_file.FileIndex.from_bytes(damaged)
      yield f"an index with {kind} is taken"
    except errors.RecordError:
      pass
  os.remove(path)


def _expect_refusal(case: FileCase, what: str) -> Iterator[str]:
  try:
    read_index(case.path)
    yield f"{what} is taken"
  except errors.RecordError as error:
    if case.path not in str(error):
      yield f"{what}: the file is not named: {error}"


def _skip(cases: list[FileCase], folder: str) -> Iterator[str]:
  """One pipeline over all files: what is whole arrives, what is not is counted."""
  generator = data.DefaultRecordInputGenerator(
    os.path.join(folder, "*"), 4, on_bad_record="skip", max_bad_records=10_000
  )
  generator.set_specification_from_model(fake_model.Model(_SPEC), "eval")
  rows = []
  with generator.explain_failures():
    for features, _ in generator.create_dataset("eval"):
      ids, words = features["id"].numpy().tolist(), features["word"].numpy().tolist()
      rows += [{"id": i, "word": w} for i, w in zip(ids, words, strict=True)]
  by_file = collections.defaultdict(set)
  for problem in generator.report.problems:
    by_file[problem.source].add(problem.record)
  for case in cases:
    count = _count_of(case, rows)
    got, rows = rows[:count], rows[count:]
    if not case.is_same(got):
      yield f"{case.where}: {case.what}: got {got}, not {case.want}"
    found = by_file.pop(case.path, set())
    is_lost = case.is_damaged and len(got) < case.num_records
    bad = {record for record, _ in case.bad}
    if (found != bad and not case.suffix) or (is_lost and not found):
      yield f"{case.where}: {case.what}: reported {found}, not {case.bad}"
  if rows or by_file:
    yield f"{len(rows)} rows and problems of {by_file} too many"


def _count_of(case: FileCase, rows: list[Any]) -> int:
  """How many of the rows are from this file; of a compressed one, as many as fit."""
  if not case.suffix:
    return len(case.want)
  count = 0
  while count < len(case.want) and rows[count : count + 1] == [case.want[count]]:
    count += 1
  return count


def _examine(cases: list[FileCase], folder: str) -> Iterator[str]:
  """Doctor names what is bad, and what it salvages is all that is good."""
  report = examine_records(os.path.join(folder, "*"), _SPEC)
  by_file = collections.defaultdict(set)
  for problem in report.problems:
    if problem.kind != errors.INDEX:
      by_file[problem.source].add((problem.record, problem.offset))
  for case in cases:
    found = by_file[case.path]
    is_right = found == case.bad if not case.suffix else bool(found) == case.is_damaged
    if not is_right:
      yield f"{case.where}: {case.what}: found {found}, not {case.bad}"
  salvaged = salvage_records(report, os.path.join(folder, "salvaged"))
  for case in cases:
    path = os.path.join(salvaged.path, os.path.basename(case.path))
    with open(path, "rb") as file:
      plain, is_whole = file_mutations.decompress(file.read(), case.suffix)
    kept = [payload for _, payload in file_mutations.read_frames(plain)]
    want = [payload for _, payload in case.frames if payload]
    if kept != want or not is_whole:
      yield f"{case.where}: {case.what}: salvaged {len(kept)}, not {len(want)}"
