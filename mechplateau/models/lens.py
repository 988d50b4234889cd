"""Imported before any HookedTransformer name: if TransformerLens has none, an error says what to install."""

from mechplateau.models.versions import check_hooked_transformer

check_hooked_transformer("this model")
