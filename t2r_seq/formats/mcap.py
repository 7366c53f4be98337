"""Reads MCAP files with ROS 2 messages; the messages of one topic are the steps.

A file is an episode, or a rosbag2 folder with the files that it was split into. A JSON
file, the contract, maps topics to paths, and names the topic of the steps. For every
other topic a step has the last message up to it, or the nearest one; 'clocks/<topic>'
has the time of that message. With clocks='own' other topics keep all their messages.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors, imports, specs
from t2r_seq.episodes import reading
from t2r_seq.episodes.episodes import Fields, Values
from t2r_seq.episodes.registry import register_format
from t2r_seq.episodes.views import Dropped, Episodes
from t2r_seq.formats import mcap_files
from t2r_seq.formats.mcap_files import Bag
from t2r_seq.imports import tf
from t2r_seq.specs import names as spec_names
from t2r_seq.specs.image_headers import read_image_header

HOLD, NEAREST = "hold", "nearest"
STEPS, OWN = "steps", "own"
LOG, PUBLISH, HEADER = "log", "publish", "header"
_SECOND = 10**9
_MAX_TIME = 2**63 - 1
# Nanoseconds; a message that is later than this was stamped by another clock.
_LATE = 10 * _SECOND
# Encodings of `sensor_msgs/msg/Image`: dtype, and which channels are red, green, blue.
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
# A compressed depth image is a PNG after 12 bytes of parameters.
_DEPTH, _DEPTH_BYTES = "compressedDepth", 12
# image_transport writes 'rgb8; jpeg compressed rgb8'. Its encoder expects bgr8, so that
# 'compressed rgb8' means that it swapped red and blue.
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
  """Maps topics to paths, and their messages to steps.

  Attributes:
    clock: the topic whose messages are the steps.
    paths: sources by path: '/topic' for a whole message, such as an image, or
      '/topic:field.of.it'.
    resample: 'hold', the default, for the last message up to a step, or 'nearest' for
      the nearest one; by topic.
    tolerance: maximum seconds between a step and its message, by topic; unlimited for
      other topics.
    time: time of a message: 'log', when it was recorded, 'publish', when it was sent,
      or 'header', its header.stamp.
  """

  clock: str
  paths: Mapping[str, str]
  resample: Mapping[str, str]
  tolerance: Mapping[str, float]
  time: str = LOG

  @classmethod
  def read(cls, path: str) -> Contract:
    """Reads a JSON file: {"clock": "/arm", "paths": {"position": "/arm:position"}}.

    A single value for `resample` or `tolerance` is that of all topics.
    """
    names = [field.name for field in dataclasses.fields(cls)]
    values = reading.read_json_object(path, keys=names)
    mismatches = []
    clock, time = values.get("clock"), values.get("time", LOG)
    paths: Any = values.get("paths")
    is_dict = isinstance(paths, dict) and paths
    if not is_dict or not all(isinstance(value, str) for value in paths.values()):
      want = 'a topic, or a field of one, by path: {"position": "/arm:position"}'
      mismatches.append(errors.Mismatch("paths", want, repr(paths)))
      paths = {}
    topics = sorted({value.partition(":")[0] for value in paths.values()})
    if not isinstance(clock, str):
      mismatches.append(
        errors.Mismatch("clock", "the topic that gives steps", repr(clock))
      )
    if time not in (LOG, PUBLISH, HEADER):
      want = f"one of {errors.listing((LOG, PUBLISH, HEADER))}"
      mismatches.append(errors.Mismatch("time", want, repr(time)))
    by_topic: dict[str, dict[str, Any]] = {}
    for key, want, is_valid in (
      ("resample", f"{HOLD} or {NEAREST}", lambda v: v in (HOLD, NEAREST)),
      ("tolerance", "seconds", lambda v: isinstance(v, (int, float)) and v >= 0),
    ):
      given = values.get(key, {})
      given = given if isinstance(given, dict) else dict.fromkeys(topics, given)
      by_topic[key] = given
      want = f"{want}, of a topic of {errors.listing(topics)}"
      mismatches += [
        errors.Mismatch(key, want, f"{v!r} of {topic}", errors.nearest(topic, topics))
        for topic, v in given.items()
        if topic not in topics or not is_valid(v)
      ]
    if mismatches:
      raise reading.faults(path, mismatches)
    return cls(str(clock), paths, time=time, **by_topic)


class _Message:
  """Decoder of a message type, and the types of its fields.

  Attributes:
    type: its name, such as 'sensor_msgs/msg/JointState'.
    fields: types of fields by name, by message type; nested types included.
  """

  def __init__(self, place: str, encoding: str, schema: Any) -> None:
    decoder = imports.load_extra("mcap_ros2.decoder", "mcap")
    # A factory caches decoders by schema id, which other files use for other types.
    self.decode = decoder.DecoderFactory().decoder_for(encoding, schema)
    if self.decode is None:
      got = f"{encoding or 'no encoding'}, {schema.encoding if schema else 'no schema'}"
      raise reading.fault(place, "messages of ROS 2 (cdr, ros2msg)", got)
    self.type = schema.name
    self.fields = {**_BUILTIN, **_read_definitions(schema.name, schema.data.decode())}

  def of(self, name: str) -> dict[str, str]:
    """Returns the types of the fields of a message type; {} for a basic type."""
    return self.fields.get(_short(name), {})

  def dtype(self, name: str) -> np.dtype:
    """Returns the dtype that holds all fields of a type; KeyError: one is no number."""
    base = _base(name)
    if base in _NUMBERS:
      return _NUMBERS[base]
    fields = self.fields[_short(base)]
    return np.result_type(*(self.dtype(field) for field in fields.values()))


def _base(kind: str) -> str:
  """Returns a type without the bounds of arrays and strings."""
  return kind.partition("[")[0].partition("<")[0]


def _short(name: str) -> str:
  package, _, rest = name.partition("/")
  return f"{package}/{rest.rpartition('/')[2]}"


def _read_definitions(name: str, text: str) -> dict[str, dict[str, str]]:
  """Returns the fields of a message type and of nested types, without constants."""
  definitions: dict[str, dict[str, str]] = {}
  for part in re.split(r"^={3,}\s*$", text, flags=re.MULTILINE):
    fields: dict[str, str] = {}
    for line in part.splitlines():
      words = line.partition("#")[0].split()
      if words[:1] == ["MSG:"]:
        name = words[1]
      elif len(words) > 1 and "=" not in "".join(words[1:3]):
        kind, base = words[0], _base(words[0])
        is_local = base not in _NUMBERS and base not in _STRINGS and "/" not in base
        fields[words[1]] = f"{name.partition('/')[0]}/{kind}" if is_local else kind
    definitions[_short(name)] = fields
  return definitions


@dataclasses.dataclass(frozen=True)
class _Form:
  """Form of a value of a step.

  Attributes:
    dtype: dtype of numbers or pixels; object for text.
    shape: shape of the values.
    data_format: format of an encoded image, which comes as bytes.
  """

  dtype: np.dtype
  shape: tuple[int, ...]
  data_format: str | None = None

  @property
  def is_text(self) -> bool:
    return self.dtype == object

  def __str__(self) -> str:
    if self.is_text:
      return f"text{self.shape}"
    what = f"{self.data_format} images of " if self.data_format else ""
    return f"{what}{reading.describe(self.dtype, self.shape)}"

  def fields(self, path: str, has_clock: bool) -> Fields:
    """Returns the fields of the spec; `has_clock`: values are not one per step."""
    dtype = "string" if self.is_text else reading.dtype_name(self.dtype)
    shape: Any = (None, *self.shape) if has_clock else self.shape
    return reading.make_fields(
      path, dtype, shape, not has_clock, data_format=self.data_format
    )


@dataclasses.dataclass(frozen=True)
class _StepMessages:
  """The messages of a recording that are read.

  Attributes:
    numbers: number of the message of each step, int64 [T] by topic; of a topic that
      keeps all messages, all numbers.
    times: times of these messages in ns, int64 by topic.
    num_steps: T, the steps of the episode.
  """

  numbers: dict[str, np.ndarray]
  times: dict[str, np.ndarray]
  num_steps: int


@register_format("mcap", recognises=mcap_files.is_mcap, description="an MCAP file")
class McapEpisodes(Episodes):
  """Reads recordings by a contract, each as an episode."""

  def __init__(
    self,
    path: str,
    layout: str | None = None,
    clocks: str = STEPS,
    dropped: Dropped | None = None,
  ) -> None:
    """Reads the topics of each recording, and the first messages of the first one.

    Args:
      path: path of a file, or of a folder of files.
      layout: a JSON file with the contract; None raises an error that lists the topics.
      clocks: 'steps' resamples all topics to the steps; 'own' keeps every message of
        other topics than the clock, with its time, and checks no tolerance; see
        `Episodes.clocks`.
      dropped: paths to leave out; None for none.
    """
    if clocks not in (STEPS, OWN):
      raise errors.SpecError(
        f"open: {path}: clocks: expected '{STEPS}' or '{OWN}', got {clocks!r}."
      )
    self._has_own_clocks = clocks == OWN
    imports.load_extra("mcap.reader", "mcap")
    self.path = path
    dropped = dropped or Dropped()
    bags = mcap_files.find_bags(path)
    if not bags:
      want = f"{mcap_files.SUFFIX} files, or folders of rosbag2's"
      raise reading.fault(path, want, "none")
    if layout is None:
      raise _no_contract(bags[0])
    self._contract = Contract.read(layout)
    self._fields = {
      path: (value.partition(":")[0], value.partition(":")[2])
      for path, value in self._contract.paths.items()
      if not dropped.has(path)
    }
    clock = self._contract.clock
    self._topics = sorted({clock, *(topic for topic, _ in self._fields.values())})
    has_steps = [mcap_files.check_topics(bag, clock, self._topics) for bag in bags]
    self._bags = [bag for bag, has in zip(bags, has_steps, strict=True) if has]
    empty = [bag[0] for bag, has in zip(bags, has_steps, strict=True) if not has]
    self._messages: dict[tuple[str, bytes], _Message] = {}
    self._names: dict[str, list[str]] = {}
    self._forms: dict[str, _Form] = {}
    self._swapped: list[str] = []
    self._skipped: dict[str, int] = {}
    self._repeated: dict[str, int] = {}
    self._farthest = (0.0, "", "")
    self._cached: dict[int, _StepMessages] = {}
    names = {t: f"{spec_names.CLOCKS}/{t.strip('/')}" for t in self._topics}
    self._clocks = {t: name for t, name in names.items() if not dropped.has(name)}
    if self._bags:
      self._find_forms(*self._bags[0])
    time = _Form(np.dtype(np.int64), ())
    forms = {**self._forms, **dict.fromkeys(self._clocks.values(), time)}
    topics = {path: topic for path, (topic, _) in self._fields.items()}
    topics |= {path: topic for topic, path in self._clocks.items()}
    clocked = {path for path, topic in topics.items() if self._keeps_all(topic)}
    self._spec_fields = {
      path: form.fields(path, path in clocked) for path, form in sorted(forms.items())
    }
    lost = {topics[path] for path in clocked} - {*self._clocks}
    if lost:
      want = "the times of their messages, too"
      raise reading.fault(f"{path}: {errors.listing(lost)}", want, "them dropped")
    self.clocks = {path: self._clocks[topics[path]] for path in sorted(clocked)}
    self.metadata = {
      "mcap": {
        "layout": dataclasses.asdict(self._contract),
        "bags": [os.path.basename(os.path.normpath(name)) for name, _ in self._bags],
        "names": self._names,
      }
    }
    self._opening_notes = reading.left_out(empty)
    if self._swapped:
      self._opening_notes.insert(
        0,
        f"Red and blue of {errors.listing(self._swapped)} are swapped back, to PNG: "
        "'compressed rgb8' means that the encoder took red for blue.",
      )

  def fingerprint(self) -> dict[str, Any]:
    layout = dataclasses.asdict(self._contract)
    names = [name for _, parts in self._bags for name in parts]
    clocks = {"clocks": OWN} if self._has_own_clocks else {}
    return reading.file_fingerprint(names, layout=layout, **clocks)

  def _keeps_all(self, topic: str) -> bool:
    """Whether every message of a topic is a value, not one per step."""
    return self._has_own_clocks and topic != self._contract.clock

  @property
  def num_episodes(self) -> int:
    """The number of recordings that have steps."""
    return len(self._bags)

  @property
  def lengths(self) -> np.ndarray:  # type: ignore[override]
    """Steps of each recording; reads the times of all messages at the first call."""
    lengths = [self._chosen(number).num_steps for number in range(len(self._bags))]
    return np.asarray(lengths, np.int64)

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    chosen = self._chosen(episode)
    names = self._spec_fields if paths is None else paths
    steps = slice(*slice(start, stop).indices(chosen.num_steps))
    values = {
      path: chosen.times[topic][slice(None) if self._keeps_all(topic) else steps]
      for topic, path in self._clocks.items()
      if path in names
    }
    with reading.explain_errors(self._bags[episode][0], "messages"):
      gathered = [p for p in self._forms if p in names]
      return values | self._gather(episode, gathered, steps)

  def place(self, episode: int) -> str:
    return f"episode {episode}, {self._bags[episode][0]}"

  @property
  def notes(self) -> list[str]:  # type: ignore[override]
    """Notes on the layout, and on the recordings that were read so far."""
    notes, clock = [*self._opening_notes], self._contract.clock
    if self._skipped:
      notes.append(
        f"{sum(self._skipped.values())} messages of {clock} are not steps: not all "
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

  def _find_forms(self, name: str, parts: list[str]) -> None:
    """Finds the form of each path, by the first message of its topic."""
    mismatches = []
    for path, (topic, field) in self._fields.items():
      with reading.explain_errors(name, "messages"):
        _, _, message, first = next(self._iterate(parts, [topic]))
        try:
          value = _find(message, message.decode(first.data), field)
        except KeyError as error:
          fields = error.args[0]
          want = f"one of the fields {errors.listing(fields)} of {message.type}"
          near = errors.nearest(field.rpartition(".")[2], fields)
          mismatches.append(errors.Mismatch(path, want, f"'{field}' of {topic}", near))
          continue
        self._forms[path] = _make(f"{name}: {topic}: {path}", message, value)[0]
        if value.names:
          self._names[path] = value.names
        if _SWAPPED.search(str(getattr(value.value, "format", ""))):
          self._swapped.append(path)
    if mismatches:
      raise reading.faults(name, mismatches)

  def _iterate(
    self, parts: list[str], topics: Collection[str], with_data: bool = True
  ) -> Iterator[tuple[str, str, _Message, Any]]:
    """Yields file, topic, type and message in the order of the files."""
    for name in parts:
      for schema, channel, message in mcap_files.read_messages(name, topics, with_data):
        key = (schema.name, schema.data) if schema else ("", b"")
        if key not in self._messages:
          place = f"{name}: {channel.topic}"
          self._messages[key] = _Message(place, channel.message_encoding, schema)
        yield name, channel.topic, self._messages[key], message

  # The message of each step.

  def _chosen(self, episode: int) -> _StepMessages:
    """Finds the message of each step; cached, as it reads the times of all messages."""
    if episode not in self._cached:
      name, parts = self._bags[episode]
      with reading.explain_errors(name, "messages"):
        self._cached[episode] = self._choose_messages(name, parts)
    return self._cached[episode]

  def _choose_messages(self, name: str, parts: list[str]) -> _StepMessages:
    times: dict[str, list[tuple[int, int, int]]] = {topic: [] for topic in self._topics}
    is_header = self._contract.time == HEADER
    for part, topic, definition, message in self._iterate(
      parts, self._topics, is_header
    ):
      place = f"{part}: {topic}: message {len(times[topic])}"
      time = self._time(place, definition, message)
      times[topic].append((time, min(message.log_time, _MAX_TIME), parts.index(part)))
    # By topic: time, log time and number of the file of each message, in their order.
    table = {t: np.asarray(rows, np.int64).reshape(-1, 3) for t, rows in times.items()}
    clock = table[self._contract.clock]
    for topic, rows in table.items():
      self._check_times(parts, topic, rows)
    for topic, rows in table.items():
      self._check_same_clock(parts, topic, rows, clock)
    if repeated := int((np.diff(clock[:, 0]) == 0).sum()):
      self._repeated[name] = repeated
    chosen = {topic: self._choose(topic, rows, clock) for topic, rows in table.items()}
    is_complete = np.all([numbers >= 0 for numbers in chosen.values()], axis=0)
    if not is_complete.any():
      late = max(self._topics, key=lambda topic: (chosen[topic] < 0).sum())
      want = f"a message before the last one of {self._contract.clock}"
      raise reading.fault(f"{name}: {late}", want, "none")
    # After the first message of each topic all steps have one of it.
    first = int(np.argmax(is_complete))
    if first:
      self._skipped[name] = first
    chosen = {
      topic: np.arange(len(table[topic])) if self._keeps_all(topic) else numbers[first:]
      for topic, numbers in chosen.items()
    }
    chosen_times = {t: table[t][numbers, 0] for t, numbers in chosen.items()}
    for topic in [] if self._has_own_clocks else self._topics:
      self._check_distance(name, topic, chosen_times[topic] - clock[first:, 0])
    return _StepMessages(chosen, chosen_times, len(clock) - first)

  def _time(self, place: str, definition: _Message, message: Any) -> int:
    kind = self._contract.time
    if kind != HEADER:
      time = int(message.log_time if kind == LOG else message.publish_time)
      if time > _MAX_TIME:
        raise self._wrong_times(place, "below 2**63 ns", f"{time}")
      return time
    stamp = getattr(
      getattr(definition.decode(message.data), "header", None), "stamp", None
    )
    if stamp is None:
      want = f'messages with a header.stamp, as "time": "{HEADER}" needs them'
      raise reading.fault(f"{place}: {definition.type}", want, "none", f'Take "{LOG}".')
    return int(stamp.sec) * _SECOND + int(stamp.nanosec)

  def _wrong_times(self, place: str, want: str, got: str) -> errors.ConversionError:
    hint = (
      f'Take "time": "{HEADER}" or "{PUBLISH}"; or split the recording where the clock '
      "was reset; or sort it, `mcap sort`, if messages are only out of order."
    )
    if self._contract.time != LOG:
      hint = (
        f'Take "time": "{LOG}", when messages were recorded; or split the recording '
        "where the clock was reset."
      )
    return reading.fault(place, f"{self._contract.time} times {want}", got, hint)

  def _check_times(self, parts: list[str], topic: str, rows: np.ndarray) -> None:
    """Checks that the times of a topic's messages are set, and do not fall."""
    times = rows[:, 0]
    back = np.flatnonzero(np.diff(times) < 0) + 1
    if len(back):
      at = int(back[0])
      got = f"{times[at]} ns at message {at}, after {times[at - 1]} ns"
      place = f"{parts[rows[at, 2]]}: {topic}"
      raise self._wrong_times(place, "that do not fall", got)
    place, is_clock = f"{parts[0]}: {topic}", topic == self._contract.clock
    if len(times) > 1 and times[0] == times[-1] and (is_clock or not times[0]):
      got = f"{times[0]} ns in all of {len(times)} messages: they are not set"
      raise self._wrong_times(place, "that rise", got)
    if not is_clock or self._contract.time == LOG or not len(times) or times[0]:
      return
    num_unset = int(np.searchsorted(times, 0, "right"))
    # The times of a simulation begin at 0, too, but then rise as those of the log do.
    is_followed = num_unset < len(times) and (
      times[num_unset] > rows[num_unset, 1] - rows[num_unset - 1, 1] + _LATE
    )
    if is_followed or len(times) == 1:
      followed = f", before {times[num_unset]} ns" if is_followed else ""
      got = f"0 ns at message {num_unset - 1}{followed}"
      raise self._wrong_times(place, "that are set", got)

  def _check_same_clock(
    self, parts: list[str], topic: str, rows: np.ndarray, clock: np.ndarray
  ) -> None:
    """Checks that the steps and the messages of a topic were stamped by the same clock.

    A message that was recorded between two steps has a time between theirs, or at most
    `_LATE` away. Otherwise a clock jumped, or the clocks start at different moments.
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
    if not (away > _LATE).any():
      return
    name, at = self._contract.clock, int(np.argmax(away > _LATE))
    if len(jumps := _jumps(clock)) and not len(_jumps(rows)):
      at = int(jumps[0])
      got = f"{clock[at, 0]} ns at message {at}, after {clock[at - 1, 0]} ns"
      place = f"{parts[clock[at, 2]]}: {name}"
      raise self._wrong_times(place, "that rise as those of the log do", got)
    got = (
      f"{times[at]} ns at message {at}, {away[at] / _SECOND:.3f} s from those recorded "
      "with it"
    )
    place = f"{parts[rows[at, 2]]}: {topic}"
    raise self._wrong_times(place, f"of the clock of {name}", got)

  def _choose(self, topic: str, rows: np.ndarray, clock: np.ndarray) -> np.ndarray:
    """Returns the number of the message of each step, or -1 before the first one."""
    times, ticks = rows[:, 0], clock[:, 0]
    if topic == self._contract.clock:
      return np.arange(len(ticks))
    if not len(times):
      return np.full(len(ticks), -1)
    chosen = np.searchsorted(times, ticks, "right") - 1
    # If steps have equal times, the order of the log decides which message each has.
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
    """Checks that messages are as near to their steps as the contract requires."""
    step = int(np.argmax(np.abs(distance)))
    seconds = abs(int(distance[step])) / _SECOND
    bound = self._contract.tolerance.get(topic, np.inf)
    if seconds > bound:
      got = f"the chosen one {int(distance[step]) / _SECOND:.3f} s from it"
      want = f"a message within {bound} s of step {step}"
      raise reading.fault(f"{name}: {topic}", want, got)
    self._farthest = max(self._farthest, (seconds, topic, f"step {step} of {name}"))

  # Values.

  def _gather(self, episode: int, paths: Sequence[str], steps: slice) -> Values:
    """Decodes each message once, and copies its value to all steps that have it."""
    name, parts = self._bags[episode]
    chosen = {
      topic: numbers if self._keeps_all(topic) else numbers[steps]
      for topic, numbers in self._chosen(episode).numbers.items()
    }
    values: Values = {}
    topics: dict[str, list[str]] = {}
    for path in paths:
      form, num_values = self._forms[path], len(chosen[self._fields[path][0]])
      shape, dtype = (num_values, *form.shape), form.dtype
      if form.data_format:
        shape, dtype = shape[:1], np.dtype(object)
      values[path] = np.empty(shape, dtype)
      topics.setdefault(self._fields[path][0], []).append(path)
    spans = {topic: _spans(chosen[topic]) for topic in topics}
    count = dict.fromkeys(topics, 0)
    for _, topic, message, content in self._iterate(parts, topics):
      span, data = spans[topic].get(count[topic]), content.data
      count[topic] += 1
      if span is None:
        continue
      place = f"{name}: {topic}: message {span[0]}"
      if not self._keeps_all(topic):
        place = f"{name}: {topic}: step {steps.start + span[0]}"
      try:
        decoded = message.decode(data)
      except Exception as error:
        got = f"{len(data)} bytes that cannot be decoded: {error}"
        raise reading.fault(place, f"a {message.type}", got) from error
      for path in topics[topic]:
        value = self._value(f"{place}: {path}", path, message, decoded)
        for step in range(*span):
          values[path][step] = value
    return values

  def _value(self, place: str, path: str, message: _Message, decoded: Any) -> Any:
    """Returns the value of a path; checks that it has the form of the first one."""
    field = _find(message, decoded, self._fields[path][1])
    form, value = _make(place, message, field)
    if form != self._forms[path]:
      want = f"{self._forms[path]}, as the first message has"
      raise reading.fault(place, want, form, reading.leave_out(path))
    if field.names and field.names != self._names.get(path):
      want = f"the values of {self._names.get(path)}, as the first message has them"
      got = f"{field.names}: another order, or others"
      raise reading.fault(place, want, got)
    return value


@dataclasses.dataclass(frozen=True)
class _Found:
  """A field of a message: its value and type, and the names of its values, if any."""

  value: Any
  type: str
  names: list[str] = dataclasses.field(default_factory=list)


def _find(message: _Message, decoded: Any, field: str) -> _Found:
  """Finds a field of a message, or itself for ''; KeyError lists the valid names."""
  kind, value, names = message.type, decoded, []
  for part in filter(None, field.split(".")):
    fields = message.of(kind)
    if part not in fields:
      raise KeyError(list(fields))
    listed = value.name if fields.get("name") == "string[]" else ()
    kind, value = fields[part], getattr(value, part)
    is_named = isinstance(value, list) and len(value) == len(listed)
    names = list(listed) if is_named and part != "name" else []
  return _Found(value, kind, names)


def _make(place: str, message: _Message, field: _Found) -> tuple[_Form, Any]:
  """Returns form and value of a field: numbers, pixels, encoded images or text."""
  fields = message.of(field.type)
  if set(fields) >= _RAW:
    pixels = _pixels(place, field.value)
    return _Form(pixels.dtype, pixels.shape), pixels
  if set(fields) >= _COMPRESSED:
    return _encoded_bytes(place, field.value)
  if _base(field.type) in _STRINGS:
    is_array = "[" in field.type
    items = field.value if is_array else [field.value]
    text = reading.objects(item.encode() for item in items)
    return _Form(text.dtype, text.shape if is_array else ()), (
      text if is_array else text[0]
    )
  try:
    dtype = message.dtype(field.type)
  except (KeyError, ValueError) as error:  # A ValueError if there are no fields.
    hint = reading.leave_out(place.rpartition(": ")[2])
    if fields:
      hint = f"Name a field of it, /topic:field: one of {errors.listing(fields)}."
    want = "numbers, text or an image"
    raise reading.fault(place, want, field.type, hint) from error
  array = np.asarray(_numbers(message, field.value, field.type), dtype)
  return _Form(dtype, array.shape), array


def _numbers(message: _Message, value: Any, kind: str) -> Any:
  """Returns the numbers of a field; for a message a vector of all its numbers."""
  base, is_array = kind.partition("[")[0], "[" in kind
  if base in _NUMBERS:
    # numpy would take bytes for text.
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
  if is_array:
    return [_numbers(message, item, base) for item in value]
  parts = [
    np.ravel(_numbers(message, getattr(value, name), field))
    for name, field in message.of(base).items()
  ]
  return np.concatenate(parts)


def _pixels(place: str, image: Any) -> np.ndarray:
  """Returns the pixels [H, W, C] of a raw image in the order red, green, blue."""
  if image.encoding not in _PIXELS:
    want = f"an encoding of {errors.listing(_PIXELS)}"
    raise reading.fault(place, want, f"'{image.encoding}'")
  dtype, channels = _PIXELS[image.encoding]
  kind = np.dtype(dtype).newbyteorder(">" if image.is_bigendian else "<")
  row = image.width * len(channels) * kind.itemsize
  data = np.frombuffer(image.data, np.uint8)
  if image.step < row or data.size != image.height * image.step:
    want = (
      f"{image.height} rows of at least {row} bytes, as {image.width} pixels of "
      f"{image.encoding} have"
    )
    raise reading.fault(place, want, f"{data.size} bytes in rows of {image.step}")
  rows = np.ascontiguousarray(data.reshape(image.height, image.step)[:, :row])
  pixels = rows.view(kind).reshape(image.height, image.width, len(channels))
  return pixels[..., list(channels)].astype(dtype)


def _encoded_bytes(place: str, image: Any) -> tuple[_Form, bytes]:
  """Returns form and bytes of a JPEG or PNG; corrects swapped channels, as PNG."""
  data = bytes(image.data)
  if _DEPTH in image.format:
    data = data[_DEPTH_BYTES:]
  header = read_image_header(data)
  is_depth = _DEPTH not in image.format or image.format.startswith("16UC1")
  if header is None or header.format not in ("jpeg", "png") or not is_depth:
    want = "a JPEG, a PNG, or depth of 16UC1 as PNG"
    raise reading.fault(place, want, f"'{image.format}' with {data[:8]!r}")
  if image.format.startswith("bayer") and header.channels == 1:
    got = f"'{image.format}', a mosaic of single colours"
    hint = "Record the topic of an image that is debayered."
    raise reading.fault(place, "an image in colour", got, hint)
  dtype = np.dtype(np.uint16 if header.bits > 8 else np.uint8)
  data_format = header.format
  if _SWAPPED.search(image.format) and header.channels > 2:
    pixels = tf.io.decode_image(data, dtype=tf.as_dtype(dtype)).numpy()
    data_format = "png"
    data = specs.packing.encode_image(
      pixels[..., [2, 1, 0, 3][: header.channels]], data_format
    )
  shape = (header.height, header.width, header.channels)
  return _Form(dtype, shape, data_format), data


def _spans(numbers: np.ndarray) -> dict[int, tuple[int, int]]:
  """Returns first and last + 1 of the steps that have a message, by its number."""
  starts = np.flatnonzero(np.diff(numbers, prepend=-1))
  stops = np.append(starts[1:], len(numbers))
  steps = zip(starts.tolist(), stops.tolist(), strict=True)
  return dict(zip(numbers[starts].tolist(), steps, strict=True))


def _jumps(rows: np.ndarray) -> np.ndarray:
  """Returns numbers of messages whose time jumped, compared with the log time.

  Args:
    rows: time and log time of each message, int64 [n, 2 or more].
  """
  steps = np.diff(rows[:, :2], axis=0)
  return np.flatnonzero(np.abs(steps[:, 0] - steps[:, 1]) > _LATE) + 1


def _no_contract(bag: Bag) -> errors.ConversionError:
  """Builds the error that shows the topics of a recording."""
  topics = mcap_files.list_topics(bag).items()
  lines = sorted(f"  {t}  {kind}  {count} messages" for t, (kind, count) in topics)
  hint = (
    'Say it with --layout layout.json, such as {"clock": "/arm", "paths": {"position": '
    '"/arm:position", "image": "/camera"}}.'
  )
  want = "a layout that says which topics are which paths"
  return reading.fault(bag[0], want, "none for\n" + "\n".join(lines) + "\n", hint)
