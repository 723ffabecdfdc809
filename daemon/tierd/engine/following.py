"""What constrained streams may go on with, worked out beside the engine thread while their steps run.

A constraint may take milliseconds, so two threads work for all of them, and alone touch them: one for those
that are slow, which keep nobody else waiting so. An executor that leaves draws to the host runs a stream's
row meanwhile, and its runner waits a moment for what is not known by the end of the step. A stream that is
late even then gets no token: its row is fed once more, when it is known what may come next. An executor that
draws by itself is not given the row before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from tierd.core import Constraint, Request, Sequence, TokenMask
from tierd.engine.messages import Allowed, Message, Stranded
from tierd.errors import ExecutorError, InvalidRequestError, TierdError

log = logging.getLogger(__name__)


# Who has ever taken so much of the processor's time for a token is slow.
SLOW_S = 0.005

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
        return self._known.is_set()

    def advance(self, token: int) -> None:
        """See core.Following."""
        self.late = self._awaited = False
        self._known.clear()
        self._work(lambda: self._advance(token))

    def _begin(self) -> None:
        grammar = self._request.grammar
        assert grammar is not None
        with self._reported():
            self._constraint = grammar.begin()
            self._look()

    def _advance(self, token: int) -> None:
        assert self._constraint is not None
        with self._reported():
            self._constraint.advance(token)
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
        started = time.thread_time()
        try:
            yield
            if time.thread_time() - started > SLOW_S:
                self._work = self._slow_work
        except TierdError as error:
            self._post(Stranded(self._request.id, error))
        except BaseException as error:  # what the library panics with is no Exception
            log.exception("request=%s its grammar failed", self._request.id)
            what = f"the answer's grammar failed, {type(error).__name__}: {error}; send another one"
            self._post(Stranded(self._request.id, ExecutorError(what)))


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
