"""Replays episodes through a policy, and compares all that it sees with training.

>>> import numpy as np
>>> from t2r_seq import policies, specs, store, testing, training, verification
>>> x = specs.ExtendedTensorSpec((3,), "float32", is_sequence=True)
>>> with store.EpisodeStore.create("demo", {"x": x}) as writer:
...   _ = writer.append_episode({"x": np.eye(3, dtype=np.float32)})
>>> model = testing.MockT2RModel()
>>> model.build()
>>> _ = training.export_saved_model(model, "exports", global_step=0)
>>> predictor = policies.ExportedSavedModelPredictor("exports")
>>> predictor.restore()
True
>>> report = verification.verify(predictor, "demo", model)
>>> report.is_identical, report.num_steps
(True, 3)
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from t2r_seq import errors, records, specs, statistics, windows
from t2r_seq.episodes import Episodes
from t2r_seq.lite import policy_io
from t2r_seq.lite.overlap import SimulatedLatency
from t2r_seq.policies.lite_export import TOLERANCE
from t2r_seq.policies.policy_model import PolicyRecord
from t2r_seq.preprocessors.convert_conventions import stages_of
from t2r_seq.preprocessors.normalize import Normalize
from t2r_seq.specs.names import source_paths
from t2r_seq.verification import fit
from t2r_seq.verification.commands import (
  OUTPUT,
  Act,
  declared_differences,
  find_command_differences,
)
from t2r_seq.verification.comparison import (
  Comparison,
  Difference,
  Observe,
  bullet,
  seen_specs,
)
from t2r_seq.verification.subjects import Overlapped, Subject, subject_of
from t2r_seq.verification.training_side import Dataset
from t2r_seq.windows.cut import DEFAULT_PADDING, Padding


@dataclasses.dataclass(frozen=True)
class VerificationReport:
  """Whether a policy sees what training saw.

  Attributes:
    policy: path of the export.
    dataset: path of the dataset.
    num_episodes: number of replayed episodes.
    num_steps: number of steps of these episodes.
    compared: sentences on what was compared.
    differences: the first of each path, at the first stage that differs; empty if all
      is identical.
    warnings: sentences on how the dataset does not fit the export, and on other risks.
    not_compared: sentences on what was not compared, and why.
    not_exported: sentences on stages of training's input that are neither in the
      export nor compared. With any of them nothing is proven.
  """

  policy: str
  dataset: str
  num_episodes: int
  num_steps: int
  compared: tuple[str, ...]
  differences: tuple[Difference, ...]
  warnings: tuple[str, ...]
  not_compared: tuple[str, ...] = ()
  not_exported: tuple[str, ...] = ()

  @property
  def is_identical(self) -> bool:
    """Whether nothing that was compared differs, and the export has all stages."""
    return not self.differences and not self.not_exported

  def to_json(self) -> dict[str, Any]:
    """Returns the report for JSON."""
    return {**dataclasses.asdict(self), "identical": self.is_identical}

  def __str__(self) -> str:
    """Returns the report as text."""
    episodes = "episode" if self.num_episodes == 1 else "episodes"
    count = f"{self.num_episodes:,} {episodes}, {self.num_steps:,} steps"
    lines = [self.policy, f"replayed {self.dataset}"]
    for title, sentences in (
      ("compared", self.compared),
      ("not compared", self.not_compared),
      ("not in the export", self.not_exported),
      ("warning", self.warnings),
    ):
      lines += [bullet(f"{title}: {each}") for each in sentences]
    if self.differences and self.differences[0].stage == "declaration":
      lines.append("the data declares other conventions than the policy:")
      lines += map(str, self.differences)
    elif self.differences:
      first = self.differences[0]
      where = f"in step {first.step} of episode {first.episode}"
      lines += [f"{count}: {first.path} differs first, {where}:"]
      lines += map(str, self.differences)
    elif self.not_exported:
      lines.append(f"{count}, not proven: the export lacks stages of training's input.")
    else:
      limits = ", as far as was compared" if self.not_compared else ""
      lines.append(f"{count}, identical{limits}.")
    return "\n".join(lines)


def verify(
  predictor: Any,
  dataset: str | os.PathLike[str] | Episodes,
  model: Any = None,
  *,
  reference: Any = None,
  statistics_path: str | None = None,
  observe: Observe | None = None,
  act: Act | None = None,
  num_episodes: int | None = None,
  tolerance: float = TOLERANCE,
  source: str | None = None,
  latency: SimulatedLatency | None = None,
  **options: Any,
) -> VerificationReport:
  """Proves that a policy sees what training saw, or finds the first difference.

  Replays episodes through the policy's `step`, until an episode differs. At each step
  its windows and masks are compared with training's, bit for bit; and its network's
  inputs, within a few units in the last place. The export's `inspect` returns them; it
  calls the same function of the graph as `step`. A lite folder does not return its
  network's inputs: with a `reference` its outputs are compared in their place.

  Args:
    predictor: an `ExportedSavedModelPredictor` or `CheckpointPredictor` with a loaded
      model, a `lite.LitePolicy` or a `serving.PolicyClient`.
    dataset: a path, or episodes that `open_episodes` returns.
    model: the trained model, for its preprocessor and its specs; None does not compare
      the network's inputs.
    reference: predicts the expected outputs: a `CheckpointPredictor` of the run, or a
      predictor of the export. None takes the export's own `predict`; for a lite folder
      or a server it compares no outputs.
    statistics_path: statistics of the training data, as `t2r_seq stats` writes them;
      None uses those of the model's `Normalize`, if it has one.
    observe: the robot code that changes an observation before the policy gets it;
      called with arrays by path, and whether an episode starts.
    act: the robot code that makes commands of outputs; see `find_command_differences`.
    num_episodes: number of episodes from the first; None for all.
    tolerance: tolerance of outputs, as a share of each element's range in an episode.
    source: the source of the mixture that the dataset is like; None if all are alike.
    latency: simulated latency of the network; None for none. Not for a server.
    **options: options of `open_episodes`; training's `clock`; `replay`, a `Replay`.
  Returns:
    The report.
  Raises:
    SpecError: the dataset cannot be read or lacks an input of the policy; the source is
      unknown; the statistics are damaged; or the policy does not support an option.
    policies.predictors.NoModelError, OSError: no model, or no file of statistics.
  """
  subject = subject_of(predictor) if latency is None else Overlapped(predictor, latency)
  record = subject.record
  padding: Padding = DEFAULT_PADDING if record is None else record.padding
  preprocessor = None if model is None else model.step_preprocessor
  padding = padding if model is None else model.padding
  stages = [] if record is None else record.stages_of(source)
  decodings = filter(None, map(records.ImageDecoding.from_stage, stages or []))
  data = Dataset(
    dataset,
    seen_specs(subject.feature_spec, subject.step_spec),
    padding,
    preprocessor,
    None if subject.one_task is None else subject.one_task.label_spec,
    next(decodings, None),
    **options,
  )
  if statistics_path is None and preprocessor is not None:
    normalizing = next(stages_of(preprocessor, Normalize), None)
    statistics_path = None if normalizing is None else normalizing.statistics_path
  trained = statistics.load_statistics(statistics_path) if statistics_path else None
  check = fit.FitCheck(data, trained, record)
  comparison, count, steps = Comparison(subject, reference, data, tolerance), 0, 0
  own_specs = {**subject.feature_spec, **subject.label_spec}
  declared = list(declared_differences(own_specs, data.source.spec))
  for episode in [] if declared else data.episodes(num_episodes):
    check.add(episode)
    comparison.compare(episode, observe)
    count, steps = count + 1, steps + episode.num_steps
    if comparison.differences:
      break  # Later differences have the same cause.
  differences = declared or comparison.first_differences()
  compared = comparison.describe_compared(model is not None)
  if act is not None and not differences:
    name, path = _find_actions(subject, data)
    differences = find_command_differences(
      act, data.source, path, output=name, num_episodes=num_episodes
    )
    compared.append(f"commands that the robot's code makes of recorded {path}")
  compared += [*_late(subject), *_describe_replay(data)]
  warnings = [*check.warnings(), *_optional_features(preprocessor), *_lost(data)]
  return VerificationReport(
    subject.name,
    data.path,
    count,
    steps,
    tuple(compared),
    tuple(differences),
    (*warnings, *_limits(subject, padding, differences)),
    tuple(comparison.not_compared(model is not None)),
    tuple(_not_exported(record, stages)),
  )


def _limits(
  subject: Subject, padding: Padding, differences: Sequence[Difference]
) -> Iterator[str]:
  """Yields warnings about the policy's weights and training's padding."""
  is_output = any(each.stage in ("output", "action") for each in differences)
  if subject.weights != "float32" and is_output:
    yield (
      f"the weights are stored as {subject.weights}, which changes outputs: set the "
      "tolerance that you accept"
    )
  if not windows.Cut(padding=padding).pads_front:
    yield (
      "training has no windows at the first steps of an episode (padding 'drop'); the "
      "policy acts there with the first step repeated"
    )


def _lost(data: Dataset) -> Iterator[str]:
  """Yields warnings about values that no step of a robot has."""
  for path, count in data.num_lost.items():
    if path and count:
      yield (
        f"{path}: {count:,} values came between two steps, which have the newest one. "
        "If windows need the others, give the policy all values of each step, and "
        "verify that: --replay, or verify(..., replay=verification.Replay())"
      )


def _find_actions(subject: Subject, data: Dataset) -> tuple[str, str]:
  """Returns the output that predicts actions, and their path in the dataset."""
  stored, record = data.source.spec, subject.record
  paths = source_paths(subject.label_spec, stored)
  actions = [
    paths[path]
    for path, spec in subject.label_spec.items()
    if paths[path] in stored and spec.dtype.is_floating
  ]
  if len({*actions}) != 1:
    raise errors.SpecError(
      f"verify: act: expected one label with recorded actions, one of "
      f"{errors.listing(stored)}, got {errors.listing(actions)}."
    )
  execution = None if record is None else record.execution
  return (OUTPUT if execution is None else execution.outputs[0]), actions[0]


def _late(subject: Subject) -> Iterator[str]:
  """Yields what was compared with a late network."""
  if isinstance(subject, Overlapped):
    yield (
      f"the history while the network is late; {subject.num_requests:,} chunks were "
      "requested, most while others were executed"
    )


def _describe_replay(data: Dataset) -> Iterator[str]:
  """Yields how the values came to the robot."""
  if data.replay is not None:
    yield f"the recorded values as a robot gets them, {data.replay}"


def _not_exported(
  record: PolicyRecord | None, stages: list[dict[str, Any]] | None
) -> Iterator[str]:
  """Yields stages of training's input that are not in the export."""
  sources = {} if record is None else record.source_preprocessing or {}
  if stages is None:
    yield (
      "training's input did other things before the model's preprocessor to each "
      f"source: {policy_io.list_stages(sources)}. Name the source that the dataset is "
      "like: --source, or verify(..., source=...)"
    )
  elif missing := [s for s in stages if not records.ImageDecoding.from_stage(s)]:
    yield (
      "training's input applied, before the model's preprocessor, "
      f"{policy_io.list_stages({'': missing})}. The policy does not, and verify cannot "
      "compare it. Give it to the model, as preprocessor_cls, and train again; or have "
      "the robot do it, and undo it for actions"
    )


def _optional_features(preprocessor: Any) -> Iterator[str]:
  if preprocessor is None:
    return
  in_spec = preprocessor.get_in_feature_specification(specs.ModeKeys.EVAL)
  flat = specs.flatten_spec_structure(in_spec)
  optional = [p for p, spec in flat.items() if getattr(spec, "is_optional", False)]
  if optional:
    yield (
      f"training may see the optional features {errors.listing(optional)}, which the "
      "exported policy never gets"
    )
