"""Makes hostile HTTP requests, a given number from a given seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

POSTS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings",
    "/tokenize", "/detokenize", "/apply-template",
)  # fmt: skip
GETS = ("/v1/models", "/v1/models/tiny", "/health", "/nowhere", "/v1/chat/completions")

SOUND: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "the one"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "the one", "max_tokens": 2},
    "/v1/embeddings": {"input": ["the one", "the other"]},
    "/tokenize": {"content": "the one"},
    "/detokenize": {"tokens": [5, 6, 7]},
    "/apply-template": {"messages": [{"role": "user", "content": "the one"}]},
}

# As JSON: much of it no Python value could be written as.
VALUES = (
    "null", "true", "-1", "0", "1", "3", "0.5", "-0.0", "1e999", "-1e999", "1" + "0" * 400, "1e-400",
    "1e-45", "NaN", "2147483648", "-9223372036854775809", "18446744073709551616", '""', '"x"',
    '"' + "a" * 3000 + '"',
    r'"\u0000"', r'"\ud800"', r'"\udc00\ud800"', '"\U0001f642\u2028"', "[]", "{}", "[[]]", "[null]", "[1]",
    "[-1]", "[1e999]", '["a"]', '["", ""]', '[{"type": "text"}]', '[{"type": "image_url", "text": "x"}]',
    '{"": null}', '{"5": 1e999}', '{"type": "json_object"}', '{"include_usage": 3}', '[{"role": "user"}]',
    '[{"role": "king", "content": "x"}]', '[{"role": "user", "content": [{"type": "text", "text": 5}]}]',
    '[{"role": 5, "content": null}]', "[" * 50 + "]" * 50,
    '["' + '", "'.join("abcdefghijklmnopqrstuvw") + '"]',
)  # fmt: skip

FIELDS = (
    "model", "messages", "prompt", "content", "tokens", "stream", "stream_options", "max_tokens", "stop",
    "seed", "max_completion_tokens", "temperature", "top_p", "min_p", "top_k", "ignore_eos", "n", "logprobs",
    "top_logprobs", "logit_bias", "allowed_token_ids", "presence_penalty", "frequency_penalty",
    "repeat_penalty", "tools", "response_format", "echo", "suffix", "add_special", "parse_special", "user",
    "best_of", "input", "encoding_format", "dimensions", "\ud83d", "",
)  # fmt: skip

PATHS = (
    b"/%", b"/%zz", b"/%00", b"/%ff%fe", b"/..%2f..%2fetc", b"//", b"///v1//models", b"/v1/models/%2e%2e/x",
    b"/v1/models/" + b"a" * 9000, b"/v1/models/tiny?x=%", b"/health?" + b"&" * 500, b"/health#x", b"*",
    b"health", b"http://elsewhere/health", b"http://[::1", b"/\x80\xff", b"/\xc3\xa9",
    b"/v1/models/%F0%9F%99%82",
    b"/a\tb", b"/;;;", b"/v1/models/%0d%0aX: y", b"/\\..\\", b"/" + b"%41" * 3000, b"/v1/models/\x7f",
    b"", b"/?",
)  # fmt: skip

LENGTHS = (
    b"-1", b"+5", b"0x5", b"5, 5", b"5 5", b"", b"1e3", b"99999999999999999999999999",
    b"18446744073709551616", b"4294967297", b"1099511627776", b"9000000", "５".encode(), b"\xb2",
)  # fmt: skip

CHUNKS = (
    b"zz\r\n", b"-1\r\nx\r\n", b"ffffffffffffffffff\r\nx", b"5\r\nabcdefgh\r\n", b"0\r\nA: b\r\n\r\n",
    b"3;" + b"x" * 3000 + b"\r\nabc\r\n0\r\n\r\n", b"2\r\n{}\r\n0\r\n\r\n", b"\r\n\r\n", b"2\n{}\n0\n\n",
    b"0\r\n\r\n",
)  # fmt: skip

HEADERS = (
    b"Host", b": no name", b"Sp ace: x", b"A: b\x00c", b"A:\r\n folded", b"A: " + b"b" * 20_000,
    b"Expect: 100-continue",
    b"Expect: everything", b"Content-Encoding: gzip", b"Content-Type: \xff\xfe", b"Authorization: Basic \xff",
    b"Connection: close", b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x",
    b"Connection: \xff",
    b"Connection: upgrade\r\nUpgrade: h2c", b"Transfer-Encoding: gzip",
    b"Transfer-Encoding: chunked, chunked",
    b"Host: a\r\nHost: b", b"X-Request-Id: \r", b"Cookie: " + b"c=d;" * 500, b"Accept: \x01",
    b"Keep-Alive: 99999999",
    b"Range: bytes=9-1", b"Accept-Encoding: br;q=9", b"X" * 5000 + b": y", b"\xc3\xa9: y", b"Origin: null",
)  # fmt: skip

METHODS = (
    b"BREW", b"get", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE", b"PATCH", b"CONNECT", b"PRI",
    b"G" * 4000,
    b"", b"\x00", b"GET\t", b"POST", b"PROPFIND", b"\x16\x03\x01\x02\x00\x01\x00",
)  # fmt: skip

VERSIONS = (
    b"HTTP/1.0",
    b"HTTP/0.9",
    b"HTTP/2.0",
    b"HTTP/9.9",
    b"HTTP/1.1 ",
    b"HTP/1.1",
    b"",
    b"HTTP/1.",
    b"\xff",
)


@dataclass(frozen=True)
class Attempt:
    """What one connection is used for.

    data: sent at once. requests: how many there are in it. answers: how many must come; None: any number,
    and the connection may be closed on us at any time. head: the last one is a HEAD. drops: do not wait for
    an answer but go away.
    """

    name: str
    data: bytes
    requests: int = 1
    answers: int | None = 1
    head: bool = False
    drops: bool = False


def attempts(count: int, seed: int) -> Iterator[Attempt]:
    """Yield attempts that hold `count` requests or a few more; the same ones for the same seed."""
    rng = random.Random(seed)
    makers = [maker for maker, weight in _WEIGHTS for _ in range(weight)]
    turn = 0
    while count > 0:
        attempt = makers[turn % len(makers)](rng)
        yield attempt
        count -= attempt.requests
        turn += 1


def post(path: str, body: bytes, *headers: bytes) -> bytes:
    """Return a sound POST request."""
    lines = [f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}".encode(), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def get(path: str, *headers: bytes) -> bytes:
    """Return a sound GET request."""
    return b"\r\n".join([f"GET {path} HTTP/1.1\r\nHost: x".encode(), *headers]) + b"\r\n\r\n"


def _some_post(rng: random.Random) -> tuple[str, bytes]:
    path = rng.choice(POSTS)
    return path, json.dumps(SOUND[path]).encode()


def _wrong_field(rng: random.Random) -> Attempt:
    """Set some fields to values of any kind; a field may come twice."""
    path = rng.choice(POSTS)
    members = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in SOUND[path].items()]
    for _ in range(rng.randint(1, 3)):
        members.append(f"{json.dumps(rng.choice(FIELDS))}: {rng.choice(VALUES)}")
    rng.shuffle(members)
    return Attempt("wrong field", post(path, ("{" + ", ".join(members) + "}").encode()))


def _no_json(rng: random.Random) -> Attempt:
    path, body = _some_post(rng)
    spot = rng.randrange(len(body))
    bodies = (
        b"", b"{", b"null", b"[]", b'"x"', b"5", body[:spot], body + b"}",
        body[:spot] + b"\xff" + body[spot:],
        b"\xef\xbb\xbf" + body, body.decode().encode("utf-16"), rng.randbytes(rng.randrange(300)), body * 2,
        body.replace(b'"', b"'"), body[:spot] + b"\0" + body[spot:], body.replace(b":", b": /*x*/"),
    )  # fmt: skip
    return Attempt("no JSON", post(path, rng.choice(bodies)))


def _deep(rng: random.Random) -> Attempt:
    path = rng.choice(POSTS)
    depth = rng.choice((100, 1000, 10_000, 100_000))
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}"), ('{"messages":[', "]}")))
    field = rng.choice(("messages", "prompt", "content", "tools", "logit_bias", "unheard_of"))
    value = opening * depth + "1" + closing * rng.choice((depth, depth - 1))
    return Attempt("deep", post(path, f'{{"{field}": {value}}}'.encode()))


def _strange_path(rng: random.Random) -> Attempt:
    if rng.random() < 0.5:
        raw = rng.choice(PATHS)
    else:
        raw = b"/" + bytes(rng.choice(b"%/?#.;@:[]az09\\\x80\xffA") for _ in range(rng.randrange(60)))
    return Attempt("strange path", b"GET " + raw + b" HTTP/1.1\r\nHost: x\r\n\r\n", answers=None)


def _strange_method(rng: random.Random) -> Attempt:
    method, path, version = rng.choice(METHODS), rng.choice((*GETS, *POSTS)).encode(), b"HTTP/1.1"
    if rng.random() < 0.3:
        version = rng.choice(VERSIONS)
    data = method + b" " + path + b" " + version + b"\r\nHost: x\r\n\r\n"
    return Attempt("strange method", data, answers=None, head=method == b"HEAD")


def _strange_header(rng: random.Random) -> Attempt:
    headers = [rng.choice(HEADERS) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.5:
        path, body = _some_post(rng)
        return Attempt("strange header", post(path, body, *headers), answers=None)
    return Attempt("strange header", get(rng.choice(GETS), *headers), answers=None)


def _header_flood(rng: random.Random) -> Attempt:
    count, size = rng.choice(((20_000, 1), (300, 400), (5, 60_000), (1, 300_000), (1000, 20)))
    flood = [b"X-%d: " % index + b"a" * size for index in range(count)]
    return Attempt("header flood", get("/health", *flood), answers=1)


def _strange_length(rng: random.Random) -> Attempt:
    path, body = _some_post(rng)
    length = rng.choice(LENGTHS)
    data = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: ".encode() + length + b"\r\n"
    if rng.random() < 0.3:
        data += rng.choice((b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n"))
    return Attempt("strange length", data + b"\r\n" + body, answers=None)


def _short_length(rng: random.Random) -> Attempt:
    """Say fewer bytes than come: the rest is taken for the next request."""
    path, body = _some_post(rng)
    length = rng.randrange(len(body))
    data = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode() + body
    return Attempt("short length", data, answers=None)


def _strange_chunks(rng: random.Random) -> Attempt:
    path = rng.choice(POSTS)
    data = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return Attempt("strange chunks", data + rng.choice(CHUNKS) + rng.choice(CHUNKS), answers=None)


def _garbage(rng: random.Random) -> Attempt:
    return Attempt("garbage", rng.randbytes(rng.choice((1, 10, 100, 5000))) + b"\r\n\r\n", answers=None)


def _pipelined(rng: random.Random) -> Attempt:
    """Many requests at once; all of them sound as HTTP, so all are answered."""
    parts = []
    for _ in range(rng.randint(2, 20)):
        kind = rng.random()
        if kind < 0.4:
            parts.append(get(rng.choice(GETS)))
        elif kind < 0.8:
            parts.append(post(rng.choice(POSTS), b'{"content": ' + rng.choice(VALUES).encode() + b"}"))
        else:
            parts.append(post(*_some_post(rng)))
    return Attempt("pipelined", b"".join(parts), requests=len(parts), answers=len(parts))


def _half(rng: random.Random) -> Attempt:
    """Stop in the middle, and go away."""
    whole = post(*_some_post(rng)) if rng.random() < 0.7 else get(rng.choice(GETS))
    return Attempt("half", whole[: rng.randrange(len(whole))], answers=None, drops=True)


def _gone(rng: random.Random) -> Attempt:
    """Ask for something, and go away before it comes."""
    body = {**SOUND["/v1/completions"], "stream": rng.random() < 0.5, "max_tokens": 30, "ignore_eos": True}
    return Attempt("gone", post("/v1/completions", json.dumps(body).encode()), answers=None, drops=True)


def _sound(rng: random.Random) -> Attempt:
    path, body = _some_post(rng)
    if "max_tokens" in SOUND[path] and rng.random() < 0.5:
        body = body.replace(b"}", b', "stream": true}', 1) if path == "/v1/completions" else body
    return Attempt("sound", post(path, body))


_WEIGHTS: tuple[tuple[Callable[[random.Random], Attempt], int], ...] = (
    (_wrong_field, 40),
    (_no_json, 20),
    (_deep, 2),
    (_strange_path, 12),
    (_strange_method, 10),
    (_strange_header, 14),
    (_header_flood, 1),
    (_strange_length, 6),
    (_short_length, 4),
    (_strange_chunks, 8),
    (_garbage, 5),
    (_pipelined, 4),
    (_half, 8),
    (_gone, 3),
    (_sound, 6),
)
