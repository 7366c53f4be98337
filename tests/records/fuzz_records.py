"""Mutated records through everything that reads records, held to another reading."""

from __future__ import annotations

import collections
import os
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import fake_model
import independent_reading
import mutations
import numpy as np
import tensorflow as tf
from same_values import differences

from t2r_seq import data, errors, records, specs
from t2r_seq.records import explain, framing
from t2r_seq.records.check import examine_records, find_bad_record
from t2r_seq.records.explain import explain_record
from t2r_seq.records.features import collect_features

_no_autograph = tf.autograph.experimental.do_not_convert
# A batch that holds a bad record is parsed once more, one by one: files hold some.
_MAX_THROUGH_FILES = 250


class RecordFuzz:
  """Runs rounds of mutated records.

  Attributes:
    counts: 'equal' to the independent reading; 'refused' by both; 'strict', refused by
      TensorFlow only; and how many of the refused are not explained by a feature.
  """

  def __init__(self, seed: int, folder: str, say: Callable[[str, Any], None]) -> None:
    self._seed = seed
    self._folder = os.path.join(folder, "records")
    self._say = say
    self.counts: collections.Counter[str] = collections.Counter()
    self._parsers = {name: Parser(name) for name in mutations.STRUCTURES}

  def run(self, number: int, count: int) -> None:
    """Makes and reads the records of one round."""
    name = list(self._parsers)[number % len(self._parsers)]
    done: list[str] = []
    stages_of: list[list[bytes]] = []
    for i in range(count):
      rng = random.Random(f"{self._seed}/{number}/{i}")
      good = mutations.make_record(name, rng)
      what, stages = mutations.mutate_record(good, name, rng)
      done.append(f"record {i} of round {number} of seed {self._seed}, {name}: {what}")
      stages_of.append(stages)
    parser = self._parsers[name]
    contents = [stages[-1] for stages in stages_of]
    alone = parser.parse(contents, False, lambda i: self._say("at", done[i]))
    batches = parser.parse(contents, True, lambda i: self._say("at", f"{done[i]} [1]"))
    cases = []
    for i, stages in enumerate(stages_of):
      self._say("at", f"{done[i]}, read otherwise")
      cases.append(self._check(name, stages, (alone.get(i), batches.get(i)), done[i]))
    try:
      self._through_files(name, number, cases[:_MAX_THROUGH_FILES])
    finally:
      shutil.rmtree(self._folder, ignore_errors=True)

  def _check(self, name: str, stages: list[bytes], results: Any, where: str) -> Case:
    """Compares what was parsed, alone and in a batch, with what is there."""
    parser = self._parsers[name]
    content = stages[-1]
    wants = [_read(content, parser.flat, results[0], stages)] * 2
    both = wants[0], results[1]
    if None not in both and differences(*both):
      wants[1] = independent_reading.read_record(content, parser.flat, batched=True)
    for batched, (got, want) in enumerate(zip(results, wants, strict=True)):
      outcome = "refused" if want is None else "strict"
      if got is not None:
        wrong = differences(got, want) if want is not None else ["all of it"]
        outcome = "equal"
        if wrong:
          self._say("wrong", f"{where}: {batched=}: {wrong}: {content.hex()}")
      self.counts[f"{name} {outcome}"] += not batched
    if results[0] is None:
      explained = explain_record(content, parser.features)
      self.counts[f"{name} not explained"] += not explained
    # Files of examples are read in batches.
    want = wants[not parser.is_windowed]
    return Case(content, None if results[0] is None else want)

  def _through_files(self, name: str, number: int, cases: list[Case]) -> None:
    """Reads the records from two files, in all ways that there are."""
    parser = self._parsers[name]
    # The first record decides which of the optional features are read.
    rng = random.Random(f"{self._seed}/{number}")
    whole = mutations.make_record(name, rng, with_all=True)
    first = Case(whole, independent_reading.read_record(whole, parser.flat))
    cases = [first, *cases]
    os.makedirs(self._folder)
    half = len(cases) // 2
    for file, part in enumerate([cases[:half], cases[half:]]):
      path = os.path.join(self._folder, f"{file}.tfrecord")
      offset = 0
      with tf.io.TFRecordWriter(path) as writer:
        for index, case in enumerate(part):
          writer.write(case.content)
          case.place = (path, index, offset)
          offset += framing.FRAME_SIZE + len(case.content)
    where = f"round {number} of seed {self._seed}, {name}"
    for step in (self._examine, self._raise, self._skip):
      self._say("at", f"{where}: {step.__name__}")
      try:
        found = step(parser, cases)
      except Exception as error:
        found = [f"{type(error).__name__}: {error}"]
      for wrong in found:
        self._say("wrong", f"{where}: {step.__name__}: {wrong}")

  def _examine(self, parser: Parser, cases: list[Case]) -> list[str]:
    """Doctor names every bad record, and no other."""
    pattern = os.path.join(self._folder, "*")
    report = examine_records(pattern, parser.flat, allow_nan=True)
    by_kind: dict[str, set[Any]] = collections.defaultdict(set)
    for problem in report.problems:
      by_kind[problem.kind].add((problem.source, problem.record, problem.offset))
    wrong = _compare(
      "content", by_kind[explain.CONTENT], {c.place for c in cases if not c.is_good}
    ) + _compare(
      "lengths", by_kind[explain.LENGTHS], {c.place for c in cases if c.is_uneven}
    )
    error = find_bad_record(pattern, parser.flat)
    bad = [case for case in cases if not case.is_good]
    if bad and not str(error).startswith(framing.place(*bad[0].place)):
      wrong.append(f"expected {bad[0].place} as the first, got {error}")
    return wrong

  def _raise(self, parser: Parser, cases: list[Case]) -> list[str]:
    """The generator stops at bad records and says at which."""
    bad = [c for c in cases if not c.is_good] or [c for c in cases if c.is_uneven]
    generator = parser.make_generator(os.path.join(self._folder, "*"), "raise")
    try:
      with generator.explain_failures():
        for _ in generator.create_dataset("eval"):
          pass
    except errors.RecordError as error:
      # What is read in batches may meet another first.
      if bad and str(error).startswith(framing.place(*bad[0].place)):
        return []
      return [f"expected the first bad record to be named, got {error}"]
    return [f"expected {bad[0].place} to stop it, got the end"] if bad else []

  def _skip(self, parser: Parser, cases: list[Case]) -> list[str]:
    """The generator leaves out bad records, counts them, and gives all others."""
    generator = parser.make_generator(os.path.join(self._folder, "*"), "skip")
    with generator.explain_failures():
      got = parser.rows([features for features, _ in generator.create_dataset("eval")])
    is_left_out = [not c.is_good or (parser.is_windowed and c.is_uneven) for c in cases]
    want = [
      row
      for case, is_bad in zip(cases, is_left_out, strict=True)
      if not is_bad
      for row in parser.rows_of(case.want)
    ]
    found = {(p.source, p.record) for p in generator.report.problems}
    bad = {c.place[:2] for c, is_bad in zip(cases, is_left_out, strict=True) if is_bad}
    wrong = _compare("left out", found, bad)
    if generator.report.num_skipped != sum(is_left_out):
      wrong.append(f"skipped {generator.report.num_skipped}, not {sum(is_left_out)}")
    if len(got) != len(want):
      return [*wrong, f"expected {len(want)} rows, got {len(got)}"]
    for i, (one, other) in enumerate(zip(got, want, strict=True)):
      if different := differences(one, other):
        wrong.append(f"row {i}: {different}")
    return wrong


def _read(content: bytes, flat: Any, got: Any, stages: list[bytes]) -> Any:
  """Reads a record independently; None where it does not fit.

  What TensorFlow parses all the same has to be what the record held before: of lengths
  within lengths it reads one, so the loss of another costs no value.
  """
  try:
    return independent_reading.read_record(content, flat)
  except independent_reading.Refused:
    if got is None:
      return None
  for before in stages[:-1]:
    want = _read(before, flat, None, [])
    if want is not None and not differences(got, want):
      return want
  return None


class Case:
  """A record, and what is in it; None where it cannot be parsed."""

  def __init__(self, content: bytes, want: dict[str, np.ndarray] | None) -> None:
    self.content = content
    self.want = want
    self.place = ("", 0, 0)

  @property
  def is_good(self) -> bool:
    return self.want is not None

  @property
  def is_uneven(self) -> bool:
    lengths = {
      int(value)
      for path, value in (self.want or {}).items()
      if path.endswith("_length")
    }
    return len(lengths) > 1


class Parser:
  """The parser of one structure, traced once, and the generator of its files."""

  def __init__(self, name: str) -> None:
    self.flat = specs.flatten_spec_structure(mutations.STRUCTURES[name])
    self.features = collect_features({"": self.flat})[""]
    self.is_windowed = any(spec.is_sequence for spec in self.flat.values())
    parse_fn = _no_autograph(
      records.create_parse_tf_example_fn(specs.add_sequence_length_specs(self.flat))
    )
    # One for each pipeline: TensorFlow may read ahead in the one that is not asked.
    self._waiting: Any = {batched: collections.deque() for batched in (False, True)}
    self._num_calls = 0
    self._tell: Callable[[int], None] = print
    # What ends the records of a call: it is good, so it is not left out.
    self._last = mutations.make_record(name, random.Random(0), with_all=True)
    self._parsed = {b: iter(self._make_dataset(parse_fn, b)) for b in self._waiting}

  def _make_dataset(self, parse_fn: Any, batched: bool) -> tf.data.Dataset:
    """Makes the graph once; what goes through it is `_waiting`, again and again."""
    waiting = self._waiting[batched]

    def feed() -> Iterator[tuple[int, bytes]]:
      while True:
        if waiting:
          self._tell(waiting[0][0])
          yield waiting.popleft()
        else:  # It may be asked for more before there is more.
          yield -self._num_calls, self._last

    signature = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string))
    dataset = tf.data.Dataset.from_generator(feed, output_signature=signature)
    dataset = dataset.map(
      _no_autograph(
        lambda i, text: (i, parse_fn(text[tf.newaxis] if batched else text))
      )
    )
    return dataset.ignore_errors(log_warning=False)

  def parse(
    self, contents: list[bytes], batched: bool, tell: Callable[[int], None]
  ) -> dict[int, dict[str, np.ndarray]]:
    """Parses records, each alone or as a batch of one; those refused are left out."""
    self._tell = tell
    self._waiting[batched].extend(enumerate(contents))
    self._num_calls += 1
    found = {}
    for number, parsed in self._parsed[batched]:
      if number == -self._num_calls:
        break
      if number >= 0:  # Or it is the end of the call before.
        arrays = {path: tensor.numpy() for path, tensor in parsed.items()}
        found[int(number)] = {p: a[0] if batched else a for p, a in arrays.items()}
    return found

  def make_generator(self, pattern: str, policy: str) -> Any:
    """Creates the generator: of records, or of windows of one step."""
    flat = specs.TensorSpecStruct(
      (path, spec.from_spec(spec, is_sequence=False, time_offsets=0))
      if spec.is_sequence
      else (path, spec)
      for path, spec in self.flat.items()
    )
    generator = data.DefaultRecordInputGenerator(
      pattern, 8, on_bad_record=policy, max_bad_records=10_000
    )
    generator.set_specification_from_model(fake_model.Model(flat), "eval")
    return generator

  def rows(self, batches: list[Any]) -> list[dict[str, np.ndarray]]:
    """Returns the rows of batches, one by one."""
    columns = [[batch[path].numpy() for path in self.flat] for batch in batches]
    rows = [row for each in columns for row in zip(*each, strict=True)]
    return [dict(zip(self.flat, row, strict=True)) for row in rows]

  def rows_of(self, want: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Returns the rows that a record gives: itself, or one for each step."""
    values = {path: want[path] for path in self.flat}
    if not self.is_windowed:
      return [values]
    steps = max(len(v) for p, v in values.items() if self.flat[p].is_sequence)
    return [
      {p: v[t] if self.flat[p].is_sequence else v for p, v in values.items()}
      for t in range(steps)
    ]


def _compare(what: str, got: set[Any], want: set[Any]) -> list[str]:
  if got == want:
    return []
  return [f"{what}: missed {sorted(want - got)[:5]}, too many {sorted(got - want)[:5]}"]
