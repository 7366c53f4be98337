"""Lists the topics of MCAP files, and reads messages in the order of the file.

The `mcap` package sorts messages by the recorder's time, which hides a clock that was
set back, and decompresses whole chunks. This module decompresses a chunk piece by
piece, and skips messages of other topics, which take no memory then.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zlib
from collections.abc import Collection, Iterator
from typing import Any

from t2r_seq import errors, imports
from t2r_seq.episodes import reading

SUFFIX = ".mcap"
SIGNATURE = b"\x89MCAP"
_MAGIC = SIGNATURE + b"0\r\n"
_ROSBAG = "metadata.yaml"
# Headers: of a record kind and size; of a message channel, sequence number, log time
# and publish time.
_RECORD, _MESSAGE = struct.Struct("<BQ"), struct.Struct("<HIQQ")
_PIECE_BYTES = 1 << 20

Bag = tuple[str, list[str]]
"""Name and files of a recording."""


def is_mcap(path: str) -> bool:
  """Whether a path is an MCAP file, or a folder of recordings."""
  if os.path.isdir(path):
    return bool(find_bags(path))
  with open(path, "rb") as file:
    has_signature = file.read(len(SIGNATURE)) == SIGNATURE
  return has_signature or path.lower().endswith(SUFFIX)


def find_bags(path: str) -> list[Bag]:
  """Lists the recordings: a file, a rosbag2 folder, or those in a folder of either."""
  if not os.path.isdir(path):
    return [(path, [path])]
  names = sorted(os.listdir(path), key=reading.natural_order)
  bag_files = [os.path.join(path, n) for n in names if n.lower().endswith(SUFFIX)]
  if bag_files and _ROSBAG in names:
    return [(path, bag_files)]
  bags = [(name, [name]) for name in bag_files]
  for name in (os.path.join(path, n) for n in names):
    if os.path.isfile(os.path.join(name, _ROSBAG)):
      bags += [bag for bag in find_bags(name) if bag[0] == name]
  return bags


def list_topics(bag: Bag) -> dict[str, tuple[str, int]]:
  """Returns type and number of messages of a recording by topic."""
  topics: dict[str, tuple[str, int]] = {}
  for name in bag[1]:
    with reading.explain_errors(name, "an MCAP file"):
      for topic, schema, count in _count_messages(name):
        kind, before = topics.get(topic, (schema.name if schema else "?", 0))
        topics[topic] = (kind, before + count)
  return topics


def _count_messages(name: str) -> Iterator[tuple[str, Any, int]]:
  with _open(name) as (_, summary):
    statistics = summary and summary.statistics
    if statistics is not None:
      counts = statistics.channel_message_counts
      for number, channel in summary.channels.items():
        schema = summary.schemas.get(channel.schema_id)
        yield channel.topic, schema, counts.get(number, 0)
      return
  for schema, channel, _ in read_messages(name, with_data=False):
    yield channel.topic, schema, 1


def check_topics(bag: Bag, clock: str, topics: Collection[str]) -> bool:
  """Checks that a recording has all topics; False if that of the clock is empty."""
  counts = {topic: count for topic, (_, count) in list_topics(bag).items()}
  if counts.get(clock) == 0:
    return False
  have = [topic for topic, count in counts.items() if count]
  mismatches = [
    errors.Mismatch(topic, "messages of it", "none", errors.nearest(topic, have))
    for topic in topics
    if topic not in have
  ]
  if mismatches:
    raise reading.faults(bag[0], mismatches)
  return True


@contextlib.contextmanager
def _open(name: str) -> Iterator[tuple[Any, Any]]:
  """Opens a file, and checks its end; yields it with its summary, which may be None."""
  with open(name, "rb") as file:
    start = file.read(len(_MAGIC))
    if start != _MAGIC:
      version = start.removeprefix(SIGNATURE)
      got = f"version {version[:1]!r}" if version != start else f"{start!r}"
      raise reading.fault(name, "an MCAP file of version 0", got)
    file.seek(max(os.path.getsize(name) - len(_MAGIC), len(_MAGIC)))
    if file.read() != _MAGIC:
      got = (
        "one without an end: the recording was not finished, or the file was cut. "
        "`mcap recover` saves what is whole"
      )
      raise reading.fault(name, "a whole MCAP file", got)
    file.seek(0)
    reader = imports.load_extra("mcap.reader", "mcap").make_reader(file)
    yield file, reader.get_summary()


def read_messages(
  name: str, topics: Collection[str] | None = None, with_data: bool = True
) -> Iterator[tuple[Any, Any, Any]]:
  """Yields schema, channel and message in the order of the file.

  Args:
    name: name of the file.
    topics: topics to read; None for all.
    with_data: reads the content of messages; otherwise `data` of those in chunks is
      empty.
  Raises:
    ConversionError: the file is not a complete MCAP file.
    ValueError: a chunk is damaged. Other damage raises errors of the mcap package.
  """
  from mcap import records

  with _open(name) as (file, summary):
    schemas = dict(summary.schemas) if summary else {}
    channels = dict(summary.channels) if summary else {}

    def is_read(number: int) -> bool:
      return topics is None or channels[number].topic in topics

    for record in _records(file, summary, is_read):
      contents: Any = (record,)
      if isinstance(record, records.Chunk):
        contents = _chunk_records(record, is_read, with_data)
      for item in contents:
        if isinstance(item, records.Schema):
          schemas[item.id] = item
        elif isinstance(item, records.Channel):
          channels[item.id] = item
        elif isinstance(item, records.Message) and is_read(item.channel_id):
          channel = channels[item.channel_id]
          yield schemas.get(channel.schema_id), channel, item


def _records(file: Any, summary: Any, is_read: Any) -> Iterator[Any]:
  """Yields chunks that may have messages to read; without an index all records."""
  from mcap import data_stream, records, stream_reader

  if summary is None or not summary.chunk_indexes:
    file.seek(0)
    yield from stream_reader.StreamReader(file, emit_chunks=True).records
    return
  for index in sorted(summary.chunk_indexes, key=lambda i: i.chunk_start_offset):
    # A chunk without message indexes may have any channel.
    numbers = index.message_index_offsets
    if not numbers or any(map(is_read, numbers)):
      file.seek(index.chunk_start_offset + _RECORD.size)
      yield records.Chunk.read(data_stream.ReadDataStream(file))


def _chunk_records(chunk: Any, is_read: Any, with_data: bool) -> Iterator[Any]:
  """Yields the schemas, channels, and requested messages of a chunk."""
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
  """Decompresses a chunk as far as needed; never allocates its declared size.

  Attributes:
    left: bytes that are not yet read.
  """

  def __init__(self, chunk: Any) -> None:
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
    self._crc32 = chunk.uncompressed_crc  # 0 if the writer stored none.
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
    return b"".join(self._pieces(size))

  def skip(self, size: int) -> None:
    for _ in self._pieces(size):
      pass

  def check(self) -> None:
    """Raises ValueError if the chunk does not end here, or its checksum differs."""
    if self._file.read(1):
      raise ValueError("a chunk that is longer than its header states")
    if self._crc32 and self._crc32 != self._computed:
      raise ValueError("a chunk that does not fit its checksum")
