from __future__ import annotations

from pathlib import Path

from live import Gated, Live, serve, wait_until


def test_health_lists_the_models_that_answer(live: Live) -> None:
    health = live.get("/health").json()
    assert health["status"] == "ok"
    assert sorted(health["models"]) == ["plain", "tiny"]


def test_without_a_model_everything_is_unavailable_and_says_when_to_come_back(tmp_path: Path) -> None:
    with serve([]) as live:
        for response in (live.get("/health"), live.post("/v1/completions", {"prompt": "a"})):
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) > 0
            assert response.json()["error"]["code"] == "unavailable"
        assert live.get("/v1/models").json() == {
            "object": "list",
            "data": [],
            "has_more": False,
            "first_id": None,
            "last_id": None,
        }


def test_health_waits_for_no_step(gated: Gated) -> None:
    with gated.live.send("/v1/completions", {"prompt": [1], "ignore_eos": True}):
        wait_until(lambda: gated.live.engine.snapshot.models["tiny"].running == 1)
        assert gated.live.get("/health").status_code == 200
