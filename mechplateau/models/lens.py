"""Imported before any name of HookedTransformer's: where TransformerLens has none, says what to install."""

from mechplateau.models.versions import check_hooked_transformer

check_hooked_transformer("this model")
