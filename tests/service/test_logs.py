from __future__ import annotations

import io
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tierd.errors import ContextLengthExceededError, InvalidRequestError, ModelError
from tierd.service.logs import PROMPTS, Logs, is_journal, line, priority

log = logging.getLogger("tierd.test")


class Written:
    """What Logs writes."""

    def __init__(self, logs: Logs, stream: io.StringIO) -> None:
        self.logs = logs
        self._stream = stream

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@contextmanager
def written(level: str = "info", form: str = "text", *, prompts: bool = False) -> Iterator[Written]:
    stream = io.StringIO()
    with closing(Logs(stream)) as logs:
        logs.set(level=level, format=form, prompts=prompts)
        yield Written(logs, stream)


def fail(error: BaseException, cause: BaseException | None = None) -> None:
    try:
        raise error from cause
    except BaseException:
        log.exception("request=%s failed", "r1")


def test_text_has_time_level_and_message() -> None:
    with written() as log_:
        log.info("model=%s loaded in %.2f s", "smol", 1.234)
        log.debug("nothing of this")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO model=smol loaded in 1.23 s\n", log_.text)


def test_json_has_the_fields_that_the_template_names() -> None:
    before = datetime.now(UTC)
    with written(form="json") as log_:
        log.warning(
            "model=%s device=%s: %d %% in %.1f s, wait=%.1f flag=%s gone=%s path=%s",
            "smöl", "vulkan0", 40, 2.5, 3.75, True, "-", Path("/x"),
        )  # fmt: skip
        log.info("nothing=%s", "a\nb")
    first, second = log_.objects
    assert before.timestamp() - 1 <= datetime.fromisoformat(first.pop("time")).timestamp()
    assert first == {
        "level": "warning",
        "logger": "tierd.test",
        "message": "model=smöl device=vulkan0: 40 % in 2.5 s, wait=3.8 flag=True gone=- path=/x",
        "model": "smöl",
        "device": "vulkan0",
        "wait": 3.75,
        "flag": True,
        "gone": None,
        "path": "/x",
    }
    assert second["nothing"] == "a\nb"


def test_no_field_takes_the_place_of_what_every_line_has() -> None:
    with written(form="json") as log_:
        log.info("level=%s message=%s time=%s", "high", "m", 3)
    (said,) = log_.objects
    assert (said["level"], said["message"]) == ("info", "level=high message=m time=3")


def test_a_line_of_fields_alone_quotes_what_needs_it() -> None:
    with written() as log_:
        log.info(*line(request="r1", key=None, model="a=b", tokens=3, ms=1.5, error="it's gone", none=""))
    assert log_.text.endswith(""" INFO request=r1 model='a=b' tokens=3 ms=1.5 error="it's gone" none=''\n""")


HOSTILE = "a\x1b[31m\x07\x00\x7f\x85\x9b31m\u2028\u202e\ufeff\r<0>EMERG"


@pytest.mark.parametrize("prompts", [False, True])
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("in_journal", [False, True])
def test_nothing_that_is_said_looks_like_another_line_or_steers_a_terminal(
    form: str, in_journal: bool, prompts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierd.service.logs.is_journal", lambda stream: in_journal)
    with written(form=form, prompts=prompts) as log_:
        log.info("path=%s", f"{HOSTILE}\n2026-01-01 00:00:00,000 INFO outcome=stop")
        log.info(*line(model=HOSTILE.replace("\r", ""), name="x\udcff"))
        fail(ModelError(HOSTILE))
    lines = log_.text.split("\n")
    assert lines.pop() == ""
    assert all(each.isprintable() for each in lines)
    begun = [
        each for each in lines if re.match(r"(<\d>)?([\d-]{10} [\d:,]{12} )?(INFO|ERROR) |(<\d>)?\{", each)
    ]
    assert len(begun) == 3
    if in_journal:
        assert {each[:3] for each in lines} == {"<6>", "<3>"}
    if form == "json":
        said = [json.loads(each.removeprefix("<6>").removeprefix("<3>")) for each in lines]
        assert said[0]["path"].startswith(HOSTILE)
        assert said[1]["model"] == HOSTILE.replace("\r", "")
    else:
        assert r"model='a\x1b[31m\x07" in log_.text


def test_others_loggers_are_written_alike() -> None:
    with written(form="json") as log_:
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    (said,) = log_.objects
    assert (said["logger"], said["level"]) == ("uvicorn.error", "warning")
    assert said["message"] == "Invalid HTTP request received."


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_does_not_say_what_errors_of_others_say(form: str) -> None:
    with written(form=form) as log_:
        fail(ModelError("m: damaged"), KeyError("a secret word"))
        fail(InvalidRequestError("'a secret word' is no role"))
    assert "secret" not in log_.text
    assert "in fail" in log_.text
    if form == "json":
        first, second = log_.objects
        assert first["request"] == "r1"
        assert first["exception"].startswith(
            "KeyError\n\nwhich led to this:\n\nTraceback (most recent call last)"
        )
        assert first["exception"].endswith("\nModelError: m: damaged")
        assert second["exception"].endswith("\nInvalidRequestError")


def test_it_does_where_prompts_are_logged() -> None:
    with written(prompts=True) as log_:
        fail(ModelError("m: damaged"), KeyError("a secret word"))
        fail(ContextLengthExceededError("too long"))
    assert "KeyError: 'a secret word'\n" in log_.text
    assert log_.text.endswith("\nContextLengthExceededError: too long\n")


def test_of_asyncio_only_the_first_line_is_taken() -> None:
    with written() as log_:
        logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: <KeyError('secret')>")
        log_.logs.set(level="info", format="text", prompts=True)
        logging.getLogger("asyncio").error("Again\nfuture: all of it")
    assert [each.split(" ERROR ")[-1] for each in log_.text.splitlines()] == [
        "Task exception was never retrieved",
        "Again",
        "  future: all of it",
    ]


def test_prompts_are_logged_where_that_is_asked_for_alone() -> None:
    assert not PROMPTS.isEnabledFor(logging.CRITICAL)
    with written("debug") as log_:
        PROMPTS.info("one")
        log_.logs.set(level="error", format="text", prompts=True)
        PROMPTS.info("two")
        log_.logs.set(level="debug", format="text", prompts=False)
        PROMPTS.info("three")
    assert [each.split(" ")[-1] for each in log_.text.splitlines()] == ["two"]
    assert not PROMPTS.isEnabledFor(logging.CRITICAL)


def test_the_journal_gets_priorities_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        with closing(Logs(stream)) as logs:
            logs.set(level="debug", format="text", prompts=False)
            for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
                log.log(level, "said")
            fail(ModelError("m: damaged"))
            logs.set(level="debug", format="json", prompts=False)
            log.info("said")
        stream.seek(0)
        lines = stream.read().splitlines()
        assert priority(stream, logging.ERROR) == "<3>"
    assert lines[:5] == [
        "<7>DEBUG said",
        "<6>INFO said",
        "<4>WARNING said",
        "<3>ERROR said",
        "<2>CRITICAL said",
    ]
    assert all(each.startswith("<3>") for each in lines[5:-1])
    assert lines[-1].startswith('<6>{"time": ')


def test_other_streams_are_no_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_journal(io.StringIO())
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    with open(os.devnull, "w") as stream:
        assert not is_journal(stream)
        assert priority(stream, logging.ERROR) == ""
        monkeypatch.setenv("JOURNAL_STREAM", "1:2")
        assert not is_journal(stream)
