"""A model for tests: the null executor behind a tokenizer whose tokens are bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tierd.backends.null import NullExecutor
from tierd.core import Batch, Request, SamplingParams
from tierd.errors import InvalidRequestError
from tierd.kv.bank import Bank
from tierd.kv.paged import PagedHome
from tierd.models.plan import Plan
from tierd.settings import LimitsSettings, ModelSettings
from tierd.slot import Slot

PAGE_POSITIONS = 4


class ByteTokenizer:
    """Token i below 256 is the byte i; then come the begin and the end token. See chat.tokenizer."""

    bos_id = 256
    eos_id = 257
    vocabulary = 258
    end_ids = frozenset({eos_id})

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [self.bos_id] * add_special + list(text.encode())

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocabulary:
            raise InvalidRequestError(f"token {token} is outside the vocabulary", param="tokens")
        return bytes([token]) if token < 256 else b""

    def token_text(self, token: int) -> str:
        return {self.bos_id: "<s>", self.eos_id: "</s>"}.get(token, repr(self.token_bytes(token)))


def null_slot(
    settings: ModelSettings,
    *,
    limits: LimitsSettings | None = None,
    device: str = "null",
    pages: int = 64,
    context: int = 0,
    chunk_rows: int = 16,
    prefix_cache: bool = True,
    depth: int = 1,
    bank: Bank | None = None,
    origin: str = "",
    before_step: Callable[[Batch], None] | None = None,
    executor: Callable[..., NullExecutor] = NullExecutor,
) -> Slot:
    """Return a slot of `pages` pages of four positions. context 0: as many positions as fit.

    bank: where rows of that origin may be found that no page has. executor: makes the device's.
    """
    tokenizer = ByteTokenizer()
    null = executor(
        name=device,
        pages=pages,
        page_positions=PAGE_POSITIONS,
        max_rows=chunk_rows + settings.streams,
        vocabulary=tokenizer.vocabulary,
        depth=depth,
        before_step=before_step,
    )
    return Slot(
        settings=settings,
        limits=limits or LimitsSettings(),
        plan=Plan(
            "null",
            (),
            {"hidden": null.width, "logits": tokenizer.vocabulary},
            (),
            "hidden",
            "logits",
            tokenizer.vocabulary,
            4096,
        ),
        tokenizer=tokenizer,  # type: ignore[arg-type]
        renderer=None,
        home=PagedHome(null, model=settings.id, origin=origin, bank=bank, prefix_cache=prefix_cache),
        context=context or pages * PAGE_POSITIONS,
        chunk_rows=chunk_rows,
    )


def request(
    id: str,
    prompt: Iterable[int] = b"a prompt",
    max_tokens: int = 8,
    *,
    model: str = "null",
    temperature: float = 0.0,
    seed: int = 0,
    stop: tuple[str, ...] = (),
    ignore_eos: bool = True,
) -> Request:
    """Return a request that runs to its last token unless it is told otherwise."""
    return Request(
        id=id,
        model=model,
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        sampling=SamplingParams(temperature=temperature, seed=seed),
        stop=stop,
        ignore_eos=ignore_eos,
    )
