"""What constrained streams may go on with, worked out beside the engine thread.

Where the host draws, a step's runner works it out for its streams before it runs the step: cores have nothing
else to do then, while a thread beside the step would take one from those that run it, which wait for each
other. What takes long is left to two threads, one of them for grammars that were slow before, which keep
nobody else waiting so: the row is run meanwhile, and its runner waits a moment for what is not known by the
end of the step. A stream that is late even then gets no token: its row is fed once more, when it is known
what may come next. An executor that draws by itself is not given the row before; threads work for it alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from tierd.core import Constraint, Request, Sequence, TokenMask
from tierd.engine.messages import Allowed, Message, Stranded
from tierd.errors import ExecutorError, InvalidRequestError, TierdError

log = logging.getLogger(__name__)


Work = Callable[[], None]
Words = npt.NDArray[np.uint32]
NO_WORDS: Words = np.empty(0, np.uint32)


class Followers:
    """The threads. They begin with the first stream that needs them."""

    def __init__(self, inbox: SimpleQueue[Message]) -> None:
        self._inbox = inbox
        self._lanes: tuple[SimpleQueue[Work | None], ...] = (SimpleQueue(), SimpleQueue())
        self._began = False

    def follow(self, sequence: Sequence, end_ids: frozenset[int]) -> None:
        """Follow a new stream if its request has a grammar. end_ids: those of its model."""
        if sequence.request.grammar is None:
            return
        if not self._began:
            self._began = True
            for lane in self._lanes:
                threading.Thread(target=_run, args=(lane,), name="tierd-grammar", daemon=True).start()
        quick, slow = self._lanes
        sequence.following = Follower(sequence.request, end_ids, quick.put, slow.put, self._inbox.put)

    def stop(self) -> None:
        """Let the threads end once their work is done."""
        for lane in self._lanes:
            lane.put(None)


def _run(lane: SimpleQueue[Work | None]) -> None:
    while (work := lane.get()) is not None:
        work()


class Follower:
    """Follows one stream; see core.Following."""

    def __init__(
        self,
        request: Request,
        end_ids: frozenset[int],
        work: Callable[[Work], None],
        slow_work: Callable[[Work], None],
        post: Callable[[Message], None],
    ) -> None:
        """work, slow_work: have something done. post: puts a message into the engine's inbox."""
        self.allowed: TokenMask | None = None
        self.late = False
        self._request = request
        self._ends = TokenMask.of(sorted(end_ids), max(end_ids) + 1).words if end_ids else NO_WORDS
        self._work = work
        self._slow_work = slow_work
        self._post = post
        self._constraint: Constraint | None = None
        self._known = threading.Event()
        self._awaited = False
        self._due: list[int] = []  # the token that has come, until somebody takes it to find what may follow
        work(self._begin)

    @property
    def known(self) -> bool:
        """See core.Following."""
        return self._known.is_set()

    def wait(self, seconds: float) -> None:
        """See core.Following."""
        self._known.wait(seconds)

    def announce(self) -> bool:
        """See core.Following."""
        self._awaited = True
        self.start()
        return self._known.is_set()

    def advance(self, token: int, *, aside: bool) -> None:
        """See core.Following."""
        assert self._constraint is not None
        self.late = self._awaited = False
        self._known.clear()
        self._due.append(token)
        if aside or self._constraint.slow:
            self.start()

    def start(self) -> None:
        """See core.Following."""
        token = self._take()
        if token is not None:
            slow = self._constraint is not None and self._constraint.slow
            (self._slow_work if slow else self._work)(partial(self._find, token))

    def find(self) -> None:
        """See core.Following."""
        token = self._take()
        if token is not None:
            self._find(token)

    def _take(self) -> int | None:
        """Take the token that is due, unless somebody has."""
        try:
            return self._due.pop()
        except IndexError:
            return None

    def _find(self, token: int) -> None:
        assert self._constraint is not None
        with self._reported():
            self._constraint.advance(token)
            self._look()

    def _begin(self) -> None:
        grammar = self._request.grammar
        assert grammar is not None
        with self._reported():
            self._constraint = grammar.begin()
            self._look()

    def _look(self) -> None:
        assert self._constraint is not None
        self.allowed = narrow(self._constraint.allowed(), self._request, self._ends)
        self._known.set()
        if self._awaited:
            self._post(Allowed())

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Tell the engine of what goes wrong. A fault of the grammar is that of its stream alone."""
        try:
            yield
        except TierdError as error:
            self._post(Stranded(self._request.id, error))
        except BaseException as error:  # what the library panics with is no Exception
            log.exception("request=%s its grammar failed", self._request.id)
            what = f"the answer's grammar failed, {type(error).__name__}: {error}; send another one"
            failure = ExecutorError(what)
            failure.quotes = True
            self._post(Stranded(self._request.id, failure))


def narrow(mask: TokenMask | None, request: Request, ends: Words) -> TokenMask | None:
    """Return what of a constraint's mask a request allows besides. Raises InvalidRequestError: nothing.

    ends: the words of a mask of those that end a text, as far as there are any. With `ignore_eos` the text
    ends only where nothing else may come.
    """
    fixed = request.sampling.allowed
    if mask is None:
        return fixed
    words = mask.words
    if request.ignore_eos and (words[: ends.size] & ends).any():
        others = words.copy()
        others[: ends.size] &= ~ends
        words = others if others.any() else words
    if fixed is not None:
        words = words & fixed.words
        if not words.any():
            raise InvalidRequestError(
                "allowed_token_ids leaves none of the tokens that the answer may go on with; allow more",
                param="allowed_token_ids",
            )
    return mask if words is mask.words else TokenMask(words)
