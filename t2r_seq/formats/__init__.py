"""The formats of data sets, a module each; `t2r_seq.episodes` opens them."""

__all__: list[str] = []
