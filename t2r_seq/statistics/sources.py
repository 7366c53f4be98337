"""The contract of sources: what can be read once, part by part, always the same way."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from t2r_seq import specs

# Parts are read whole, one for each worker and a few in waiting.
PART_BYTES = 16 << 20

Values = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Part:
  """Some episodes or records, one after the other; where they end is always the same.

  Attributes:
    content: what the source needs to read it.
    end: JSON values; `Source.parts` goes on from there.
  """

  content: Any
  end: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Item:
  """An episode, or a block of plain records.

  Attributes:
    values: by path, as the specs say: [T, ...] and context features of an episode,
      [B, ...] of a block. Absent optionals are left out.
    skipped: rows by path that were not read, because they are bytes.
    num_steps: T; None for a block.
  """

  values: Values
  skipped: dict[str, int]
  num_steps: int | None


class Source(abc.ABC):
  """Episodes or records, of specs that are known before the first is read.

  Attributes:
    kind: 'records' or 'store'.
    spec: flat specs by path.
    is_blocks: items are blocks of plain records, not episodes.
    fingerprint: tells whether the source has changed; texts by name of a file.
  """

  kind: str
  spec: specs.TensorSpecStruct
  is_blocks: bool
  fingerprint: dict[str, str]

  @abc.abstractmethod
  def parts(self, cursor: dict[str, int]) -> Iterator[Part]:
    """Yields the parts, in order, from where one of them ended.

    Args:
      cursor: `Part.end` of the last part that is done; empty for all.
    """

  @abc.abstractmethod
  def read(self, part: Part) -> Iterator[Item]:
    """Yields the items of a part; called by several threads at a time."""
