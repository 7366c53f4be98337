"""Whether the checkpoint that a server began with is of the options it was given."""

from __future__ import annotations

import dataclasses
from typing import Any

from t2r_seq import errors


def check_options(operation: str, wanted: Any, found: Any) -> None:
  """Checks that a server has the options that it was given.

  Reverb takes a table's options from a checkpoint, and says nothing if others were
  asked for.

  Args:
    operation: for the error.
    wanted: Reverb's TableInfo of the table as it was made.
    found: its TableInfo as the server has it.
  Raises:
    SpecError: with every option that differs.
  """
  asked, got = describe_options(wanted), describe_options(found)
  mismatches = [
    errors.Mismatch(name, asked[name], f"{got[name]} in the checkpoint")
    for name in asked
    if asked[name] != got[name]
  ]
  if mismatches:
    hint = "A checkpoint brings its options: ask for those, or begin a new folder."
    mismatches[-1] = dataclasses.replace(mismatches[-1], hint=hint)
    raise errors.mismatch_error(operation, mismatches)


def describe_options(info: Any) -> dict[str, str]:
  """Says in words which options a table of Reverb's has, given its TableInfo."""
  limiter = info.rate_limiter_info
  bounds = (limiter.samples_per_insert, limiter.min_diff, limiter.max_diff)
  return {
    "max_size": str(info.max_size),
    "max_times_sampled": str(info.max_times_sampled),
    "rate_limiter": f"min_size_to_sample {limiter.min_size_to_sample}, "
    "samples per insert {:g} within {:g} to {:g}".format(*bounds),
    "remover": _text(info.remover_options),
    "sampler": _text(info.sampler_options),
  }


def _text(selector: Any) -> str:
  text = " ".join(str(selector).replace("is_deterministic: true", "").split())
  return text.replace(": true", "")
