"""Hook points on which a hook either fires or is refused with a one-line error.

TransformerLens switches some hook points off by flags of `cfg` (`hook_result` without `use_attn_result`, …), and
most ways to add a hook there accept it and never call it. `torch.compile` ignores hooks that are added after it.
Here a switched-off point refuses, and a compiled model, block or part runs uncompiled while a hook is on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

from transformer_lens import HookedTransformer
from transformer_lens.hook_points import HookPoint

from mechplateau.errors import UserError
from mechplateau.models.watched_parts import watch_parts
from mechplateau.models.watching import Watch, honors_hooks

# The flag of `cfg` that switches a point on, by the last component of the point's name.
_SWITCHES = {
    "hook_result": "use_attn_result",
    "hook_attn_in": "use_attn_in",
    "hook_q_input": "use_split_qkv_input",
    "hook_k_input": "use_split_qkv_input",
    "hook_v_input": "use_split_qkv_input",
    "hook_mlp_in": "use_hook_mlp_in",
}


class HookNeverFires(UserError, AssertionError):
    """A hook on a point that is switched off or not there (TransformerLens raises an AssertionError)."""


class WatchedPoint(HookPoint):
    """A hook point that refuses hooks while it is switched off, and reports accepted hooks to the model."""

    def __init__(self, switch: str | None, cfg: Any, watch: Watch):
        super().__init__()
        self.switch = switch
        self.cfg = cfg
        self.watch = watch

    @property
    def off(self) -> bool:
        """Whether the model does not call this point."""
        return self.switch is not None and not getattr(self.cfg, self.switch)

    def check(self) -> None:
        """Raise HookNeverFires while the point is switched off."""
        if self.off:
            raise HookNeverFires(
                f"{self.name}: a hook here would never fire, since cfg.{self.switch} is off; first call "
                f"model.set_{self.switch}(True)"
            )

    def _take(self) -> None:
        self.check()
        self.watch.on = True

    def register_forward_hook(self, *args, **kwargs):
        self._take()
        return super().register_forward_hook(*args, **kwargs)

    def register_forward_pre_hook(self, *args, **kwargs):
        self._take()
        return super().register_forward_pre_hook(*args, **kwargs)

    def register_full_backward_hook(self, *args, **kwargs):
        self._take()
        return super().register_full_backward_hook(*args, **kwargs)

    def register_full_backward_pre_hook(self, *args, **kwargs):
        self._take()
        return super().register_full_backward_pre_hook(*args, **kwargs)


class WatchedHooks(HookedTransformer):
    """A HookedTransformer whose hook points are watched.

    A point requested by name must be switched on. A pattern (a function of names) takes the points that are
    switched on, and is refused where it matches only others.
    """

    watch: Watch

    def setup(self) -> None:
        super().setup()
        if "watch" not in self.__dict__:
            self.watch = Watch()
        watch_parts(self)
        for module in self.modules():
            if hasattr(type(module), "watch"):
                module.watch = self.watch
        for name, point in list(self.hook_dict.items()):
            if not isinstance(point, WatchedPoint):
                parent, _, leaf = name.rpartition(".")
                watched = WatchedPoint(_SWITCHES.get(leaf), self.cfg, self.watch)
                watched.name = name
                setattr(self.get_submodule(parent), leaf, watched)
                self.hook_dict[name] = self.mod_dict[name] = watched
        self.watch.points = list(self.hook_dict.values())

    @honors_hooks
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """See TransformerLens; compiled, it runs uncompiled while a hook is on.

        Raises:
            HookNeverFires: a hook is on a point that was switched off after it was put there.
        """
        self.check_hooks()
        return super().forward(*args, **kwargs)

    def check_hooks(self) -> None:
        """See whether there still is a hook; HookNeverFires for one on a point that was switched off since."""
        if self.watch.on:
            self.watch.look()
            for point in self.watch.points:
                if point.fwd_hooks or point.bwd_hooks:
                    point.check()

    def check_hooks_to_add(
        self, hook_point, hook_point_name, hook, dir="fwd", is_permanent=False, prepend=False
    ):
        hook_point.check()

    def add_hook(self, name, hook, dir="fwd", is_permanent=False, level=None, prepend=False):
        chosen = [name] if isinstance(name, str) else self._matched(name)
        for one in chosen:
            super().add_hook(one, hook, dir, is_permanent, level, prepend)

    def _enable_hooks_for_points(self, hook_points, enabled, hook, dir):
        chosen = set(self._matched(enabled))
        super()._enable_hooks_for_points(hook_points, chosen.__contains__, hook, dir)

    def add_caching_hooks(self, names_filter=None, *args, **kwargs):
        return super().add_caching_hooks(self._cached(names_filter), *args, **kwargs)

    def get_caching_hooks(self, names_filter=None, *args, **kwargs):
        return super().get_caching_hooks(self._cached(names_filter), *args, **kwargs)

    def _matched(self, pattern: Callable[[str], bool]) -> list[str]:
        matched = {name: point for name, point in self.hook_dict.items() if pattern(name)}
        live = [name for name, point in matched.items() if not point.off]
        if matched and not live:
            next(iter(matched.values())).check()
        return live

    def _cached(self, names_filter: Any) -> Any:
        if names_filter is None:
            names_filter = self.hook_dict.__contains__
        if callable(names_filter):
            return set(self._matched(names_filter)).__contains__
        if isinstance(names_filter, str | list):
            for name in [names_filter] if isinstance(names_filter, str) else names_filter:
                if name not in self.hook_dict:
                    raise HookNeverFires(f"names_filter: this model has no hook point {name!r}")
                self.hook_dict[name].check()
        return names_filter


__all__ = ["HookNeverFires", "WatchedHooks", "WatchedPoint"]
