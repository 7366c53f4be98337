"""Language-conditioned behaviour cloning, as in BC-Z, on a table of coloured blocks."""
