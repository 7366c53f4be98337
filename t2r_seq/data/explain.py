"""Describes an input pipeline: stages, shapes, bytes and time, and what to change."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.data import joint
from t2r_seq.specs import names

# The first batches fill pools and start threads.
_WARMUP = 3
_READ, _PREPROCESS = "read and cut", "preprocess"


@dataclasses.dataclass(frozen=True)
class StageTime:
  """Cost of a pipeline from its start to the end of a stage.

  Attributes:
    name: name of the stage.
    seconds: wall time per batch.
    cpu_seconds: processor time of all threads per batch.
  """

  name: str
  seconds: float
  cpu_seconds: float


@dataclasses.dataclass(frozen=True)
class InputExplanation:
  """A description of an input pipeline; printed, it is a table.

  Attributes:
    source: the generator in words.
    cut: how episodes become windows, in words.
    sources: for mixtures, a line per source: its share of a batch, and its contents.
    inputs: by path, the stored and the delivered tensor, as text.
    batch_bytes: bytes of one batch, as the model gets it.
    held_bytes: growth of the process's memory during the measurement; None if the
      system does not report it.
    stages: times of the stages, in order.
    advice: the most expensive stage, and what to change; '' if no time was measured.
  """

  source: str
  cut: str
  sources: tuple[str, ...]
  inputs: Mapping[str, str]
  batch_bytes: int
  held_bytes: int | None
  stages: tuple[StageTime, ...]
  advice: str

  def __str__(self) -> str:
    width = max(map(len, self.inputs), default=0)
    lines = [self.source, self.cut, *self.sources, ""]
    lines += [f"  {path:{width}}  {text}" for path, text in self.inputs.items()]
    lines += ["", "stage            ms/batch    CPU ms/batch"]
    before = 0.0
    for stage in self.stages:
      cpu = max(stage.cpu_seconds - before, 0.0)
      before = stage.cpu_seconds
      lines.append(f"{stage.name:14} {1e3 * stage.seconds:10.2f}  {1e3 * cpu:14.2f}")
    note = "" if self.held_bytes is None else f"; memory grew by {_mb(self.held_bytes)}"
    return "\n".join(
      [*lines, f"a batch has {_mb(self.batch_bytes)}{note}", self.advice]
    )


def explain_pipeline(
  generator: Any,
  stored: specs.TensorSpecStruct,
  batches: tf.data.Dataset | None,
  dataset: tf.data.Dataset,
  num_batches: int,
) -> InputExplanation:
  """Times a pipeline, also without its preprocessor, and describes it.

  Args:
    generator: the `AbstractInputGenerator` whose pipeline it is.
    stored: specs of the stored features, below 'features/' and 'labels/'.
    batches: dataset of batches before preprocessing; None without a preprocessor.
    dataset: dataset of (features, labels).
    num_batches: maximum number of timed batches; at least 1.
  Raises:
    SpecError: `num_batches` is below 1, or the dataset is empty.
  """
  errors.check_count("explain", "num_batches", num_batches)
  memory = _memory()
  stages = []
  if batches is not None:
    stages.append(_measure(_READ, batches, num_batches)[0])
  last = _READ if batches is None else _PREPROCESS
  timed, batch = _measure(last, dataset, num_batches)
  stages.append(timed)
  now = _memory()
  return InputExplanation(
    source=generator.describe(),
    cut=_describe_cut(generator),
    sources=tuple(generator.describe_sources()),
    inputs=_describe_inputs(stored, batch),
    batch_bytes=sum(value.nbytes for value in tf.nest.flatten(batch)),
    held_bytes=None if now is None or memory is None else max(now - memory, 0),
    stages=tuple(stages),
    advice=_advise(stages, stored),
  )


def _measure(
  name: str, dataset: tf.data.Dataset, num_batches: int
) -> tuple[StageTime, Any]:
  """Returns the times per batch, and the first batch as arrays."""
  batches = iter(dataset.as_numpy_iterator())
  first = [*itertools.islice(batches, _WARMUP)]
  if not first:
    raise errors.SpecError(
      "explain: expected a batch, got an empty dataset. Are episodes shorter than a "
      "window, or than batch_size with drop_remainder?"
    )
  wall, cpu = time.perf_counter(), time.process_time()
  count = max(sum(1 for _ in itertools.islice(batches, num_batches)), 1)
  wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
  return StageTime(name, wall / count, cpu / count), first[0]


def _describe_cut(generator: Any) -> str:
  cut = generator.cut
  parts = [f"padding {generator.padding}"]
  if cut.sequence_length is not None:
    parts.append(f"sequences of {cut.sequence_length}")
    parts.append(f"stride {cut.stride}, shift {cut.shift}")
  if cut.n_step is not None:
    parts.append(f"{cut.n_step.n}-step transitions, gamma {cut.n_step.gamma:g}")
  return "windows: " + ", ".join(parts)


def _describe_inputs(stored: specs.TensorSpecStruct, batch: Any) -> dict[str, str]:
  """Returns a line for each path: the feature, its time offsets, the result."""
  values = specs.flatten_spec_structure(joint.join(*batch))
  lines = {}
  for path in dict.fromkeys([*stored, *values]):
    text = "made by the pipeline"
    if path in stored:
      spec = stored[path]
      encoding = (
        f" {spec.data_format}" if names.is_image_format(spec.data_format) else ""
      )
      # A mask has no name: it is computed, not read.
      text = f"'{spec.name}'{encoding}" if spec.name else "mask"
      if spec.time_offsets is not None:
        text += f" at {spec.time_offsets}"
    value = values.get(path)
    out = "not delivered" if value is None else f"{value.dtype} {list(value.shape)}"
    lines[path] = f"{text} -> {out}"
  return lines


def _advise(stages: list[StageTime], stored: specs.TensorSpecStruct) -> str:
  """Returns the most expensive stage, and how to lower its cost."""
  read, whole = stages[0].cpu_seconds, stages[-1].cpu_seconds
  if whole <= 0:
    return ""
  share = max(whole - read, 0.0) / whole
  if share > 0.5:
    return (
      f"Most of it, {share:.0%}, is the preprocessor: resize images when data is "
      "converted, or run it in the train step, by StoreInputGenerator.stack_on_device."
    )
  images = [p for p, spec in stored.items() if names.is_image_format(spec.data_format)]
  if images:
    return (
      f"Most of it, {1 - share:.0%}, is reading and decoding {', '.join(images)}: "
      "store smaller images, or raw ones (t2r_seq convert); order='quasi_random' "
      "decodes each frame once a pool."
    )
  return (
    f"Most of it, {1 - share:.0%}, is reading. If training waits for input: convert to "
    "a store, and bring many batches by one call (RunConfig.steps_per_loop)."
  )


def _memory() -> int | None:
  """Returns the bytes of the process's private memory; None without /proc."""
  try:
    with open("/proc/self/status", encoding="ascii") as file:
      for line in file:
        if line.startswith("RssAnon:"):
          return int(line.split()[1]) * 1024
  except OSError:
    pass
  return None


def _mb(size: int) -> str:
  return f"{size / 1e6:,.1f} MB"
