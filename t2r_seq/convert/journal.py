"""What a conversion leaves beside its destination, and how far it is.

A folder `<destination>.conversion` with three files: `conversion.json` says what was
asked for and how far it came, `spec.json` holds the specs of the episodes, and
`episodes.jsonl` has a line per episode: its hash, and where the source goes on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Container
from typing import Any, TextIO

import numpy as np

from t2r_seq import errors, specs
from t2r_seq import files as files_lib
from t2r_seq.convert.episodes import ResumePoint, Values
from t2r_seq.store import files

_DIGEST_SIZE = 16


def episode_digest(values: Values, lossy: Container[str] = ()) -> str:
  """Hashes an episode's paths, dtypes, shapes and bytes with BLAKE2b.

  The bytes are little-endian and in C order, so the hash doesn't depend on how a
  format keeps them. Byte strings are hashed with their lengths.

  Args:
    values: by path; byte strings as arrays of bytes objects.
    lossy: paths whose bytes are left out: what a target encodes is not kept exactly.
  Returns:
    32 hexadecimal digits.
  """
  digest = hashlib.blake2b(digest_size=_DIGEST_SIZE)
  for path in sorted(values):
    array = values[path]
    is_bytes = array.dtype == object
    name = "bytes" if is_bytes else array.dtype.newbyteorder("=").name
    header = json.dumps([path, name, list(array.shape)]).encode()
    digest.update(len(header).to_bytes(8, "little") + header)
    if path in lossy:
      continue
    if is_bytes:
      items = array.ravel().tolist()
      lengths = np.fromiter(map(len, items), np.int64, len(items))
      digest.update(files.as_bytes(lengths).data)
      for item in items:
        digest.update(item)
    else:
      digest.update(files.as_bytes(array).data)
  return digest.hexdigest()


FORMAT = "t2r_seq.conversion"
VERSION = 1
_SUFFIX = ".conversion"
_PLAN, _SPEC, _EPISODES = "conversion.json", "spec.json", "episodes.jsonl"
_LOCK, _WORK = "lock", "work"


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a conversion was asked for.

  Attributes:
    source: its path, for people.
    source_kind: 'store', 'tfrecord', 'zarr' or 'hdf5'.
    destination_kind: the same.
    options: JSON values; a conversion goes on only with the same ones.
    fingerprint: of the source; a conversion goes on only with the same one.
    source_spec: JSON of the flat specs that the source is read with.
    is_finished: the destination is complete, and its hashes were compared.
  """

  source: str
  source_kind: str
  destination_kind: str
  options: dict[str, Any]
  fingerprint: dict[str, Any]
  source_spec: str
  is_finished: bool = False


@dataclasses.dataclass(frozen=True)
class EpisodeLine:
  """What is kept of an episode.

  Attributes:
    digest: its hash.
    steps: how many.
    position: of the source after it.
    label: what the source calls it.
  """

  digest: str
  steps: int
  position: tuple[int, ...] = ()
  label: str | None = None


def journal_folder(destination: str) -> str:
  """Returns the folder that a conversion leaves beside its destination."""
  return destination.rstrip("/") + _SUFFIX


class Journal:
  """Keeps what a conversion needs to go on, and to be checked later."""

  def __init__(self, destination: str) -> None:
    """Reads what is there.

    Args:
      destination: of the conversion.
    Raises:
      ConversionError: the journal is damaged, or of a newer version.
    """
    self.folder = journal_folder(destination)
    self._lock: files_lib.FileLock | None = None
    self._file: Any = None
    self._lines: list[EpisodeLine] = []
    self.plan = self._read_plan()

  @property
  def work_folder(self) -> str:
    """Where a target keeps what is not yet whole; gone when it is."""
    return os.path.join(self.folder, _WORK)

  @property
  def spec_file(self) -> str:
    """The JSON file of the specs."""
    return os.path.join(self.folder, _SPEC)

  @property
  def lines(self) -> list[EpisodeLine]:
    """The episodes so far."""
    return self._lines

  def begin(self, plan: Plan, spec: specs.TensorSpecStruct) -> None:
    """Locks the folder and writes the plan of a new conversion.

    Raises:
      ConversionError: another process has begun it.
    """
    self.lock()
    if self._read_plan() is not None:
      raise errors.ConversionError(
        f"convert: {self.folder}: expected a new conversion, got one that another "
        "process has begun. Run it again to go on with that."
      )
    files_lib.replace_file(self.spec_file, spec.to_json().encode())
    self.update(plan)

  def update(self, plan: Plan) -> None:
    """Replaces the plan."""
    values = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(plan)}
    place = os.path.join(self.folder, _PLAN)
    files_lib.replace_file(place, json.dumps(values, indent=2).encode() + b"\n")
    self.plan = plan

  def read_spec(self) -> specs.TensorSpecStruct:
    """Reads the specs of the episodes."""
    with open(self.spec_file, encoding="utf-8") as file:
      return specs.TensorSpecStruct.from_json(file.read())

  def lock(self) -> None:
    """Makes the folder, and keeps other conversions out until `close`.

    Raises:
      ConversionError: another process is at it.
    """
    files_lib.make_folders(self.folder)
    self._lock = files_lib.FileLock(
      os.path.join(self.folder, _LOCK),
      lambda owner: errors.ConversionError(
        f"convert: {self.folder}: expected no other process at this conversion, got "
        f"{owner}. Wait for it to end."
      ),
    )

  def load_lines(self) -> list[EpisodeLine]:
    """Reads the lines of the episodes; one that was cut off by a kill doesn't count.

    Raises:
      ConversionError: a line is damaged.
    """
    path = os.path.join(self.folder, _EPISODES)
    self._lines = []
    if os.path.exists(path):
      with open(path, "rb") as file:
        for number, line in enumerate(file):
          if line.endswith(b"\n"):
            self._lines.append(_parse_line(path, number, line))
    return self._lines

  def resume(self, num_episodes: int) -> ResumePoint:
    """Drops the lines past the committed episodes, and opens the file for more.

    Args:
      num_episodes: that are committed.
    Returns:
      Where the source is to go on.
    Raises:
      ConversionError: lines are missing.
    """
    path = os.path.join(self.folder, _EPISODES)
    if len(self.load_lines()) < num_episodes:
      raise errors.ConversionError(
        f"convert: {path}: expected a line for each of the {num_episodes} converted "
        f"episodes, got {len(self._lines)}. Delete the destination and {self.folder}, "
        "and start anew."
      )
    del self._lines[num_episodes:]
    text = "".join(_format_line(line) for line in self._lines).encode()
    if not os.path.exists(path) or os.path.getsize(path) != len(text):
      files_lib.replace_file(path, text)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    self._file = os.fdopen(files_lib.open_own(path, flags), "ab")
    return ResumePoint(
      num_episodes,
      self._lines[-1].position if self._lines else (),
      frozenset(line.label for line in self._lines if line.label is not None),
    )

  def add(self, line: EpisodeLine) -> None:
    """Adds an episode's line; from here on a kill of the process doesn't lose it."""
    self._lines.append(line)
    self._file.write(_format_line(line).encode())
    self._file.flush()

  def sync(self) -> None:
    """Returns when all lines are on the disk."""
    if self._file is not None:
      os.fsync(self._file.fileno())

  def remove_work(self) -> None:
    """Removes what a target kept while it was not whole."""
    shutil.rmtree(self.work_folder, ignore_errors=True)

  def close(self) -> None:
    """Lets go of the files and the lock."""
    if self._file is not None:
      self._file.close()
      self._file = None
    if self._lock is not None:
      self._lock.release()
      self._lock = None

  def _read_plan(self) -> Plan | None:
    place = os.path.join(self.folder, _PLAN)
    try:
      with open(place, "rb") as file:
        values = json.loads(file.read())
      if values.pop("format") != FORMAT or values.pop("version") != VERSION:
        raise ValueError("another format or version")
      return Plan(**values)
    except (FileNotFoundError, NotADirectoryError):
      return None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise errors.ConversionError(
        f"convert: {place}: expected the plan of a conversion, version {VERSION}, got "
        f"{error!r:.120}. Delete {self.folder} and the destination, and start anew."
      ) from error


def _format_line(line: EpisodeLine) -> str:
  values: dict[str, Any] = {"blake2b": line.digest, "steps": line.steps}
  if line.position:
    values["position"] = list(line.position)
  if line.label is not None:
    values["label"] = line.label
  return json.dumps(values) + "\n"


def _parse_line(path: str, number: int, line: bytes) -> EpisodeLine:
  try:
    values = json.loads(line)
    position = tuple(int(number) for number in values.get("position", ()))
    digest, steps = str(values["blake2b"]), int(values["steps"])
    return EpisodeLine(digest, steps, position, values.get("label"))
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise errors.ConversionError(
      f"convert: {path}: line {number + 1}: expected the hash of an episode, got "
      f"{line[:60]!r}. The file is damaged: delete it, its folder and the destination, "
      "and start anew."
    ) from error


_BAR_WIDTH = 24
_TERMINAL_SECONDS = 0.1
_LINE_SECONDS = 60.0


class Progress:
  """Shows episodes, MB/s and the time that is left."""

  def __init__(
    self,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
  ) -> None:
    """Shows nothing yet.

    Args:
      stream: what to write to; stderr by default. On a terminal one line is kept up
        to date; otherwise there is a line a minute.
      clock: seconds.
    """
    self._stream = sys.stderr if stream is None else stream
    self._clock = clock
    self._is_terminal = self._stream.isatty()
    self.start("", 0, None)

  def start(self, label: str, done: int, total: int | None) -> None:
    """Starts a new count.

    Args:
      label: what is being done.
      done: episodes that are there already.
      total: episodes in all, if known.
    """
    self._label, self._first, self._total = label, done, total
    self._episodes, self._bytes = done, 0
    self._begin = self._last = self._clock()
    self._first_fraction: float | None = None

  def advance(self, num_bytes: int, fraction: float | None = None) -> None:
    """Counts an episode.

    Args:
      num_bytes: of its values.
      fraction: how much of the work is done, 0 to 1, where the total is not known.
    """
    self._episodes += 1
    self._bytes += num_bytes
    if self._total:
      fraction = self._episodes / self._total
      self._first_fraction = self._first / self._total
    elif self._first_fraction is None:
      self._first_fraction = fraction
    now = self._clock()
    if now - self._last >= (_TERMINAL_SECONDS if self._is_terminal else _LINE_SECONDS):
      self._last = now
      self._show(self._render(now, fraction))

  def stop(self) -> None:
    """Clears the bar; a result can be printed."""
    if self._is_terminal:
      self._stream.write("\r\x1b[K")
      self._stream.flush()

  def _render(self, now: float, fraction: float | None) -> str:
    seconds = max(now - self._begin, 1e-9)
    of_total = f"/{self._total}" if self._total else ""
    parts = [
      f"{self._episodes}{of_total} episodes",
      f"{self._bytes / seconds / 1e6:.1f} MB/s",
    ]
    if fraction is None:
      return f"{self._label} {', '.join(parts)}"
    gained = fraction - (self._first_fraction or 0.0)
    if gained > 0:
      parts.append(f"ETA {_clock_time(seconds * (1 - fraction) / gained)}")
    full = round(_BAR_WIDTH * min(fraction, 1.0))
    bar = "█" * full + "░" * (_BAR_WIDTH - full)
    shown = f"{bar} " if self._is_terminal else ""
    return f"{self._label} {shown}{fraction:4.0%} {', '.join(parts)}"

  def _show(self, line: str) -> None:
    self._stream.write(f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")
    self._stream.flush()


def _clock_time(seconds: float) -> str:
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
