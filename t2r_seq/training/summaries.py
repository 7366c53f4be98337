"""Event files of a run, for TensorBoard."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from t2r_seq.models import summaries
from t2r_seq.specs import TensorSpecStruct


class SummaryWriter:
  """Writes the event file of one folder.

  Within `recording`, models write to it, too; see `t2r_seq.models.summaries`.
  """

  def __init__(self, logdir: str) -> None:
    """Creates the writer and its event file."""
    self._writer = tf.summary.create_file_writer(logdir)

  def scalars(self, scalars: Mapping[str, Any], step: int) -> None:
    """Writes scalars by name."""
    with self._writer.as_default(step=step):
      for name, value in scalars.items():
        summaries.scalar(name, value)
    self._writer.flush()

  def text(self, name: str, text: str, step: int) -> None:
    """Writes text that is shown as code."""
    indented = "\n".join(f"    {line}" for line in text.splitlines())
    with self._writer.as_default(step=step):
      summaries.text(name, indented)
    self._writer.flush()

  def markdown(self, name: str, text: str, step: int) -> None:
    """Writes text in Markdown."""
    with self._writer.as_default(step=step):
      summaries.text(name, text)
    self._writer.flush()

  def images(
    self, images: Mapping[str, Any], step: int, labels: Mapping[str, str] | None = None
  ) -> None:
    """Writes the first images of batches by name; `labels` are their descriptions."""
    with self._writer.as_default(step=step):
      for name, tensor in images.items():
        summaries.image(name, tensor, (labels or {}).get(name, ""))
    self._writer.flush()

  def seen(
    self,
    features: TensorSpecStruct,
    labels: TensorSpecStruct | None,
    step: int,
    offsets: Mapping[str, Sequence[float]],
  ) -> None:
    """Writes the first samples of a batch as the model sees them.

    Images are at 'seen/<path>', one per sample. The table 'seen/samples' has the other
    features and the labels of the same samples.

    Args:
      features: features of the model, [B, ...].
      labels: labels of the model, [B, ...], or None.
      step: step of the batch.
      offsets: steps, or seconds, of the frames of a stack, by path.
    """
    images, texts = {}, {}
    for path, tensor in features.items():
      if summaries.image_strip(tensor) is not None:
        images[f"seen/{path}"] = tensor
        names = ", ".join(_step_name(k) for k in offsets.get(path, ()))
        texts[f"seen/{path}"] = (
          f"{path}: {tensor.dtype.name} {tuple(tensor.shape[1:])}, one picture a sample"
          + (f"; frames from left to right: {names}" if names else "")
        )
    self.images(images, step, texts)
    rest = {p: t for p, t in features.items() if f"seen/{p}" not in images}
    label_rows = {f"label {path}": t for path, t in (labels or {}).items()}
    table = summaries.samples_table({**rest, **label_rows})
    if table:
      self.markdown("seen/samples", table, step)

  @contextlib.contextmanager
  def recording(self, step: tf.Tensor, is_due: tf.Tensor) -> Iterator[None]:
    """Makes `tf.summary` calls inside write to this file at `step`, if `is_due`."""
    with self._writer.as_default(step=step), tf.summary.record_if(is_due):
      yield

  def close(self) -> None:
    """Writes pending summaries and closes the file."""
    self._writer.close()


def _step_name(offset: float) -> str:
  if isinstance(offset, float):
    return f"t{offset:+g} s"
  return f"t{offset:+d}" if offset else "t"
