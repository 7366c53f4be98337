"""MCAP files with ROS 2 messages: topics of any rates, at the ticks of one of them.

A file is an episode; so is a folder of rosbag2's, with the files that it was split
into. A JSON file says which topic is which path, and whose clock gives the steps. Each
step shows, of every topic, the message that was the last one then, or the nearest one,
and 'clocks/<topic>' says when that one came.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, imports, specs
from t2r_seq.episodes import reading
from t2r_seq.episodes.episodes import Values
from t2r_seq.episodes.registry import register_format
from t2r_seq.episodes.views import Dropped, Episodes
from t2r_seq.specs import names as spec_names
from t2r_seq.specs.image_headers import read_image_header
from t2r_seq.specs.packing import encode_image

SIGNATURE = b"\x89MCAP"
_MAGIC = SIGNATURE + b"0\r\n"
# Before a record: its kind and size. In front of a message's data: channel, sequence
# number, log time and publish time.
_RECORD, _MESSAGE = struct.Struct("<BQ"), struct.Struct("<HIQQ")
# Kind and size of a chunk's record.
_CHUNK_HEADER_BYTES = _RECORD.size
_PIECE_BYTES = 1 << 20
SUFFIX = ".mcap"
_ROSBAG = "metadata.yaml"
HOLD, NEAREST = "hold", "nearest"
LOG, PUBLISH, HEADER = "log", "publish", "header"
_SECOND = 10**9
_MAX_TIME = 2**63 - 1
# Messages that come later than this were stamped by another clock.
_LATE = 10 * _SECOND
# Of `sensor_msgs/msg/Image`: dtype, and where its channels are in red, green, blue.
_PIXELS = {
  "rgb8": (np.uint8, (0, 1, 2)),
  "bgr8": (np.uint8, (2, 1, 0)),
  "rgba8": (np.uint8, (0, 1, 2, 3)),
  "bgra8": (np.uint8, (2, 1, 0, 3)),
  **{name: (np.uint8, (0,)) for name in ("mono8", "8UC1")},
  **{name: (np.uint16, (0,)) for name in ("mono16", "16UC1")},
  "32FC1": (np.float32, (0,)),
}
_RAW = {"height", "width", "encoding", "is_bigendian", "step", "data"}
_COMPRESSED = {"format", "data"}
# Before the PNG of a compressed depth image are its parameters.
_DEPTH, _DEPTH_BYTES = "compressedDepth", 12
# image_transport writes 'rgb8; jpeg compressed rgb8': behind 'compressed' is the order
# of the channels that the encoder took for blue, green, red.
_SWAPPED = re.compile("compressed rgb")
_STRINGS = ("string", "wstring")
_NUMBERS = {
  **{name: np.dtype(name) for name in ("bool", "float32", "float64")},
  **{f"{s}int{b}": np.dtype(f"{s}int{b}") for s in ("", "u") for b in (8, 16, 32, 64)},
  "byte": np.dtype("uint8"),
  "char": np.dtype("int8"),
}
_BUILTIN = {
  f"builtin_interfaces/{name}": {"sec": "int32", "nanosec": "uint32"}
  for name in ("Time", "Duration")
}


@dataclasses.dataclass(frozen=True)
class Contract:
  """Which topics become which paths, and at which ticks.

  Attributes:
    clock: the topic whose messages are the steps.
    paths: by path '/topic', of an image, or '/topic:field.of.it'.
    resample: 'hold' shows the last message up to a step, 'nearest' the nearest one; by
      topic.
    tolerance: seconds that a message may be away from its step; by topic, none for any.
    time: of a message, 'log' when it was recorded, 'publish' when it was sent, or
      'header', its own stamp.
  """

  clock: str
  paths: Mapping[str, str]
  resample: Mapping[str, str]
  tolerance: Mapping[str, float]
  time: str = LOG

  @classmethod
  def read(cls, path: str) -> Contract:
    """Reads a JSON file: {"clock": "/arm", "paths": {"position": "/arm:position"}}.

    Raises:
      ConversionError: it is none; with every key.
    """
    where = f"convert: layout: {path}"
    values = reading.read_json_object(where, path)
    known = [field.name for field in dataclasses.fields(cls)]
    found = [
      errors.Mismatch(
        key, f"one of {errors.listing(known)}", repr(key), errors.nearest(key, known)
      )
      for key in values
      if key not in known
    ]
    clock, time = values.get("clock"), values.get("time", LOG)
    paths: Any = values.get("paths")
    is_dict = isinstance(paths, dict) and paths
    if not is_dict or not all(isinstance(value, str) for value in paths.values()):
      want = 'a topic, or a field of one, by path: {"position": "/arm:position"}'
      found.append(errors.Mismatch("paths", want, repr(paths)))
      paths = {}
    topics = sorted({value.partition(":")[0] for value in paths.values()})
    if not isinstance(clock, str):
      found.append(errors.Mismatch("clock", "the topic that gives steps", repr(clock)))
      clock = ""
    if time not in (LOG, PUBLISH, HEADER):
      want = errors.listing((LOG, PUBLISH, HEADER))
      found.append(errors.Mismatch("time", f"one of {want}", repr(time)))
    by_topic: dict[str, dict[str, Any]] = {}
    for key, want, is_one in (
      ("resample", f"{HOLD} or {NEAREST}", lambda v: v in (HOLD, NEAREST)),
      ("tolerance", "seconds", lambda v: isinstance(v, (int, float)) and v >= 0),
    ):
      given = values.get(key, {})
      given = given if isinstance(given, dict) else dict.fromkeys(topics, given)
      by_topic[key] = given
      want = f"{want}, of a topic of {errors.listing(topics)}"
      found += [
        errors.Mismatch(key, want, f"{v!r} of {topic}", errors.nearest(topic, topics))
        for topic, v in given.items()
        if topic not in topics or not is_one(v)
      ]
    if found:
      raise errors.mismatch_error(where, found, errors.ConversionError)
    return cls(clock, paths, time=time, **by_topic)


def find_bags(path: str) -> list[tuple[str, list[str]]]:
  """Finds the recordings of a dataset.

  Args:
    path: a file, a folder of rosbag2's, or a folder of either.
  Returns:
    Name and files of each, in the order of their numbers; none where there is none.
  """
  if not os.path.isdir(path):
    return [(path, [path])]
  names = sorted(os.listdir(path), key=reading.natural_order)
  own = [os.path.join(path, n) for n in names if n.lower().endswith(SUFFIX)]
  if own and _ROSBAG in names:
    return [(path, own)]
  found = [(name, [name]) for name in own]
  for name in (os.path.join(path, n) for n in names):
    if os.path.isfile(os.path.join(name, _ROSBAG)):
      found += [bag for bag in find_bags(name) if bag[0] == name]
  return found


class _Message:
  """What a topic's messages are: how they are decoded, and the types of their fields.

  Attributes:
    type: its name, 'sensor_msgs/msg/JointState'.
    fields: types by field, by name of a message within.
  """

  def __init__(self, place: str, encoding: str, schema: Any) -> None:
    """Reads a definition.

    Args:
      place: for the error.
      encoding: of the messages.
      schema: of the topic.
    Raises:
      ConversionError: no messages of ROS 2.
    """
    decoder = imports.load_extra("mcap_ros2.decoder", "mcap")
    # A factory of each: it knows schemas by numbers, which other files give anew.
    self.decode = decoder.DecoderFactory().decoder_for(encoding, schema)
    if self.decode is None:
      got = f"{encoding or 'no encoding'}, {schema.encoding if schema else 'no schema'}"
      raise errors.ConversionError(
        f"convert: {place}: expected messages of ROS 2 (cdr, ros2msg), got {got}."
      )
    self.type = schema.name
    self.fields = {**_BUILTIN, **_read_definitions(schema.name, schema.data.decode())}

  def of(self, name: str) -> dict[str, str]:
    """Returns the types of a message's fields."""
    return self.fields[_short(name)]

  def dtype(self, name: str) -> np.dtype:
    """Returns the dtype that holds a type's numbers.

    Raises:
      KeyError: some are none.
    """
    base = name.partition("[")[0].partition("<")[0]
    if base in _NUMBERS:
      return _NUMBERS[base]
    return np.result_type(*(self.dtype(field) for field in self.of(base).values()))


def _short(name: str) -> str:
  package, _, rest = name.partition("/")
  return f"{package}/{rest.rpartition('/')[2]}"


def _read_definitions(name: str, text: str) -> dict[str, dict[str, str]]:
  """Reads the fields of a message, and of all messages within, without constants."""
  found: dict[str, dict[str, str]] = {}
  for part in re.split(r"^={3,}\s*$", text, flags=re.MULTILINE):
    fields: dict[str, str] = {}
    for line in part.splitlines():
      words = line.partition("#")[0].split()
      if words[:1] == ["MSG:"]:
        name = words[1]
      elif len(words) > 1 and "=" not in "".join(words[1:3]):
        kind = words[0]
        base = kind.partition("[")[0].partition("<")[0]
        is_own = base not in _NUMBERS and base not in _STRINGS and "/" not in base
        fields[words[1]] = f"{name.partition('/')[0]}/{kind}" if is_own else kind
    found[_short(name)] = fields
  return found


@dataclasses.dataclass(frozen=True)
class _Form:
  """What a value of a step is.

  Attributes:
    dtype: of numbers or pixels.
    shape: of them.
    data_format: of an encoded image, which comes as bytes.
    is_text: it is text.
  """

  dtype: np.dtype
  shape: tuple[int, ...]
  data_format: str | None = None
  is_text: bool = False

  def __str__(self) -> str:
    what = f"{self.data_format} images of " if self.data_format else ""
    return f"{what}{'text' if self.is_text else ''}" + (
      f"{self.shape}" if self.is_text else reading.describe(self.dtype, self.shape)
    )

  def spec(self, path: str) -> specs.ExtendedTensorSpec:
    """Returns the spec of a path that has such a value at each step."""
    return specs.ExtendedTensorSpec(
      self.shape,
      tf.string if self.is_text else tf.as_dtype(self.dtype),
      path,
      is_sequence=True,
      data_format=self.data_format,
    )


_CLOCK = _Form(np.dtype(np.int64), ())


@dataclasses.dataclass(frozen=True)
class _Shown:
  """The messages that the steps of a recording show.

  Attributes:
    numbers: of the messages, int64 [T] by topic.
    times: of these, ns, int64 [T] by topic.
    num_steps: T.
  """

  numbers: dict[str, np.ndarray]
  times: dict[str, np.ndarray]
  num_steps: int


def _recognises(path: str) -> bool:
  if os.path.isdir(path):
    return bool(find_bags(path))
  with open(path, "rb") as file:
    is_mcap = file.read(len(SIGNATURE)) == SIGNATURE
  return is_mcap or path.lower().endswith(SUFFIX)


@register_format(
  "mcap", recognises=_recognises, description="an MCAP file", extra="mcap"
)
class McapEpisodes(Episodes):
  """Reads recordings by a contract, each as an episode."""

  def __init__(
    self, path: str, layout: str | None = None, dropped: Dropped | None = None
  ) -> None:
    """Looks at what each recording has, and at the first message of each topic.

    Args:
      path: of a file, or of a folder of them.
      layout: a JSON file with the contract.
      dropped: paths to leave out.
    Raises:
      ImportError: the extra is not installed.
      ConversionError: no contract, with all topics; no recording, a damaged one, or
        one without the topics.
    """
    imports.load_extra("mcap.reader", "mcap")
    self.path = path
    dropped = dropped or Dropped()
    bags = find_bags(path)
    if not bags:
      raise errors.ConversionError(
        f"convert: {path}: expected {SUFFIX} files, or folders of rosbag2's, got none."
      )
    if layout is None:
      raise _no_contract(*bags[0])
    self._contract = Contract.read(layout)
    wanted = {p: v for p, v in self._contract.paths.items() if not dropped.has(p)}
    self._fields = {
      path: (value.partition(":")[0], value.partition(":")[2])
      for path, value in wanted.items()
    }
    topics = [topic for topic, _ in self._fields.values()]
    self._topics = sorted({self._contract.clock, *topics})
    self._bags: list[tuple[str, list[str]]] = []
    empty: list[tuple[str, list[str]]] = []
    for name, parts in bags:
      has_steps = _has_steps(name, parts, self._contract.clock, self._topics)
      (self._bags if has_steps else empty).append((name, parts))
    self._messages: dict[tuple[str, bytes], _Message] = {}
    self._names: dict[str, list[str]] = {}
    self._forms: dict[str, _Form] = {}
    self._swapped: list[str] = []
    self._skipped: dict[str, int] = {}
    self._repeated: dict[str, int] = {}
    self._farthest = (0.0, "", "")
    clocks = {
      topic: f"{spec_names.CLOCKS}/{topic.strip('/')}" for topic in self._topics
    }
    self._clocks = {t: name for t, name in clocks.items() if not dropped.has(name)}
    if self._bags:
      self._look_at(*self._bags[0])
    forms = {**self._forms, **dict.fromkeys(self._clocks.values(), _CLOCK)}
    self.spec = specs.TensorSpecStruct(
      (path, form.spec(path)) for path, form in sorted(forms.items())
    )
    self._shown: dict[int, _Shown] = {}
    self.metadata = {
      "mcap": {
        "layout": dataclasses.asdict(self._contract),
        "bags": [os.path.basename(os.path.normpath(name)) for name, _ in self._bags],
        "names": self._names,
      }
    }
    self._opening_notes: list[str] = []
    if self._swapped:
      self._opening_notes.append(
        f"Red and blue of {errors.listing(self._swapped)} are swapped back, to PNG: "
        "'compressed rgb8' says that the encoder took red for blue."
      )
    if empty:
      self._opening_notes.append(reading.left_out(len(empty), empty[0][0]))

  def fingerprint(self) -> dict[str, Any]:
    """Returns sizes and times of the files, and the contract."""
    stats = [os.stat(name) for _, parts in self._bags for name in parts]
    return {
      "files": [[s.st_size, s.st_mtime_ns] for s in stats],
      "layout": dataclasses.asdict(self._contract),
    }

  @property
  def num_episodes(self) -> int:
    """The number of recordings that have steps."""
    return len(self._bags)

  @property
  def lengths(self) -> np.ndarray:  # type: ignore[override]
    """Steps of each recording; reads the times of all messages at the first call."""
    found = [self._show(number).num_steps for number in range(len(self._bags))]
    return np.asarray(found, np.int64)

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    """Decodes the messages that some steps show; see `Episodes.read`."""
    shown = self._show(episode)
    own = self.spec if paths is None else paths
    steps = slice(*slice(start, stop).indices(shown.num_steps))
    values = {
      path: shown.times[topic][steps]
      for topic, path in self._clocks.items()
      if path in own
    }
    with reading.explained(self._bags[episode][0], "messages"):
      values |= self._gather(episode, [p for p in self._forms if p in own], steps)
    return values

  def place(self, episode: int) -> str:
    """Returns the file or the folder of a recording."""
    return f"episode {episode}, {self._bags[episode][0]}"

  @property
  def notes(self) -> list[str]:  # type: ignore[override]
    """Notes of the layout, and of the recordings that were read so far."""
    notes, clock = [*self._opening_notes], self._contract.clock
    if self._skipped:
      notes.append(
        f"{sum(self._skipped.values())} messages of {clock} are no steps: not all "
        f"topics had one before them, first in {next(iter(self._skipped))}."
      )
    if self._repeated:
      notes.append(
        f"{sum(self._repeated.values())} messages of {clock} have the "
        f"{self._contract.time} time of the message before them: each is a step. First "
        f"in {next(iter(self._repeated))}."
      )
    seconds, topic, place = self._farthest
    if seconds:
      is_bounded = topic in self._contract.tolerance
      notes.append(
        f"The message farthest from its step is {seconds:.3f} s away: {topic} at "
        f"{place}."
        + ("" if is_bounded else " A tolerance in the layout would refuse it.")
      )
    return notes

  # What there is.

  def _look_at(self, name: str, parts: list[str]) -> None:
    """Finds what the values of each path are, by the first message of its topic."""
    found = []
    for path, (topic, field) in self._fields.items():
      with reading.explained(name, "messages"):
        _, _, message, first = next(self._iterate(parts, [topic]))
        place = f"{name}: {topic}"
        try:
          value = _find(message, message.decode(first.data), field)
        except KeyError as error:
          found.append(_no_field(path, topic, field, message, error.args[0]))
          continue
        self._forms[path] = _make(place, path, message, value)[0]
        if value.names:
          self._names[path] = value.names
        if _SWAPPED.search(str(getattr(value.value, "format", ""))):
          self._swapped.append(path)
    if found:
      raise errors.mismatch_error(f"convert: {name}", found, errors.ConversionError)

  def _iterate(
    self, parts: list[str], topics: Collection[str], with_data: bool = True
  ) -> Iterator[tuple[str, str, _Message, Any]]:
    """Yields file, topic, type and message in the order of the files."""
    for name in parts:
      for schema, channel, message in read_messages(name, topics, with_data):
        key = (schema.name, schema.data) if schema else ("", b"")
        if key not in self._messages:
          place = f"{name}: {channel.topic}"
          self._messages[key] = _Message(place, channel.message_encoding, schema)
        yield name, channel.topic, self._messages[key], message

  def _time(self, place: str, known: _Message, message: Any) -> int:
    if self._contract.time != HEADER:
      is_log = self._contract.time == LOG
      time = int(message.log_time if is_log else message.publish_time)
      if time > _MAX_TIME:
        raise errors.ConversionError(
          f"convert: {place}: expected a {self._contract.time} time below 2**63 ns, "
          f"got {time}. {self._way_out}"
        )
      return time
    stamp = getattr(getattr(known.decode(message.data), "header", None), "stamp", None)
    if stamp is None:
      raise errors.ConversionError(
        f"convert: {place}: {known.type}: expected messages with a header.stamp, as "
        f'"time": "{HEADER}" needs them, got none. Take "{LOG}".'
      )
    return int(stamp.sec) * _SECOND + int(stamp.nanosec)

  @property
  def _way_out(self) -> str:
    """What to do about times that are wrong."""
    if self._contract.time != LOG:
      return (
        f'Take "time": "{LOG}", when messages were recorded; or split the recording '
        "where the clock was reset."
      )
    return (
      f'Take "time": "{HEADER}" or "{PUBLISH}"; or split the recording where the clock '
      "was reset; or sort it, `mcap sort`, if messages are only out of order."
    )

  # Reading.

  def _show(self, episode: int) -> _Shown:
    """Finds which message of each topic a step shows; reads times only, once."""
    if episode not in self._shown:
      name, parts = self._bags[episode]
      with reading.explained(name, "messages"):
        self._shown[episode] = self._find_shown(name, parts)
    return self._shown[episode]

  def _find_shown(self, name: str, parts: list[str]) -> _Shown:
    came: dict[str, list[tuple[int, int, int]]] = {topic: [] for topic in self._topics}
    is_header = self._contract.time == HEADER
    for part, topic, known, message in self._iterate(parts, self._topics, is_header):
      place = f"{part}: {topic}: message {len(came[topic])}"
      time = self._time(place, known, message)
      log = min(message.log_time, _MAX_TIME)
      came[topic].append((time, log, parts.index(part)))
    clock = self._contract.clock
    table = {t: np.asarray(rows, np.int64).reshape(-1, 3) for t, rows in came.items()}
    for topic, rows in table.items():
      self._check_times(parts, topic, rows)
    for topic, rows in table.items():
      self._check_same_clock(parts, topic, rows, table[clock])
    times = {topic: rows[:, 0] for topic, rows in table.items()}
    ticks = times[clock]
    if repeated := int((np.diff(ticks) == 0).sum()):
      self._repeated[name] = repeated
    shown = {t: self._choose(t, rows, table[clock]) for t, rows in table.items()}
    is_shown = np.all([numbers >= 0 for numbers in shown.values()], axis=0)
    if not is_shown.any():
      late = max(self._topics, key=lambda topic: (shown[topic] < 0).sum())
      raise errors.ConversionError(
        f"convert: {name}: {late}: expected a message before the last one of "
        f"{clock}, got none."
      )
    # Once a topic has been heard of, it is shown.
    first = int(np.argmax(is_shown))
    if first:
      self._skipped[name] = first
    ticks = ticks[first:]
    shown = {topic: numbers[first:] for topic, numbers in shown.items()}
    shown_times = {topic: times[topic][shown[topic]] for topic in self._topics}
    for topic in self._topics:
      self._check_distance(name, topic, shown_times[topic] - ticks)
    return _Shown(shown, shown_times, len(ticks))

  def _check_times(self, parts: list[str], topic: str, rows: np.ndarray) -> None:
    """Checks that the times of a topic's messages do not fall, and are set.

    Args:
      parts: the files.
      topic: of the messages.
      rows: time, log time and number of the file of each message, in their order.
    Raises:
      ConversionError: names the first message whose time is before the last one's.
    """
    times, kind = rows[:, 0], self._contract.time
    back = np.flatnonzero(np.diff(times) < 0) + 1
    if len(back):
      at = int(back[0])
      raise errors.ConversionError(
        f"convert: {parts[rows[at, 2]]}: {topic}: expected {kind} times that do not "
        f"fall, got {times[at]} ns at message {at}, after {times[at - 1]} ns. "
        f"{self._way_out}"
      )
    is_clock = topic == self._contract.clock
    if len(times) > 1 and times[0] == times[-1] and (is_clock or not times[0]):
      raise errors.ConversionError(
        f"convert: {parts[0]}: {topic}: expected {kind} times that rise, got "
        f"{times[0]} ns in all of {len(times)} messages: they are not set. "
        f"{self._way_out}"
      )
    if not is_clock or kind == LOG or not len(times) or times[0]:
      return
    num_unset = int(np.searchsorted(times, 0, "right"))
    # Simulations begin at 0, too, and rise about as the log does.
    is_followed = num_unset < len(times) and (
      times[num_unset] > rows[num_unset, 1] - rows[num_unset - 1, 1] + _LATE
    )
    if is_followed or len(times) == 1:
      followed = f", before {times[num_unset]} ns" if is_followed else ""
      raise errors.ConversionError(
        f"convert: {parts[0]}: {topic}: expected {kind} times that are set, got 0 ns "
        f"at message {num_unset - 1}{followed}. {self._way_out}"
      )

  def _check_same_clock(
    self, parts: list[str], topic: str, rows: np.ndarray, clock: np.ndarray
  ) -> None:
    """Checks that a topic's times are of the clock that gives the steps theirs.

    Between two messages of the clock in the log, the times of others are those between,
    but for what messages are late. Other times jumped, or count from another moment.

    Args:
      parts: the files.
      topic: of the messages.
      rows: time, log time and number of the file of each message.
      clock: the same of the clock.
    Raises:
      ConversionError: names the first message of another clock.
    """
    times = rows[:, 0]
    if self._contract.time == LOG or len(np.unique(times)) < 2:
      return
    logged = np.maximum.accumulate(clock[:, 1])
    before = np.searchsorted(logged, rows[:, 1], "left") - 1
    after = np.searchsorted(logged, rows[:, 1], "right")
    low = np.where(before >= 0, clock[before, 0], times)
    high = np.where(after < len(clock), clock[after % len(clock), 0], times)
    away = np.maximum(low - times, times - high)
    if (away > _LATE).any():
      if len(jumps := _jumps(clock)) and not len(_jumps(rows)):
        at = int(jumps[0])
        raise errors.ConversionError(
          f"convert: {parts[clock[at, 2]]}: {self._contract.clock}: expected "
          f"{self._contract.time} times that rise as those of the log do, got "
          f"{clock[at, 0]} ns at message {at}, after {clock[at - 1, 0]} ns. "
          f"{self._way_out}"
        )
      at = int(np.argmax(away > _LATE))
      raise errors.ConversionError(
        f"convert: {parts[rows[at, 2]]}: {topic}: expected {self._contract.time} times "
        f"of the clock of {self._contract.clock}, got {times[at]} ns at message {at}, "
        f"{away[at] / _SECOND:.3f} s from those recorded with it. {self._way_out}"
      )

  def _choose(self, topic: str, rows: np.ndarray, clock: np.ndarray) -> np.ndarray:
    """Returns the number of the message that each tick shows; -1 for none.

    Args:
      topic: of the messages.
      rows: time, log time and number of the file of each message.
      clock: the same of the clock's messages, which are the ticks.
    """
    times, ticks = rows[:, 0], clock[:, 0]
    if topic == self._contract.clock:
      return np.arange(len(ticks))
    if not len(times):
      return np.full(len(ticks), -1)
    chosen = np.searchsorted(times, ticks, "right") - 1
    # Ticks at one time show messages of that time in the order of the log.
    next_logs = np.append(clock[1:, 1], _MAX_TIME)
    logged = np.searchsorted(np.maximum.accumulate(rows[:, 1]), next_logs, "left") - 1
    is_ordered = np.append(ticks[1:] == ticks[:-1], False)
    is_ordered &= logged >= np.searchsorted(times, ticks, "left")
    chosen = np.where(is_ordered, np.minimum(chosen, logged), chosen)
    if self._contract.resample.get(topic) == NEAREST:
      after = np.minimum(chosen + 1, len(times) - 1)
      chosen = np.maximum(chosen, 0)
      is_after = np.abs(times[after] - ticks) < np.abs(ticks - times[chosen])
      chosen = np.where(is_after, after, chosen)
    return chosen

  def _check_distance(self, name: str, topic: str, distance: np.ndarray) -> None:
    """Checks that messages are as near to their steps as the contract wants."""
    step = int(np.argmax(np.abs(distance)))
    seconds = abs(int(distance[step])) / _SECOND
    if seconds > self._contract.tolerance.get(topic, np.inf):
      raise errors.ConversionError(
        f"convert: {name}: {topic}: expected a message within "
        f"{self._contract.tolerance[topic]} s of step {step}, got the chosen one "
        f"{int(distance[step]) / _SECOND:.3f} s from it."
      )
    self._farthest = max(self._farthest, (seconds, topic, f"step {step} of {name}"))

  def _gather(self, episode: int, own: Sequence[str], steps: slice) -> Values:
    """Decodes each message that the steps show, once, into all that show it."""
    name, parts = self._bags[episode]
    shown, num_steps = self._show(episode).numbers, steps.stop - steps.start
    values: Values = {}
    topics: dict[str, list[str]] = {}
    for path in own:
      form = self._forms[path]
      is_object = form.is_text or form.data_format
      shape = () if form.data_format else form.shape
      values[path] = np.empty(
        (max(num_steps, 0), *shape), object if is_object else form.dtype
      )
      topics.setdefault(self._fields[path][0], []).append(path)
    spans = {topic: _spans(shown[topic][steps]) for topic in topics}
    count = dict.fromkeys(topics, 0)
    for _, topic, message, found in self._iterate(parts, topics):
      span, data = spans[topic].get(count[topic]), found.data
      count[topic] += 1
      if span is None:
        continue
      place = f"{name}: {topic}: step {steps.start + span[0]}"
      try:
        decoded = message.decode(data)
      except Exception as error:
        raise errors.ConversionError(
          f"convert: {place}: expected a {message.type}, got {len(data)} bytes that "
          f"are none: {error}."
        ) from error
      for path in topics[topic]:
        value = self._value(place, path, message, decoded)
        for step in range(*span):
          values[path][step] = value
    return values

  def _value(self, place: str, path: str, message: _Message, decoded: Any) -> Any:
    """Takes the value of a path, and checks that it is what others are."""
    found = _find(message, decoded, self._fields[path][1])
    form, value = _make(place, path, message, found)
    want = self._forms[path]
    if form != want:
      raise errors.ConversionError(
        f"convert: {place}: {path}: expected {want}, as the first message has, got "
        f"{form}. Leave it out: --drop {path}."
      )
    if found.names and found.names != self._names.get(path):
      raise errors.ConversionError(
        f"convert: {place}: {path}: expected the values of {self._names.get(path)}, as "
        f"the first message has them, got {found.names}: another order, or others."
      )
    return value


@dataclasses.dataclass(frozen=True)
class _Found:
  """A field of a message.

  Attributes:
    value: as the library gives it.
    type: as its definition says.
    names: of the values, where the message names them, as those of joints are.
  """

  value: Any
  type: str
  names: list[str] = dataclasses.field(default_factory=list)


def _find(message: _Message, decoded: Any, field: str) -> _Found:
  """Finds a field of a message; '' is all of it.

  Raises:
    KeyError: with the fields that there are.
  """
  kind, value, names = message.type, decoded, []
  for part in filter(None, field.split(".")):
    fields = message.fields.get(_short(kind), {})
    if part not in fields:
      raise KeyError(list(fields))
    listed = value.name if fields.get("name") == "string[]" else ()
    kind, value = fields[part], getattr(value, part)
    is_named = isinstance(value, list) and len(value) == len(listed)
    names = list(listed) if is_named and part != "name" else []
  return _Found(value, kind, names)


def _make(place: str, path: str, message: _Message, found: _Found) -> tuple[_Form, Any]:
  """Makes a value of a field: numbers, pixels, or the bytes of images and text.

  Raises:
    ConversionError: it is none of them.
  """
  fields = message.fields.get(_short(found.type), {})
  if set(fields) >= _RAW:
    pixels = _pixels(f"convert: {place}: {path}", found.value)
    return _Form(pixels.dtype, pixels.shape), pixels
  if set(fields) >= _COMPRESSED:
    return _encoded(f"convert: {place}: {path}", found.value)
  base, is_array = found.type.partition("[")[0].partition("<")[0], "[" in found.type
  if base in _STRINGS:
    items = found.value if is_array else [found.value]
    text = np.empty(len(items), object)
    text[:] = [item.encode() for item in items]
    shape = text.shape if is_array else ()
    return _Form(np.dtype(object), shape, is_text=True), text if is_array else text[0]
  try:
    dtype = message.dtype(found.type)
  except KeyError as error:
    hint = f"Name a field of it: /topic:field, of {errors.listing(fields)}."
    raise errors.ConversionError(
      f"convert: {place}: {path}: expected numbers, text or an image, got "
      f"{found.type}. {hint if fields else f'Leave it out: --drop {path}.'}"
    ) from error
  array = np.asarray(_numbers(message, found.value, found.type), dtype)
  return _Form(dtype, array.shape), array


def _numbers(message: _Message, value: Any, kind: str) -> Any:
  """Makes numbers of a field; of a message with numbers a vector of all of them."""
  base, is_array = kind.partition("[")[0], "[" in kind
  if base in _NUMBERS:
    # Bytes would be taken for text.
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
  if is_array:
    return [_numbers(message, item, base) for item in value]
  parts = [
    np.ravel(_numbers(message, getattr(value, name), field))
    for name, field in message.of(base).items()
  ]
  return np.concatenate(parts)


def _pixels(place: str, image: Any) -> np.ndarray:
  """Makes pixels (H, W, C) of a raw image: red, green, blue."""
  if image.encoding not in _PIXELS:
    raise errors.ConversionError(
      f"{place}: expected an encoding of {errors.listing(_PIXELS)}, got "
      f"'{image.encoding}'."
    )
  dtype, channels = _PIXELS[image.encoding]
  kind = np.dtype(dtype).newbyteorder(">" if image.is_bigendian else "<")
  row = image.width * len(channels) * kind.itemsize
  data = np.frombuffer(image.data, np.uint8)
  if image.step < row or data.size != image.height * image.step:
    raise errors.ConversionError(
      f"{place}: expected {image.height} rows of at least {row} bytes, as "
      f"{image.width} pixels of {image.encoding} have, got {data.size} bytes in rows "
      f"of {image.step}."
    )
  rows = np.ascontiguousarray(data.reshape(image.height, image.step)[:, :row])
  pixels = rows.view(kind).reshape(image.height, image.width, len(channels))
  return pixels[..., list(channels)].astype(dtype)


def _encoded(place: str, image: Any) -> tuple[_Form, bytes]:
  """Returns the bytes of a JPEG or PNG; a PNG with the channels of a swapped one."""
  data = bytes(image.data)
  if _DEPTH in image.format:
    data = data[_DEPTH_BYTES:]
  header = read_image_header(data)
  is_depth = _DEPTH not in image.format or image.format.startswith("16UC1")
  if header is None or header.format not in ("jpeg", "png") or not is_depth:
    raise errors.ConversionError(
      f"{place}: expected a JPEG, a PNG, or depth of 16UC1 as PNG, got "
      f"'{image.format}' with {data[:8]!r}."
    )
  if image.format.startswith("bayer") and header.channels == 1:
    raise errors.ConversionError(
      f"{place}: expected an image in colour, got '{image.format}', a mosaic of single "
      "colours. Record the topic of an image that is debayered."
    )
  dtype = np.dtype(np.uint16 if header.bits > 8 else np.uint8)
  shape = (header.height, header.width, header.channels)
  data_format = header.format
  if _SWAPPED.search(image.format) and header.channels > 2:
    pixels = tf.io.decode_image(data, dtype=tf.as_dtype(dtype)).numpy()
    data_format = "png"
    data = encode_image(pixels[..., [2, 1, 0, 3][: header.channels]], data_format)
  return _Form(dtype, shape, data_format), data


def _spans(numbers: np.ndarray) -> dict[int, tuple[int, int]]:
  """Returns, by number of a message, the steps that show it: they follow each other."""
  starts = np.flatnonzero(np.diff(numbers, prepend=-1))
  stops = np.append(starts[1:], len(numbers))
  of_starts = numbers[starts].tolist()
  return dict(
    zip(of_starts, zip(starts.tolist(), stops.tolist(), strict=True), strict=True)
  )


# Files.


def _jumps(rows: np.ndarray) -> np.ndarray:
  """Returns the messages whose times are not as long after the last one as in the log.

  Args:
    rows: time and log time of each message.
  """
  steps = np.diff(rows[:, :2], axis=0)
  return np.flatnonzero(np.abs(steps[:, 0] - steps[:, 1]) > _LATE) + 1


def _has_steps(name: str, parts: list[str], clock: str, topics: list[str]) -> bool:
  """Whether a recording has messages of the clock.

  Raises:
    ConversionError: with every topic that is not there.
  """
  known: dict[str, int] = {}
  for part in parts:
    for topic, (_, count) in list_topics(part).items():
      known[topic] = known.get(topic, 0) + count
  if known.get(clock) == 0:
    return False
  have = [topic for topic, count in known.items() if count]
  found = [
    errors.Mismatch(topic, "messages of it", "none", errors.nearest(topic, have))
    for topic in topics
    if topic not in have
  ]
  if found:
    raise errors.mismatch_error(f"convert: {name}", found, errors.ConversionError)
  return True


def _no_contract(name: str, parts: list[str]) -> errors.ConversionError:
  """Builds the error that shows the topics of a recording."""
  topics: dict[str, list[Any]] = {}
  for part in parts:
    for topic, (kind, count) in list_topics(part).items():
      topics.setdefault(topic, [kind, 0])[1] += count
  lines = [f"  {t}  {kind}  {count} messages" for t, (kind, count) in topics.items()]
  return errors.ConversionError(
    f"convert: {name}: expected a layout that says which topics are which paths, got "
    "none for\n" + "\n".join(sorted(lines)) + "\n"
    'Say it with --layout layout.json, such as {"clock": "/arm", "paths": {"position": '
    '"/arm:position", "image": "/camera"}}.'
  )


def _no_field(
  path: str, topic: str, field: str, message: _Message, fields: list[str]
) -> errors.Mismatch:
  want = f"a field of {message.type}, of {errors.listing(fields)}"
  near = errors.nearest(field.rpartition(".")[2], fields)
  return errors.Mismatch(path, want, f"'{field}' of {topic}", near)


# The files. The `mcap` package sorts messages by the recorder's time, which hides a
# clock that was set back, and decompresses whole chunks. Here a chunk is decompressed
# piece by piece, and messages of other topics are skipped, so they take no memory.

# Schema (None if it has none), channel and message, as the `mcap` package has them.
Entry = tuple[Any, Any, Any]


@contextlib.contextmanager
def _open(name: str) -> Iterator[tuple[Any, Any]]:
  """Opens a complete file, and yields it with its summary, which may be None.

  Raises:
    ConversionError: no MCAP file, another version, or a file that was cut.
  """
  with open(name, "rb") as file:
    start = file.read(len(_MAGIC))
    if start != _MAGIC:
      version = start.removeprefix(SIGNATURE)
      got = f"version {version[:1]!r}" if version != start else f"{start!r}"
      raise errors.ConversionError(
        f"convert: {name}: expected an MCAP file of version 0, got {got}."
      )
    file.seek(max(os.path.getsize(name) - len(_MAGIC), len(_MAGIC)))
    if file.read() != _MAGIC:
      raise errors.ConversionError(
        f"convert: {name}: expected a whole MCAP file, got one without an end: the "
        "recording was not finished, or the file was cut. `mcap recover` saves what is "
        "whole."
      )
    file.seek(0)
    yield (
      file,
      imports.load_extra("mcap.reader", "mcap").make_reader(file).get_summary(),
    )


def list_topics(name: str) -> dict[str, list[Any]]:
  """Returns type and number of messages by topic.

  Args:
    name: of the file.
  Raises:
    ConversionError: the file cannot be read.
  """
  found: dict[str, list[Any]] = {}
  with reading.explained(name, "an MCAP file"):
    with _open(name) as (_, summary):
      if summary is not None and summary.statistics is not None:
        counts = summary.statistics.channel_message_counts
        for number, channel in summary.channels.items():
          schema = summary.schemas.get(channel.schema_id)
          entry = found.setdefault(channel.topic, [schema.name if schema else "?", 0])
          entry[1] += counts.get(number, 0)
        return found
    for schema, channel, _ in read_messages(name, with_data=False):
      entry = found.setdefault(channel.topic, [schema.name if schema else "?", 0])
      entry[1] += 1
  return found


def read_messages(
  name: str, topics: Collection[str] | None = None, with_data: bool = True
) -> Iterator[Entry]:
  """Yields schema, channel and message in the order of the file.

  Args:
    name: of the file.
    topics: to read; None for all.
    with_data: reads the content of messages; otherwise `data` is empty.
  Raises:
    ConversionError: the file is not a complete MCAP file.
    ValueError: a chunk is damaged.
  """
  from mcap import records

  with _open(name) as (file, summary):
    schemas = dict(summary.schemas) if summary else {}
    channels = dict(summary.channels) if summary else {}

    def is_read(number: int) -> bool:
      return topics is None or channels[number].topic in topics

    for record in _records(file, summary, is_read):
      if isinstance(record, records.Chunk):
        found: Any = _chunk_records(record, is_read, with_data)
      else:
        found = (record,)
      for item in found:
        if isinstance(item, records.Schema):
          schemas[item.id] = item
        elif isinstance(item, records.Channel):
          channels[item.id] = item
        elif isinstance(item, records.Message) and is_read(item.channel_id):
          channel = channels[item.channel_id]
          yield schemas.get(channel.schema_id), channel, item


def _records(file: Any, summary: Any, is_read: Any) -> Iterator[Any]:
  """Yields the chunks that may have messages to read; without an index all records."""
  from mcap import data_stream, records, stream_reader

  if summary is None or not summary.chunk_indexes:
    file.seek(0)
    yield from stream_reader.StreamReader(file, emit_chunks=True).records
    return
  for index in sorted(summary.chunk_indexes, key=lambda i: i.chunk_start_offset):
    # Without message indexes only the chunk shows which channels it has.
    numbers = index.message_index_offsets
    if not numbers or any(map(is_read, numbers)):
      file.seek(index.chunk_start_offset + _CHUNK_HEADER_BYTES)
      yield records.Chunk.read(data_stream.ReadDataStream(file))


def _chunk_records(chunk: Any, is_read: Any, with_data: bool) -> Iterator[Any]:
  """Yields schemas, channels, and the messages to read of a chunk.

  Raises:
    ValueError: its records do not fit its size or checksum.
  """
  from mcap import data_stream, opcode, records

  kinds = opcode.Opcode
  stream = _ChunkStream(chunk)
  while stream.left:
    kind, size = _RECORD.unpack(stream.read(_RECORD.size))
    if kind == kinds.MESSAGE:
      number, sequence, log, publish = _MESSAGE.unpack(stream.read(_MESSAGE.size))
      size -= _MESSAGE.size
      if is_read(number):
        data = stream.read(size) if with_data else b""
        size -= len(data)
        yield records.Message(number, log, data, publish, sequence)
    elif kind in (kinds.SCHEMA, kinds.CHANNEL):
      reads = records.Schema if kind == kinds.SCHEMA else records.Channel
      data, size = stream.read(size), 0
      yield reads.read(data_stream.ReadDataStream(io.BytesIO(data)))
    stream.skip(size)
  stream.check()


class _ChunkStream:
  """Decompresses a chunk as far as it is read; no size that it states is allocated.

  Attributes:
    left: bytes that are not yet read.
  """

  def __init__(self, chunk: Any) -> None:
    """Starts at the first record.

    Raises:
      ValueError: an unknown compression.
    """
    data = io.BytesIO(chunk.data)
    if chunk.compression == "zstd":
      zstd = imports.load_extra("zstandard", "mcap")
      self._file: Any = zstd.ZstdDecompressor().stream_reader(data)
    elif chunk.compression == "lz4":
      self._file = imports.load_extra("lz4.frame", "mcap").open(data)
    elif not chunk.compression:
      self._file = data
    else:
      raise ValueError(f"a chunk with the compression '{chunk.compression}'")
    self.left: int = chunk.uncompressed_size
    self._crc32 = chunk.uncompressed_crc  # 0 if the writer has computed none.
    self._computed = 0

  def _pieces(self, size: int) -> Iterator[bytes]:
    if not 0 <= size <= self.left:
      raise ValueError(f"a record of {size} bytes in the last {self.left} of a chunk")
    while size:
      piece = self._file.read(min(size, _PIECE_BYTES))
      if not piece:
        raise ValueError(f"a chunk that ends {self.left} bytes early")
      self._computed = zlib.crc32(piece, self._computed)
      self.left -= len(piece)
      size -= len(piece)
      yield piece

  def read(self, size: int) -> bytes:
    """Returns the next bytes."""
    return b"".join(self._pieces(size))

  def skip(self, size: int) -> None:
    """Skips the next bytes."""
    for _ in self._pieces(size):
      pass

  def check(self) -> None:
    """Checks that the chunk ends here, and its checksum."""
    if self._file.read(1):
      raise ValueError("a chunk that is longer than its header states")
    if self._crc32 and self._crc32 != self._computed:
      raise ValueError("a chunk that does not fit its checksum")
