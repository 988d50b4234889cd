"""The former name of `mechplateau.studies`, for what was documented under it."""
