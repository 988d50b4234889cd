"""Look inside: small tools for what a model computes, each on any HookedTransformer, each returning labeled tables."""
