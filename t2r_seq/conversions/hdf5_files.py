"""HDF5 files in robomimic's layout: the names in them.

`data/demo_0/{obs/<key>, next_obs/<key>, actions, rewards, dones, states}` datasets
[steps, ...], the attribute `num_samples` of each demo, the attribute `env_args` of
`data`, and `mask/<filter>` lists of demos.

Of `next_obs/<key>` only the last row is news where the others are the next rows of
`obs/<key>`: it becomes `final_obs/<key>`, once per episode, and turns into the whole
`next_obs/<key>` again on the way out.
"""

from __future__ import annotations

import re
from typing import Any

from t2r_seq import errors, specs

DATA, MASK = "data", "mask"
NUM_SAMPLES, ENV_ARGS, TOTAL = "num_samples", "env_args", "total"
OBS, NEXT_OBS, FINAL_OBS = "obs/", "next_obs/", "final_obs/"
# Attributes of `data`: specs and metadata, so that a round trip gives the same ones.
SPEC_ATTRIBUTE = "t2r_seq_spec"
METADATA_ATTRIBUTE = "t2r_seq_metadata"


def load_h5py() -> Any:
  """Imports h5py.

  Raises:
    ImportError: it is not installed; names the extra.
  """
  try:
    import h5py
  except ImportError as error:
    raise errors.missing_extra("h5py", "hdf5") from error
  return h5py


def open_file(path: str) -> Any:
  """Opens a file for reading.

  Raises:
    ImportError: h5py is not installed.
    ConversionError: it is no HDF5 file, or a damaged one.
  """
  h5py = load_h5py()
  try:
    return h5py.File(path, "r")
  except OSError as error:
    raise errors.ConversionError(
      f"convert: {path}: expected an HDF5 file, got {error}."
    ) from error


def demo_order(name: str) -> tuple[int, str]:
  """Sorts demo_2 before demo_10."""
  digits = re.search(r"\d+$", name)
  return (int(digits[0]) if digits else -1, name)


def final_paths(spec: specs.TensorSpecStruct) -> dict[str, str]:
  """Finds the paths that stand for a whole `next_obs/<key>`.

  Args:
    spec: of the episodes.
  Returns:
    'final_obs/<key>' to 'obs/<key>', where both are there and fit.
  """
  found = {}
  for path, leaf in spec.items():
    source = OBS + path.removeprefix(FINAL_OBS)
    if not path.startswith(FINAL_OBS) or leaf.is_sequence or source not in spec:
      continue
    obs = spec[source]
    if obs.is_sequence and (obs.shape, obs.dtype) == (leaf.shape, leaf.dtype):
      found[path] = source
  return found
