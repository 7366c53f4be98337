"""What a verification found, as values and as text."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

_WIDTH = 96
STAGES = ("observation", "window", "mask", "network input", "step", "output", "action")


@dataclasses.dataclass(frozen=True)
class Difference:
  """The first difference of a path.

  Attributes:
    path: of the feature, or the name of the output.
    stage: where the two roads part: one of `STAGES`.
    episode: number of the episode.
    step: of the episode.
    expected: what training has there.
    got: what the policy had.
    num_steps: how many steps of the episode differ.
    causes: what explains it, the likeliest first.
  """

  path: str
  stage: str
  episode: int
  step: int
  expected: str
  got: str
  num_steps: int
  causes: tuple[str, ...] = ()

  def __str__(self) -> str:
    """Returns a paragraph."""
    where = f"episode {self.episode}, step {self.step}"
    lines = [
      f"{self.path} ({self.stage}): {where}: expected {self.expected}, got {self.got}. "
      f"{self.num_steps} steps of the episode differ."
    ]
    lines += [f"Likely cause: {cause}." for cause in self.causes]
    return "\n".join(
      textwrap.fill(line, _WIDTH, initial_indent="  ", subsequent_indent="    ")
      for line in lines
    )


@dataclasses.dataclass(frozen=True)
class VerificationReport:
  """Whether a policy sees what training saw.

  Attributes:
    policy: path of the export.
    dataset: path of the dataset.
    num_episodes: that were replayed.
    num_steps: of these episodes.
    compared: what was compared; sentences.
    differences: the first of each path; empty where all is identical.
    warnings: where the dataset does not fit the export; sentences.
    not_compared: what was not compared, and why; sentences.
    not_exported: what training did to its data that is not in the export and was not
      compared; sentences. The policy is not proven to see what training saw.
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
    """Whether nothing differs of what was compared, and the export has all stages."""
    return not self.differences and not self.not_exported

  def to_json(self) -> dict[str, Any]:
    """Returns it as what JSON can hold."""
    return {**dataclasses.asdict(self), "identical": self.is_identical}

  def __str__(self) -> str:
    """Returns it as text."""
    episodes = "episode" if self.num_episodes == 1 else "episodes"
    count = f"{self.num_episodes:,} {episodes}, {self.num_steps:,} steps"
    lines = [f"{self.policy}", f"replayed {self.dataset}"]
    lines += [_bullet(f"compared: {each}") for each in self.compared]
    lines += [_bullet(f"not compared: {each}") for each in self.not_compared]
    lines += [_bullet(f"not in the export: {each}") for each in self.not_exported]
    lines += [_bullet(f"warning: {each}") for each in self.warnings]
    if self.is_identical:
      verdict = (
        "identical, as far as was compared" if self.not_compared else "identical"
      )
      return "\n".join([*lines, f"{count}, {verdict}."])
    if not self.differences:
      return "\n".join(
        [*lines, f"{count}, not proven: training saw what is not in the export."]
      )
    first = self.differences[0]
    verdict = f"{count}: {first.path} differs first, in step {first.step} of episode "
    lines.append(f"{verdict}{first.episode}:")
    return "\n".join([*lines, *map(str, self.differences)])


def _bullet(text: str) -> str:
  return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")
