"""Who uses the handles of a model and its engine.

The library locks nothing: its text functions may be called from any thread, the rest belongs to one
thread at a time, all of it to the process that opened the model. Invariant: no two calls that need
the handles alone run at one time; no handle is freed under a call; and a child of fork, where the
library's threads are missing, calls nothing.
"""
from __future__ import annotations

import functools
import os
import threading
from typing import Any, Callable, List, TypeVar, cast

from ._abi import CorunError

F = TypeVar("F", bound=Callable[..., Any])

FORKED = "the model was opened before a fork: open a model in this process"
IN_USE = "the engine is in use by another thread or by this one's callback"


class _Use:
    """A call that is under way."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class Owner:
    """One for a model and its engine. Lists instead of locks: one call of a list is whole, and what
    stands in a list is taken out again wherever Ctrl-C falls."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.uses: List[_Use] = []  # calls that need the handles alone: the first one has them
        self.texts: List[_Use] = []  # text functions that are under way
        self.frees: List[Callable[[], None]] = []  # what waits for their end

    @property
    def here(self) -> bool:
        """False in a child of the process that opened the model."""
        return os.getpid() == self.pid

    def check(self) -> None:
        if not self.here:
            raise CorunError("EINVAL", FORKED)

    def free(self, function: Callable[[], None]) -> None:
        """Calls a function when no text function is under way: now, or after the last of them.
        To wait for that could be to wait for oneself, in a signal's handler."""
        self.frees.append(function)
        self.free_unused()

    def free_unused(self) -> None:
        while self.frees and not self.texts:
            try:
                function = self.frees.pop()
            except IndexError:  # another thread has taken it
                return
            function()


def _alone(method: F, within: bool) -> F:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        owner: Owner = self.owner
        owner.check()
        uses, me = owner.uses, _Use()
        try:
            uses.append(me)
            first = uses[0]
            if first is not me and not (within and first.thread == me.thread):
                raise RuntimeError(IN_USE)
            return method(self, *arguments, **more)
        finally:
            uses.remove(me)
    return cast(F, call)


def alone(method: F) -> F:
    """A method that needs the handles for itself: RuntimeError while they are in use."""
    return _alone(method, False)


def between(method: F) -> F:
    """A method that only looks: also allowed in a callback, which is called between two steps."""
    return _alone(method, True)


def text(method: F) -> F:
    """A method for any thread at any time."""
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        owner: Owner = self.owner
        owner.check()
        texts, me = owner.texts, _Use()
        try:
            texts.append(me)
            return method(self, *arguments, **more)
        finally:
            texts.remove(me)
            owner.free_unused()
    return cast(F, call)
