"""Packaging of t2r_seq: core dependencies with ranges, everything else in extras."""

from __future__ import annotations

import os
import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).resolve().parent

# The core runs on this whole range of TensorFlow. Serialized specs use protobuf,
# which TensorFlow brings in the range that it works with.
CORE = [
  "tensorflow>=2.15,<2.23",
  "numpy>=1.23.5,<3",
  "gin-config>=0.5,<1",
  "absl-py>=1.4,<3",
  # Checksums of TFRecords.
  "google-crc32c>=1.5,<2",
]

ENVS = ["gymnasium>=1.2,<2"]
# Wheels exist for CPython 3.10 and 3.11; on newer Pythons pip builds it from source.
POSE_ENV = [*ENVS, "pybullet>=3.2.6,<4"]
PLOTS = ["matplotlib>=3.8", "pillow>=10.1"]
# What runs a policy without TensorFlow.
LITE = ["ai-edge-litert>=1.4"]
# Gymnasium's LunarLander, with its scripted expert. No wheel of Box2D for Python 3.14.
LANDER = [*ENVS, 'Box2D>=2.3.10,<3; python_version < "3.14"', "pygame-ce>=2.5,<3"]
DEMO = [*POSE_ENV, *LANDER, *PLOTS, *LITE]
# PyAV's wheel holds the ffmpeg that it needs, 35 MB.
VIDEO = ["av>=14"]
ZARR = ["zarr>=2.16,<4"]
HDF5 = ["h5py>=3.8,<4"]
# No wheels for Windows, nor for the newest Pythons.
ARRAY_RECORD = ["array_record>=0.5"]
# Parquet files and videos.
LEROBOT = ["pyarrow>=14", *VIDEO]
# Shells complete commands and options.
COMPLETION = ["argcomplete>=3,<4"]
# Recordings of ROS 2; compressed chunks by lz4 and Zstandard.
MCAP = ["mcap>=1.1,<2", "mcap-ros2-support>=0.5.5,<1"]
FORMATS = [*ZARR, *HDF5, *LEROBOT, *MCAP]
# A viewer of recordings with images, of its own process; 100 MB.
RERUN = ["rerun-sdk>=0.23"]
# Since 15 the synchronous client, too, sends pings and closes a dead connection.
SERVE = ["websockets>=15", "msgpack>=1"]
# moviepy is what Gymnasium records videos with.
TEST = ["pytest>=9", "pytest-xdist>=3.5", "hypothesis>=6.90", "moviepy>=2"]
TEST += [*FORMATS, *LITE, *SERVE, *COMPLETION]
LINT = ["ruff>=0.9", "mypy>=1.11"]
# It brings pyarrow and asks for a new protobuf: only the newest TensorFlow meets it.
# Not a part of `all`: the registry's own build for Linux brings gigabytes of CUDA.
TORCH = ["torch>=2.1"]
# Reverb's newest wheel is built against TensorFlow 2.15 and CPython <= 3.11, so this
# extra holds TensorFlow back. For the same reason it isn't a part of `all`.
REVERB = [
  'dm-reverb==0.14.0; python_version < "3.12"',
  'tensorflow==2.15.*; python_version < "3.12"',
]


def read_version() -> str:
  """Reads `__version__` from the package without importing it."""
  text = (ROOT / "t2r_seq" / "__init__.py").read_text(encoding="utf-8")
  match = re.search(r"""^__version__ = ["']([^"']+)["']""", text, re.MULTILINE)
  if match is None:
    raise RuntimeError("t2r_seq/__init__.py: no line `__version__ = '...'`.")
  return match.group(1)


# Where the repository is, as a release knows; the page of an index has no folder that
# relative links could be relative to.
REPOSITORY = os.environ.get("T2R_SEQ_REPOSITORY", "").rstrip("/")


def read_description() -> str:
  """Reads the README, if there is one; a release's links point to the repository."""
  readme = ROOT / "README.md"
  text = readme.read_text(encoding="utf-8") if readme.exists() else ""
  if not REPOSITORY:
    return text
  tag = f"v{read_version()}"
  # A picture, or the end of any other link: the text of a link may be a picture.
  link = re.compile(r"(!\[[^\[\]]*|)\]\((?![a-z]+:|#)([^)]+)\)")

  def absolute(match: re.Match[str]) -> str:
    kind = "raw" if match[1] else "blob"
    return f"{match[1]}]({REPOSITORY}/{kind}/{tag}/{match[2]})"

  return link.sub(absolute, text)


setuptools.setup(
  name="t2r_seq",
  version=read_version(),
  description="Sequence and frame-stacking policies from one spec, on TensorFlow 2.",
  long_description=read_description(),
  long_description_content_type="text/markdown",
  author="The t2r_seq authors",
  license="Apache-2.0",
  license_files=["LICENSE"],
  keywords="robotics, imitation learning, reinforcement learning, TensorFlow, LeRobot",
  project_urls=(
    {
      "Source": REPOSITORY,
      "Documentation": f"{REPOSITORY}/tree/main/docs",
      "Changes": f"{REPOSITORY}/blob/main/CHANGELOG.md",
      "Issues": f"{REPOSITORY}/issues",
    }
    if REPOSITORY
    else {}
  ),
  classifiers=[
    "Development Status :: 4 - Beta",
    "Intended Audience :: Science/Research",
    "Operating System :: MacOS",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3",
    *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 15)),
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
  ],
  python_requires=">=3.10,<3.15",
  # The shared gin files stand at the top of the repository.
  packages=[
    *setuptools.find_packages(include=["t2r_seq", "t2r_seq.*"]),
    "t2r_seq.configs",
    "t2r_seq.configs.policies",
  ],
  package_dir={"t2r_seq.configs": "configs"},
  package_data={"": ["*.gin", "*.html", "*.proto", "py.typed"]},
  zip_safe=False,
  install_requires=CORE,
  extras_require={
    "all": sorted({*ENVS, *PLOTS, *FORMATS, *LITE, *SERVE, *COMPLETION}),
    "array_record": ARRAY_RECORD,
    "completion": COMPLETION,
    "demo": DEMO,
    "dev": sorted({*DEMO, *TEST, *LINT, *FORMATS}),
    "envs": ENVS,
    "hdf5": HDF5,
    "lander": LANDER,
    "lerobot": LEROBOT,
    "lint": LINT,
    "lite": LITE,
    "mcap": MCAP,
    "plots": PLOTS,
    "pose-env": POSE_ENV,
    "rerun": RERUN,
    "reverb": REVERB,
    "serve": SERVE,
    "test": TEST,
    "torch": TORCH,
    "video": VIDEO,
    "zarr": ZARR,
  },
  entry_points={"console_scripts": ["t2r_seq = t2r_seq.cli.main:main"]},
)
