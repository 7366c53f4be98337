"""The project's gin files. A package, so that gin finds them from any folder."""
