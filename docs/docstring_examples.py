"""Shows the examples of docstrings as code on the site: an extension of griffe."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
  """Fences each paragraph that starts with `>>>`, which Markdown would quote."""

  def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
    """Changes the docstring of an object after it was read."""
    if obj.docstring is not None:
      text = obj.docstring.value
      obj.docstring.value = re.sub(
        r"^>>> .*(?:\n.+)*", r"```pycon\n\g<0>\n```", text, flags=re.MULTILINE
      )
