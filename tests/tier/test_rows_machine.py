"""Regions, claims, the bank and its files together, over devices whose rows tell what they are.

A row holds its model, its position and the hash of all tokens up to there, as K/V depends on all of them.
Regions that change hands are spoilt first, so that whoever is given rows that were lost reads junk.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from manual_spill import ManualSpill
from tierd.kv.bank import Bank, Banked
from tierd.kv.spill import SpillDone
from tierd.tier.regions import Claim, Regions

MODELS = {"large": 3, "small": 2}  # and their regions
ROW_BYTES = {"large": (8, 24), "small": (8,)}
POSITIONS = 24
SLICE = 4  # positions that a move carries at a time
ROOM = 40 * sum(ROW_BYTES["large"])
FILES = 5000
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=10)
LONG = st.lists(st.integers(0, 2), min_size=6, max_size=12)

Rows = npt.NDArray[np.uint8]


@cache
def row(model: str, tokens: tuple[int, ...], layer: int) -> bytes:
    """The row of the last of these tokens."""
    said = repr((model, layer, tokens)).encode()
    return hashlib.blake2b(said, digest_size=ROW_BYTES[model][layer]).digest()


def rows(model: str, tokens: list[int], layer: int, start: int = 0) -> Rows:
    """The rows of these tokens from `start` on."""
    whole = b"".join(row(model, tuple(tokens[: end + 1]), layer) for end in range(start, len(tokens)))
    return np.frombuffer(whole, np.uint8).reshape(len(tokens) - start, ROW_BYTES[model][layer])


class Device:
    """The regions of one model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.layers = [np.zeros((MODELS[model], POSITIONS, count), np.uint8) for count in ROW_BYTES[model]]

    def spoil(self, region: int) -> None:
        for layer in self.layers:
            layer[region] = 255

    def feed(self, region: int, tokens: list[int], start: int) -> None:
        for index, layer in enumerate(self.layers):
            layer[region, start : len(tokens)] = rows(self.model, tokens, index, start)

    def fork(self, source: int, target: int, positions: int) -> None:
        for layer in self.layers:
            layer[target, :positions] = layer[source, :positions]

    def read(self, region: int, entry: Banked, start: int, stop: int) -> None:
        for layer, banked in zip(self.layers, entry.layers, strict=True):
            banked[start:stop] = layer[region, start:stop]

    def write(self, region: int, entry: Banked, start: int, stop: int) -> None:
        for layer, banked in zip(self.layers, entry.layers, strict=True):
            layer[region, start:stop] = banked[start:stop]

    def holds(self, region: int, tokens: list[int]) -> bool:
        return all(
            np.array_equal(layer[region, : len(tokens)], rows(self.model, tokens, index))
            for index, layer in enumerate(self.layers)
            if tokens
        )


@dataclass(eq=False)
class Stream:
    """A conversation being served. entry: where its rows are while the device is another model's."""

    model: str
    tokens: list[int]
    fed: int = 0
    entry: Banked | None = None
    arriving: bool = False
    owner: str = ""


@dataclass(eq=False)
class Move:
    """Rows on their way between a region and the bank, a slice at a time. claim or stream: whose they are."""

    model: str
    region: int
    entry: Banked
    tokens: list[int]
    done: int = 0
    claim: Claim | None = None
    stream: Stream | None = None
    told: list[bool] = field(default_factory=list)  # whether its entry's rows are in memory


@dataclass
class Books:
    """What one model has on its device."""

    regions: Regions[Stream]
    device: Device
    streams: list[Stream] = field(default_factory=list)
    claims: dict[Claim, list[int]] = field(default_factory=dict)  # that are good, and their tokens
    stale: list[Claim] = field(default_factory=list)
    pins: Counter[Claim] = field(default_factory=Counter)

    def full(self) -> bool:
        return not self.regions.free


def shared(a: list[int], b: list[int]) -> int:
    return max(n for n in range(min(len(a), len(b)) + 1) if a[:n] == b[:n])


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-20] + bytes([content[-20] ^ 4]) + content[-19:])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def disown(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"origin": "device"', b'"origin": "secret"'))


HARMS = {"flipped": flip, "cut": cut, "foreign": disown, "gone": Path.unlink}
FATES = st.sampled_from(["fine", "fine", "fine", "fails", "full", *HARMS])


class RowsMachine(RuleBasedStateMachine):
    """What an engine may do with regions and the bank, in any order."""

    steps: ClassVar[int]
    seen: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.spill = self.open_spill()
        self.bank = Bank(ROOM, on_drop=self.note_drop, spill=self.spill)
        self.books = {model: Books(Regions(count), Device(model)) for model, count in MODELS.items()}
        self.moves: list[Move] = []
        self.kept: dict[Banked, list[int]] = {}  # parked entries that must be found, with their tokens
        self.lost = 0  # entries that were dropped

    def open_spill(self) -> ManualSpill | None:
        return None

    def write_all(self) -> None:
        """Let the writer do what it has to do."""

    def note_drop(self, entry: Banked) -> None:
        assert entry in self.kept, "dropped, though it was never kept, or is live"
        assert entry.damaged or not entry.pins
        del self.kept[entry]
        self.lost += 1
        self.seen["damaged" if entry.damaged else "dropped"] += 1

    # ---- What may happen

    @initialize(ended=st.lists(st.tuples(st.sampled_from(sorted(MODELS)), LONG), max_size=12))
    def begin_with(self, ended: list[tuple[str, list[int]]]) -> None:
        """Conversations that ended before lie in the bank."""
        for model, tokens in ended:
            entry = self.open(model, len(tokens))
            if entry is not None:
                for index, layer in enumerate(entry.layers):
                    layer[:] = rows(model, tokens, index)
                self.keep(entry, tokens)
            self.write_all()

    @rule(data=st.data(), model=st.sampled_from(sorted(MODELS)), tail=TOKENS)
    def come(self, data: st.DataObject, model: str, tail: list[int]) -> None:
        """A prompt comes that is new, or goes on from or branches off something that was fed before."""
        here = [*self.books[model].claims.values(), *(s.tokens for s in self.books[model].streams)]
        there = [tokens for entry, tokens in self.kept.items() if entry.model == model]
        known = data.draw(st.sampled_from([known for known in ([[]], here, there) if known]))
        before = data.draw(st.sampled_from(known))
        cut = data.draw(st.integers(0, min(3, len(before))))
        self.arrive(model, [*before[: len(before) - cut], *tail][:POSITIONS])

    def arrive(self, model: str, tokens: list[int]) -> None:
        """Serve a prompt from where most of it lies already."""
        books = self.books[model]
        stream = Stream(model, tokens)
        match, banked = books.regions.find(tokens), self.bank.find(model, "device", tokens)
        here, there = match.positions if match else 0, banked[1] if banked else 0
        self.check_found(model, tokens, here, there)
        if match is not None and match.claim is not None and here >= there:
            assert books.regions.adopt(stream, match.claim, here) == match.region
            assert shared(books.claims[match.claim], tokens) == here
            self.spend(books, match.claim)
            stream.fed = here
            self.seen["adopted"] += 1
        elif match is not None and here >= there:
            assert match.session is not None
            region = self.region_for(stream, keep=match.session)
            if region is None:
                return
            books.device.fork(match.region, region, here)
            stream.fed = here
            self.seen["forked"] += 1
        else:
            told: list[bool] = []
            if banked is not None:
                self.bank.pin(banked[0])
                told = self.fetch(banked[0])
                if told == [False]:
                    self.bank.unpin(banked[0])
                    banked = None
            region = self.region_for(stream)
            if banked is not None and region is None:
                self.bank.unpin(banked[0])
            if region is None:
                return
            if banked is not None:
                entry, positions = banked
                stream.arriving = True
                self.moves.append(Move(model, region, entry, tokens[:positions], stream=stream, told=told))
        books.streams.append(stream)
        if not stream.arriving:
            self.feed(stream)

    def region_for(self, stream: Stream, keep: Stream | None = None) -> int | None:
        """Open a region, or take the oldest whose rows go to the bank where there is room."""
        books = self.books[stream.model]
        if books.regions.free:
            region = books.regions.open(stream)
        else:
            claim = books.regions.oldest()
            if claim is None:
                with pytest.raises(ValueError, match="no region is free"):
                    books.regions.open(stream)
                return None
            assert not books.pins[claim]
            tokens = books.claims[claim]
            source = books.regions.region_of(claim)
            assert source is not None
            entry = self.open(stream.model, len(tokens))
            if entry is not None:
                books.device.read(source, entry, 0, len(tokens))
                self.keep(entry, tokens)
                self.seen["evicted"] += 1
            region = books.regions.take(claim, stream)
            assert region == source
            self.spend(books, claim)
        books.device.spoil(region)
        return region

    @precondition(lambda self: any(self.at_home()))
    @rule(data=st.data(), count=st.integers(1, 6))
    def generate(self, data: st.DataObject, count: int) -> None:
        stream = data.draw(st.sampled_from(list(self.at_home())))
        stop = min(len(stream.tokens) + count, POSITIONS)
        stream.tokens += [stop % 3] * (stop - len(stream.tokens))
        self.feed(stream)

    def feed(self, stream: Stream) -> None:
        books = self.books[stream.model]
        region = books.regions.region_of(stream)
        assert region is not None
        books.device.feed(region, stream.tokens, stream.fed)
        stream.fed = len(stream.tokens)

    @precondition(lambda self: any(self.idle()))
    @rule(data=st.data(), cut=st.integers(0, 2))
    def end(self, data: st.DataObject, cut: int) -> None:
        """A stream ends; its last rows may be junk."""
        stream = data.draw(st.sampled_from(list(self.idle())))
        books = self.books[stream.model]
        books.streams.remove(stream)
        if books.regions.region_of(stream) is None:
            if stream.entry is not None:
                self.bank.parked(stream.entry)
                self.kept[stream.entry] = stream.tokens[: stream.fed]
            return
        tokens = stream.tokens[: max(0, stream.fed - cut)]
        claim = books.regions.park(stream, tokens)
        assert (claim is None) == (not tokens)
        if claim is not None:
            assert claim not in books.stale
            books.claims[claim] = tokens

    @precondition(lambda self: any(books.claims for books in self.books.values()))
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        books, claim = self.some_claim(data)
        books.regions.touch(claim)
        assert books.regions.claims()[-1] == claim
        if books.pins[claim] and data.draw(st.booleans()) and not self.moved(claim):
            books.regions.unpin(claim)
            books.pins[claim] -= 1
        else:
            books.regions.pin(claim)
            books.pins[claim] += 1
            with pytest.raises(ValueError, match="is pinned"):
                books.regions.take(claim, Stream("", [0]))

    @precondition(lambda self: any(books.claims for books in self.books.values()))
    @rule(data=st.data(), leaving=st.booleans())
    def copy_out(self, data: st.DataObject, leaving: bool) -> None:
        """A parked region's rows begin to move to the bank; it may still be adopted, or is nobody's."""
        books, claim = self.some_claim(data)
        model, tokens = books.device.model, books.claims[claim]
        entry = None if leaving and books.pins[claim] else self.open(model, len(tokens))
        if entry is None:
            return
        region = books.regions.region_of(claim)
        assert region is not None
        move = Move(model, region, entry, tokens)
        if leaving:
            assert books.regions.leave(claim) == region
            self.spend(books, claim)
        else:
            books.regions.pin(claim)
            books.pins[claim] += 1
            move.claim = claim
        self.moves.append(move)

    @precondition(lambda self: self.moves)
    @rule(data=st.data())
    def carry(self, data: st.DataObject) -> None:
        """One slice of a move; at its end, what was waited for."""
        move = data.draw(st.sampled_from(self.moves))
        books = self.books[move.model]
        if move.claim is not None and books.regions.region_of(move.claim) is None:
            self.moves.remove(move)  # adopted meanwhile, so the region's rows may have changed
            self.bank.close(move.entry)
            self.seen["overtaken"] += 1
            return
        if move.stream is not None and move.told != [True]:
            self.wait_for_file(data, move, move.stream)
            return
        stop = min(move.done + SLICE, len(move.tokens))
        if move.stream is not None:
            assert not move.entry.dropped
            books.device.write(move.region, move.entry, move.done, stop)
        else:
            books.device.read(move.region, move.entry, move.done, stop)
        move.done = stop
        if stop == len(move.tokens):
            self.moves.remove(move)
            self.arrived(books, move)

    def wait_for_file(self, data: st.DataObject, move: Move, stream: Stream) -> None:
        while not move.told:
            assert move.entry.fetching
            self.work(data.draw(FATES))
        assert move.told == [move.entry.in_memory]
        if not move.entry.in_memory:
            assert move.entry.dropped
            self.moves.remove(move)
            self.bank.unpin(move.entry)
            stream.arriving = False
            self.feed(stream)

    def work(self, fate: str) -> None:
        """The writer is through with its job, if it has one."""

    def arrived(self, books: Books, move: Move) -> None:
        if move.stream is not None:
            move.stream.arriving = False
            move.stream.fed = len(move.tokens)
            self.bank.unpin(move.entry)
            assert move.entry.dropped == (move.entry.closing and not move.entry.pins)
            self.seen["came from the bank"] += 1
            return
        self.keep(move.entry, move.tokens)
        if move.claim is not None:
            books.regions.unpin(move.claim)
            books.pins[move.claim] -= 1
        else:
            books.regions.release(move.region)

    @precondition(lambda self: not self.moves and any(books.full() for books in self.books.values()))
    @rule(data=st.data())
    def switch_out(self, data: st.DataObject) -> None:
        """All of a model's rows go to the bank, those of live streams first, and its regions are gone."""
        model = data.draw(st.sampled_from([model for model, books in self.books.items() if books.full()]))
        books = self.books[model]
        for stream in books.streams:
            region = books.regions.region_of(stream)
            if region is None or not stream.fed:
                continue
            stream.entry = self.open(model, stream.fed, live=True)
            if stream.entry is None:
                stream.fed = 0  # it keeps only its tokens
                continue
            books.device.read(region, stream.entry, 0, stream.fed)
            self.supersede(stream.entry, stream.tokens[: stream.fed])
        for claim in list(books.claims):
            entry = self.open(model, len(books.claims[claim]))
            if entry is not None:
                source = books.regions.region_of(claim)
                assert source is not None
                books.device.read(source, entry, 0, entry.positions)
                self.keep(entry, books.claims[claim])
            self.spend(books, claim)
        books.regions = Regions(MODELS[model])
        books.device = Device(model)
        books.pins.clear()
        self.seen["switched"] += 1

    @precondition(lambda self: any(stream.entry for stream in self.idle()))
    @rule(data=st.data())
    def come_home(self, data: st.DataObject) -> None:
        """A stream whose rows are in the bank gets a region again."""
        stream = data.draw(st.sampled_from([stream for stream in self.idle() if stream.entry]))
        region = self.region_for(stream)
        if region is None:
            return
        assert stream.entry is not None
        self.books[stream.model].device.write(region, stream.entry, 0, stream.fed)
        self.bank.close(stream.entry)
        self.bank.close(stream.entry)
        stream.entry = None
        self.seen["came home"] += 1

    @precondition(lambda self: len(self.kept) > 3)
    @rule(model=st.sampled_from(sorted(MODELS)))
    def flush(self, model: str) -> None:
        gone = [entry for entry in self.kept if entry.model == model]
        assert self.bank.flush(model) == len(gone)
        for entry in gone:
            assert entry.dropped == (not entry.pins)
            del self.kept[entry]

    # ---- What it takes

    def at_home(self) -> Iterator[Stream]:
        """Streams that may be fed."""
        return (s for s in self.idle() if self.books[s.model].regions.region_of(s) is not None)

    def idle(self) -> Iterator[Stream]:
        """Streams that no move waits for."""
        return (stream for books in self.books.values() for stream in books.streams if not stream.arriving)

    def some_claim(self, data: st.DataObject) -> tuple[Books, Claim]:
        return data.draw(
            st.sampled_from([(books, claim) for books in self.books.values() for claim in books.claims])
        )

    def moved(self, claim: Claim) -> bool:
        return any(move.claim == claim for move in self.moves)

    def open(self, model: str, positions: int, *, live: bool = False) -> Banked | None:
        possible = self.there_is_room(positions * sum(ROW_BYTES[model]))
        before = len(self.kept)
        entry = self.bank.open(model, "device", ROW_BYTES[model], positions, live=live)
        assert (entry is not None) == possible
        if entry is None:
            assert len(self.kept) == before
            self.seen["no room"] += 1
        elif len(self.kept) < before:
            assert not any(entry.droppable and entry.in_memory and entry.path for entry in self.kept)
        return entry

    def there_is_room(self, wanted: int) -> bool:
        parked = sum(entry.bytes for entry in self.kept if entry.in_memory and not entry.pins)
        return self.bank.used - parked + wanted <= self.bank.limit

    def fetch(self, entry: Banked) -> list[bool]:
        there = entry.in_memory
        coming = entry.fetching or self.there_is_room(entry.bytes)
        told: list[bool] = []
        self.bank.fetch(entry, told.append)
        assert told == ([True] if there else [] if coming else [False])
        self.seen["fetched"] += not told
        return told

    def keep(self, entry: Banked, tokens: list[int]) -> None:
        self.supersede(entry, tokens)
        self.kept[entry] = tokens

    def supersede(self, entry: Banked, tokens: list[int]) -> None:
        """Let an entry be found; those go that have an opening of its tokens, unless somebody reads them.

        Those in files go when it has its own.
        """
        going = [other for other in self.openings(entry, tokens) if other.path is None]
        self.bank.keep(entry, tokens)
        self.check_gone(going)

    def openings(self, entry: Banked, tokens: list[int]) -> list[Banked]:
        return [
            other
            for other, held in self.kept.items()
            if other is not entry
            and other.model == entry.model
            and not other.pins
            and tokens[: len(held)] == held
        ]

    def check_gone(self, going: list[Banked]) -> None:
        for other in going:
            assert other.dropped
            del self.kept[other]
            self.seen["superseded"] += 1

    def spend(self, books: Books, claim: Claim) -> None:
        del books.claims[claim]
        del books.pins[claim]
        books.stale.append(claim)

    # ---- What must be

    def check_found(self, model: str, tokens: list[int], here: int, there: int) -> None:
        """Neither is anything found that was not kept, nor missed what was."""
        books = self.books[model]
        fed = [s.tokens[: s.fed] for s in books.streams if books.regions.region_of(s) is not None]
        on_device = [*books.claims.values(), *fed]
        assert here == max((shared(tokens, held) for held in on_device), default=0)
        live = [
            stream.tokens[: stream.fed]
            for stream in books.streams
            if stream.entry is not None and stream.entry.kept
        ]
        banked = [*live, *(held for entry, held in self.kept.items() if entry.model == model)]
        assert there == max((shared(tokens, held) for held in banked), default=0)

    @invariant()
    def a_step_is_counted(self) -> None:
        type(self).steps += 1

    @invariant()
    def no_region_is_owned_twice_or_lost(self) -> None:
        for model, books in self.books.items():
            regions = books.regions
            live = [region for s in books.streams if (region := regions.region_of(s)) is not None]
            parked = [regions.region_of(claim) for claim in books.claims]
            leaving = [m.region for m in self.moves if m.model == model and not m.claim and not m.stream]
            owned = [*live, *parked, *leaving]
            assert len(set(owned)) == len(owned)
            assert set(owned) <= set(range(regions.count))
            assert (regions.live, regions.parked, regions.leaving) == (len(live), len(parked), len(leaving))
            assert regions.free == regions.count - len(owned)
            states = Counter(view.state for view in regions)
            assert states == Counter(
                free=regions.free, live=regions.live, parked=regions.parked, leaving=regions.leaving
            )

    @invariant()
    def claims_are_good_or_stale(self) -> None:
        for books in self.books.values():
            assert set(books.regions.claims()) == set(books.claims)
            for claim in books.stale:
                assert books.regions.region_of(claim) is None
                assert all(
                    other.regions.adopt(Stream("", []), claim, 0) is None for other in self.books.values()
                )
            for claim, tokens in books.claims.items():
                assert books.regions.tokens_of(claim) == tokens
            pins = {view.claim: view.pins for view in books.regions if view.claim is not None}
            assert pins == {claim: books.pins[claim] for claim in books.claims}

    @invariant()
    def every_region_holds_its_rows(self) -> None:
        for books in self.books.values():
            for stream in books.streams:
                region = books.regions.region_of(stream)
                if region is not None:
                    assert books.device.holds(region, stream.tokens[: stream.fed])
            for claim, tokens in books.claims.items():
                region = books.regions.region_of(claim)
                assert region is not None
                assert books.device.holds(region, tokens)

    @invariant()
    def every_entry_holds_its_rows(self) -> None:
        live = {s.entry: s.tokens[: s.fed] for s in self.streams() if s.entry is not None}
        assert not set(live) & set(self.kept)
        for entry, tokens in (*self.kept.items(), *live.items()):
            assert entry.tokens == tokens
        read = [(move.entry, move.tokens) for move in self.moves if move.stream is not None]
        for entry, tokens in (*self.kept.items(), *live.items(), *read):
            assert not entry.dropped or entry.damaged
            for index, layer in enumerate(entry.layers):
                assert np.array_equal(layer[: len(tokens)], rows(entry.model, tokens, index))

    def streams(self) -> Iterator[Stream]:
        return (stream for books in self.books.values() for stream in books.streams)

    @invariant()
    def no_byte_is_lost(self) -> None:
        held = [*self.kept, *(s.entry for s in self.streams() if s.entry is not None)]
        held += [move.entry for move in self.moves if move.stream is None]
        assert len(set(held)) == len(held)
        closing = {entry for entry in self.bank.entries if entry.closing}
        assert not closing & set(held)
        assert all(entry.pins for entry in closing)
        assert set(self.bank.entries) == closing | set(held)
        in_memory = [(entry, entry.layers or entry.incoming) for entry in self.bank.entries]
        in_memory = [(entry, layers) for entry, layers in in_memory if layers]
        assert all(entry.bytes == sum(layer.nbytes for layer in layers) for entry, layers in in_memory)
        assert self.bank.used == sum(entry.bytes for entry, _ in in_memory) <= self.bank.limit
        assert self.bank.dropped == self.lost


class FilesMachine(RowsMachine):
    """The bank has files, of which some get lost; a writer does its jobs when it pleases."""

    def open_spill(self) -> ManualSpill:
        self.folder = tempfile.TemporaryDirectory()
        return ManualSpill(Path(self.folder.name), FILES)

    def write_all(self) -> None:
        while self.spill is not None and self.spill.job is not None:
            self.settle(self.spill.finish())
            self.seen["written"] += 1

    def settle(self, done: SpillDone) -> Banked:
        filed = {entry for entry in self.kept if entry.path is not None}
        entry = self.bank.settle(done)
        if entry in self.kept and not (done.job.reads or done.problem):
            self.check_gone([other for other in self.openings(entry, self.kept[entry]) if other in filed])
        return entry

    @precondition(lambda self: self.spill.job is not None)
    @rule(fate=FATES)
    def work(self, fate: str) -> None:
        """The writer is through with its job; a file may have come to harm before it is read."""
        spill, before = self.spill, self.lost
        assert spill is not None
        assert spill.job is not None
        reads, path = spill.job.reads, spill.job.path
        closing = {entry for entry in self.bank.entries if entry.closing}
        harmed = reads and fate in HARMS
        if harmed:
            HARMS[fate](path)
        failed = not reads and fate in ("fails", "full")
        done = spill.fail(full=fate == "full") if failed else spill.finish()
        assert bool(done.problem) == (harmed or failed)
        entry = self.settle(done)
        if reads:
            assert entry.in_memory == (not harmed and not entry.dropped)
            assert self.lost - before == (harmed and entry not in closing)
        if not done.problem:
            self.seen["read" if reads else "written"] += 1

    @precondition(lambda self: any(not entry.in_memory for entry in self.kept))
    @rule(data=st.data())
    def look_into_a_file(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from([entry for entry in self.kept if not entry.in_memory]))
        tokens = self.kept[entry]
        self.bank.pin(entry)
        told = self.fetch(entry)
        while not told:
            assert not entry.in_memory
            self.work(data.draw(FATES))
        assert told == [entry.in_memory]
        for index, layer in enumerate(entry.layers):
            assert np.array_equal(layer, rows(entry.model, tokens, index))
        self.bank.unpin(entry)

    @invariant()
    def every_file_holds_its_rows(self) -> None:
        spill = self.spill
        assert spill is not None
        held = {entry.path: entry for entry in self.bank.entries if entry.path is not None}
        size = sum(entry.file_bytes for entry in held.values())
        if spill.job is not None and not spill.job.reads:
            assert spill.job.path not in held
            size += spill.job.size
        assert self.bank.spilled == size <= FILES
        damaged = {entry.path for entry in self.bank.entries if entry.damaged}
        assert set(held) - damaged <= spill.files <= set(held)
        for entry, tokens in self.kept.items():
            assert entry.in_memory or entry.path is not None
            if entry.path is not None:
                layers = [rows(entry.model, tokens, index) for index in range(len(entry.row_bytes))]
                assert b"".join(layer.tobytes() for layer in layers) in entry.path.read_bytes()

    def teardown(self) -> None:
        self.folder.cleanup()


USUAL = {"adopted", "forked", "no room", "switched", "came from the bank", "superseded"}
SELDOM = {"evicted", "overtaken", "came home"}


def play(machine: type[RowsMachine], examples: int, wanted: set[str]) -> None:
    machine.steps, machine.seen = 0, Counter()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=60,
            deadline=None,
            derandomize=True,
            phases=(Phase.generate, Phase.shrink),
        ),
    )
    assert wanted <= set(+machine.seen), machine.seen
    assert machine.steps >= 20 * examples, machine.steps


def test_rows_are_nobody_elses_and_never_lost() -> None:
    play(RowsMachine, 30, USUAL | {"dropped"})


def test_rows_in_files_are_right_or_missed() -> None:
    play(FilesMachine, 60, USUAL | SELDOM | {"written", "read", "fetched", "damaged"})
