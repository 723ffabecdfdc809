"""From bytes to bytes, over the host backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from live import Live, serve
from tierd.backends.host import HostBackend
from tierd.settings import ModelSettings


@contextmanager
def host_server(model: ModelSettings) -> Iterator[Live]:
    backend = HostBackend(2)
    try:
        with serve([model], backend=backend) as live:
            yield live
    finally:
        backend.close()


def test_a_tiny_model_answers(tiny_model: ModelSettings) -> None:
    with host_server(tiny_model) as live, live.client() as client:
        arguments = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "the of and"}],
            "max_tokens": 16,
            "seed": 5,
            "extra_body": {"ignore_eos": True},
        }
        whole = client.chat.completions.create(**arguments)
        chunks = list(client.chat.completions.create(stream=True, **arguments))
    assert whole.usage.completion_tokens == 16
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    )


def test_a_real_model_knows_its_capitals(smollm2_path: Path) -> None:
    model = ModelSettings(id="smollm2", path=smollm2_path, default=True, context=512, streams=1)
    with host_server(model) as live, live.client() as client:
        completion = client.completions.create(
            model="smollm2", prompt="The capital of France is", max_tokens=3, temperature=0
        )
        assert completion.choices[0].text.startswith(" Paris")
