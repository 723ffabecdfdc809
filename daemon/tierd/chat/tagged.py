"""Reads answers in which a thought, and each call of a tool, stands between two marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tierd.chat.arguments import ArgumentsReader, JsonArguments
from tierd.chat.calls import CallSyntax
from tierd.chat.heads import UNSURE
from tierd.chat.reasoning import Stage, ThoughtMarks
from tierd.chat.reply import Arguments, Called, Piece, Said, Thought
from tierd.chat.scanning import Marks, Scanner, ValueEnd
from tierd.chat.tools import Tool


class TaggedParser(Scanner):
    """See ReplyParser.

    Before its first text an answer may have thoughts, whoever asked for them. Once it has text or calls, the
    marks of a thought are text too, or end the answer if it is `guarded`. White space around thoughts and
    calls is nobody's. What looks like a call is text until a known tool's name and the beginning of its
    arguments have come; from then on it is one, whatever follows.
    """

    def __init__(
        self,
        *,
        marks: ThoughtMarks,
        calls: CallSyntax,
        tools: Mapping[str, Tool],
        parallel: bool,
        guarded: bool,
        stage: Stage,
        identify: Callable[[], str],
        forced: bool = False,
        strict: bool = False,
    ) -> None:
        """`tools`: by name. parallel: the first call does not end the answer. identify: makes a call's id.

        forced: a grammar allows calls alone: what is no call is the beginning of one that was cut off.
        strict: so it does behind a call that began with a mark by which it can be held.
        """
        states = {
            "opening": self._opening,
            "thought": self._untitled,
            "behind": self._opening,
            "content": self._content,
        }
        super().__init__(states[stage])
        self.thinking = stage == "thought"
        self._thought = marks
        self._syntax = calls
        self._tools = tools
        self._parallel = parallel
        self._identify = identify
        self._forced = forced
        self._leads = calls.leads if strict else {}
        self._held = False  # the call obeys a grammar, which allows calls alone behind it
        around = (marks.start, marks.end)
        self._leading = Marks(around)
        self._begins = calls.begin if tools else ()
        within = (*self._begins, *(around if guarded else ()))
        self._within = Marks(within) if within else None
        self._behind = stage == "behind"  # white space that comes next is nobody's
        self._head = 0  # where a call's head begins
        self._enough = 0  # characters with which it is looked at
        self._count = 0
        self._reader: ArgumentsReader = JsonArguments()
        self._object: ValueEnd | None = None
        self._after = Marks((*calls.closes, *calls.ends))

    def _opening(self, pieces: list[Piece]) -> bool:
        """Before any text: thoughts, or what tells that there are none."""
        rest = self._text.lstrip()
        mark = self._leading.match(rest) if rest else ""
        if mark:
            self._skip(len(self._text) - len(rest) + len(mark))
            self._behind = True
            if mark == self._thought.start:
                self.thinking = True
                self._state = self._untitled
            return True
        if mark == "" and not self._over:
            return False
        if self._behind and not self._skip_space():
            return False
        self._state = self._beginning
        return True

    def _untitled(self, pieces: list[Piece]) -> bool:
        """Behind the first mark of a thought."""
        title = self._thought.title
        if not self._skip_space():
            return False
        if title.startswith(self._text) and self._text != title and not self._over:
            return False
        self._skip(len(title) if self._text.startswith(title) else 0)
        self._state = self._unbegun
        return True

    def _unbegun(self, pieces: list[Piece]) -> bool:
        """Before a thought's first letter."""
        if not self._skip_space():
            return False
        self._state = self._thinking
        return True

    def _thinking(self, pieces: list[Piece]) -> bool:
        end = self._thought.end
        place = self._text.find(end)
        if place >= 0:
            self._think(pieces, len(self._text[:place].rstrip()))
            self._skip(len(self._text) - len(self._text.lstrip()) + len(end))
            self._behind = True
            self.thinking = False
            self._state = self._opening
            return True
        count = len(self._text)
        if not self._over:
            count = len(self._text[: count - self._leading.held(self._text)].rstrip())
        self._think(pieces, count)
        return False

    def _think(self, pieces: list[Piece], count: int) -> None:
        text = self._skip(count)
        if text:
            pieces.append(Thought(text))

    def _beginning(self, pieces: list[Piece]) -> bool:
        """At the first text, which may be a call without a mark."""
        if self._tools and self._syntax.bare:
            if not self._text.strip() and not self._over:
                return False
            if self._text.lstrip().startswith("{"):
                self._head = 0
                self._state = self._called
                return True
        self._state = self._content
        return True

    def _content(self, pieces: list[Piece]) -> bool:
        if self._within is None:
            self._say(pieces, len(self._text))
            return False
        found = self._within.search(self._text)
        if found is None:
            count = len(self._text)
            if not self._over:
                count -= self._within.held(self._text)
                if self._begins:
                    count = len(self._text[:count].rstrip())
            self._say(pieces, count)
            return False
        if found[0] in self._begins:
            self._say(pieces, len(self._text[: found.start()].rstrip()))
            self._head = len(self._text) - len(self._text.lstrip()) + len(found[0])
            self._held = found[0] in self._leads
            self._state = self._called
            return True
        self._say(pieces, found.start())
        self.ended = True
        return False

    def _say(self, pieces: list[Piece], count: int) -> None:
        at = self._at
        text = self._skip(count)
        if text and not self._forced:
            pieces.append(Said(text, at=at))

    def _called(self, pieces: list[Piece]) -> bool:
        """Where a call may begin; what stands before `_head` is text if it does not."""
        if len(self._text) < self._enough and not self._over:
            return False
        head = self._syntax.read(self._text[self._head :])
        if head == UNSURE and not self._over:
            # A long head is read anew once it has grown by a part, so that all readings together stay few.
            self._enough = len(self._text) + len(self._text) // 256 * 32
            return False
        self._enough = 0
        if head is None or head == UNSURE or head.name not in self._tools:
            self._say(pieces, self._head)
            self._state = self._content
            return True
        pieces.append(Called(self._count, self._identify(), head.name))
        self._object = ValueEnd(head.depth) if head.depth else None
        if head.start < 0:
            pieces.append(Arguments(self._count, "{}"))
            self._skip(self._head + self._text[self._head :].index("{") + 1)
            self._state = self._object_rest
            return True
        self._skip(self._head + head.start)
        schema = self._tools[head.name].schema
        self._reader = self._syntax.arguments(schema) if head.own else JsonArguments()
        self._state = self._arguments
        return True

    def _arguments(self, pieces: list[Piece]) -> bool:
        text, rest = self._reader.feed(self._skip(len(self._text)))
        if rest is None and self._over:
            text += self._reader.finish()
        if text:
            pieces.append(Arguments(self._count, text))
        if rest is None:
            return False
        self._text = rest
        self._at -= len(rest)
        self._state = self._object_rest
        return True

    def _object_rest(self, pieces: list[Piece]) -> bool:
        """Behind the arguments, up to the end of the object that they stand in."""
        if self._object is not None:
            end = self._object.feed(self._text)
            self._skip(len(self._text) if end < 0 else end)
            if end < 0:
                return False
        self._count += 1
        self._forced |= self._held
        self.ended = not self._parallel
        self._state = self._between
        return not self.ended

    def _between(self, pieces: list[Piece]) -> bool:
        """Behind a call: what closes it, and perhaps another."""
        if not self._skip_space():
            return False
        syntax = self._syntax
        if syntax.separator and self._text.startswith(syntax.separator):
            self._skip(len(syntax.separator))
            self._head = 0
            self._state = self._called
            return True
        mark = self._after.match(self._text)
        if mark:
            self._skip(len(mark))
            self.ended = mark in syntax.ends
            return not self.ended
        if mark == "":  # an answer that is cut off here has the beginning of what closes a call, and no text
            return False
        self._state = self._content
        return True
