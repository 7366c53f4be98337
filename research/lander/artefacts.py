"""Release artefacts of the demo: exports, pages to look at them, the table.

    make release-artefacts

runs the demo, then this module: the best export of each policy as a SavedModel and for
LiteRT, a page with its actions over the demonstrations, and checksums.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import shutil
import sys
from collections.abc import Sequence

from research.lander import demo
from t2r_seq import policies

_README = """# Policies of the lander demo

Trained by `make release-artefacts` on {demos} scripted landings of `{env}`.

{table}
| file | use |
| --- | --- |
| `NAME.tar.gz` | `t2r_seq evaluate NAME --env {env} --episodes 20` |
| `NAME_lite.tar.gz` | `t2r_seq serve NAME_lite`, without TensorFlow |
| `NAME.html` | open in a browser: the demonstrations, and what the policy predicts |

An export is a program: load it only if you trust its source. `SHA256SUMS` has the
checksums: `sha256sum -c SHA256SUMS`.
"""


def write_artefacts(
  source: pathlib.Path, out: pathlib.Path, names: Sequence[str] = demo.POLICIES
) -> None:
  """Packs the results of the demo.

  Args:
    source: the folder that the demo wrote.
    out: the folder of the artefacts, which is replaced.
    names: of the policies.
  """
  shutil.rmtree(out, ignore_errors=True)
  out.mkdir(parents=True)
  for name in names:
    best = source / name / "export" / "best"
    *_, newest = policies.list_exports(str(best))
    for folder, stem in (
      (newest.path, name),
      (source / f"{name}_lite", f"{name}_lite"),
    ):
      # The archive holds one folder of its own name.
      shutil.copytree(folder, out / stem)
      shutil.make_archive(str(out / stem), "gztar", out, stem)
      shutil.rmtree(out / stem)
    page = ("--export", best, "-o", out / f"{name}.html", "--max_mb", 5)
    demo.command("view", source / "demos.lerobot", *page)
  shutil.copy(source / "lander.png", out)
  table = (source / "table.md").read_text(encoding="utf-8")
  text = _README.format(env=demo.ENV, demos=demo.NUM_DEMOS, table=table)
  (out / "README.md").write_text(text, encoding="utf-8")
  sums = [
    f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
    for path in sorted(out.iterdir())
  ]
  (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
  """Packs the artefacts; returns the exit status."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("source", type=pathlib.Path, help="the folder of the demo")
  parser.add_argument("out", type=pathlib.Path, help="of what is written")
  args = parser.parse_args(argv)
  write_artefacts(args.source, args.out)
  return 0


if __name__ == "__main__":
  sys.exit(main())
