"""`BadRecordFinder`: tells bad records from good ones, once something has failed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records
from t2r_seq.records import check, explain, framing
from t2r_seq.records.check import BadRecordLog

_UNKNOWN = "one that TensorFlow cannot parse"


class BadRecordFinder:
  """Looks through records in Python, and notes those that are bad.

  What fails is found by TensorFlow, where it costs nothing until it happens. Then this
  says which record it was, and what is wrong with it.
  """

  def __init__(
    self,
    filenames: Sequence[str],
    features: list[records.RecordFeature],
    same_lengths: bool,
    log: BadRecordLog,
  ) -> None:
    """Creates the finder.

    Args:
      filenames: of the files, all of one dataset.
      features: what is parsed, images decoded.
      same_lengths: whether the sequences of a record have to be equally long.
      log: takes what is left out.
    """
    self.filenames = list(filenames)
    self._same_lengths = same_lengths
    self._log = log
    self._features = features
    # Digests of bytes, and the files that they were looked for in: what is bad comes
    # again in each epoch.
    self._noted: set[tuple[bytes, tuple[str, ...] | None]] = set()
    self._checker: explain.BatchChecker | None = None

  def are_good(
    self, data: Sequence[bytes], filenames: Iterable[str] | None = None
  ) -> np.ndarray:
    """Notes the bad ones of some records.

    Args:
      data: the serialized records.
      filenames: where they may come from, if that is known.
    Returns:
      bool [n]; one that failed for another reason than its content is good.
    """
    is_good = self._check(data)
    bad = [data[i] for i in np.flatnonzero(~is_good).tolist()]
    self._note(bad, None if filenames is None else tuple(filenames))
    return is_good

  def have_good_images(self, filename: str, images: Mapping[str, np.ndarray]) -> bool:
    """Decodes the images of an episode, and notes the episode if one cannot be.

    Args:
      filename: of the episode's file.
      images: encoded, object arrays by the name of the feature.
    Returns:
      Whether all can be.
    """
    by_name = {feature.name: feature for feature in self._features}
    for name, strings in images.items():
      all_of_it = strings.ravel().tolist()
      if _can_be_decoded(all_of_it, by_name[name]):
        continue
      bad = [s for s in all_of_it if not _can_be_decoded([s], by_name[name])]
      self._note_episodes_with(bad[0], filename)
      return False
    return True

  def note_at(self, filename: str, start: int, reason: str) -> None:
    """Notes the record at a place of an uncompressed file.

    Args:
      filename: the file.
      start: of the record's frame, in bytes.
      reason: what is wrong with it, if its bytes and content look good.
    """
    is_found = False
    for frame in framing.read_frames(filename):
      if frame.start == start:
        self._note_frame(filename, frame, reason)
        is_found = True
    if not is_found:
      self._note_file(filename, reason)

  def note_gaps(self, filename: str, gaps: Iterable[framing.Frame]) -> None:
    """Notes the parts of a file that are no frames."""
    for gap in gaps:
      self._log.add([check.damage_at(filename, gap)])

  def _note_frame(self, filename: str, frame: framing.Frame, reason: str) -> None:
    if frame.data is None:
      self._log.add([check.damage_at(filename, frame)])
    else:
      self._add(frame.data, [(filename, frame.number, frame.start)], reason)

  def _note(self, bad: Sequence[bytes], filenames: tuple[str, ...] | None) -> None:
    """Notes bad records, and all others with the same bytes."""
    keys = {data: (_digest(data), filenames) for data in bad}
    new = [data for data, key in keys.items() if key not in self._noted]
    if not new:
      return
    filenames = filenames or tuple(self.filenames)
    for data, places in check.locate_records(new, filenames).items():
      self._add(data, places or [(", ".join(filenames), None, None)], _UNKNOWN)
      self._noted.add(keys[data])

  def _note_episodes_with(self, string: bytes, filename: str) -> None:
    """Notes the bad episodes of a file that hold an image."""
    key = _digest(string), (filename,)
    if key in self._noted:
      return
    is_noted = False
    for data, place in _records_of(filename):
      # Few bytes may stand in good ones, too.
      if string in data and not self._check([data])[0]:
        self._add(data, [place], _UNKNOWN)
        is_noted = True
    if not is_noted:
      self._note_file(filename, _UNKNOWN)
    self._noted.add(key)

  def _note_file(self, filename: str, reason: str) -> None:
    """Notes a record that is in its file no longer."""
    mismatch = errors.Mismatch("record", "a record that can be parsed", reason)
    problem = explain.RecordProblem(filename, None, None, explain.CONTENT, mismatch)
    self._log.add([problem])

  def _check(self, data: Sequence[bytes]) -> np.ndarray:
    if self._checker is None:
      self._checker = explain.checker_of(self._features, measures=False)
    check = self._checker.check(data)
    return check.is_parsed & (check.is_even | (not self._same_lengths))

  def _add(
    self,
    data: bytes,
    places: Sequence[tuple[str, int | None, int | None]],
    reason: str,
  ) -> None:
    found = records.explain_record(data, self._features)
    if not found and self._same_lengths:
      found = records.explain_record(data, self._features, explain.LENGTHS)
    if not found:
      found = [errors.Mismatch("record", "a record that can be parsed", reason)]
    for place in places:
      self._log.add(
        [explain.RecordProblem(*place, explain.CONTENT, mismatch) for mismatch in found]
      )


def _digest(data: bytes) -> bytes:
  return hashlib.sha256(data).digest()


def _can_be_decoded(strings: list[bytes], feature: records.RecordFeature) -> bool:
  try:
    with tf.device("cpu:0"):
      records.decode_images(
        tf.constant(strings, tf.string),
        feature.spec,
        feature.path,
        feature.decode_images,
      )
  except explain.DATA_ERRORS:
    return False
  return True


def _records_of(filename: str) -> Iterator[tuple[bytes, tuple[str, int, int]]]:
  """Yields the readable records of a file, and their places."""
  compression = records.compression_type(filename)
  for frame in framing.read_frames(filename, compression):
    if frame.data is not None:
      yield frame.data, (filename, frame.number, frame.start)
