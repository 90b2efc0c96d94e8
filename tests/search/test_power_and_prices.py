"""Joules and dollars of plans and of boards side by side."""

import json

import pytest

from predictor import RequestError
from predictor.cli.main import main
from predictor.cli.prices import read_prices, source_of
from predictor.hardware.gpu import load_gpu
from predictor.kernels.energy import rates

PLAN = ["plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--num-gpus", "8", "--global-batch", "32", "--json"]
COMPARE = ["compare", "--model", "llama-3.1-8b", "--gpu", "h100,a100", "--mode", "decode", "--batch", "32", "--json"]


def asked(words, capsys):
    assert main(words) == 0
    return json.loads(capsys.readouterr().out)


def prices(tmp_path, text):
    path = tmp_path / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_plan_for_energy_lists_the_thriftiest_first(capsys):
    plans = asked([*PLAN, "--objective", "energy", "--top", "6"], capsys)["plans"]
    joules = [plan["energy_j"] for plan in plans]
    assert joules == sorted(joules)
    for plan in plans:
        assert plan["power_w"] * plan["latency_ms"] / 1e3 == pytest.approx(plan["energy_j"])
        assert plan["joule_per_token"] == pytest.approx(plan["energy_j"] / (32 * 2048))


def test_a_pipeline_does_the_same_flops_for_no_less_energy(capsys):
    first, piped = (
        asked([*PLAN, "--power", "--only", f"pp={pp}", "--only", "tp=1", "--top", "1"], capsys)["plans"][0]
        for pp in (1, 4)
    )
    assert first["joule_per_token"] < piped["joule_per_token"] < 1.3 * first["joule_per_token"]
    assert piped["power_w"] < first["power_w"]


def test_cost_is_the_word_for_tokens_per_dollar(capsys):
    words = [*PLAN[:6], "8,16", *PLAN[7:], "--price", "2.5"]
    cost, alias = (asked([*words, "--objective", name], capsys) for name in ("cost", "tokens-per-dollar"))
    assert cost["plans"] == alias["plans"]
    each = cost["plans"][0]
    assert each["cost_usd_per_million_tokens"] * each["tokens_per_dollar"] == pytest.approx(1e6)
    assert asked([*words, "--objective", "throughput"], capsys)["plans"] == asked(words, capsys)["plans"]
    assert main([*PLAN, "--objective", "cost"]) == 2
    assert "--objective cost: expected --price" in capsys.readouterr().err


def test_prices_of_a_file_have_its_date_and_price_goes_before_them(tmp_path, capsys):
    file = prices(tmp_path, "date: 2026-08-22\nprovider: runpod\ngpus:\n  h100: 2.5\n  a100: 1.39\n")
    boards = [load_gpu("h100"), load_gpu("a100")]
    assert read_prices((), boards, file) == {"h100-sxm": 2.5, "a100-sxm-80gb": 1.39}
    assert read_prices(("h100=3",), boards, file) == {"h100-sxm": 3.0, "a100-sxm-80gb": 1.39}
    assert source_of(file) == "runpod, 2026-08-22"
    rows = asked([*COMPARE, "--prices", file, "--power"], capsys)["rows"]
    assert {row["price_usd_per_gpu_hour"] for row in rows} == {2.5, 1.39}
    assert {row["price_source"] for row in rows} == {"runpod, 2026-08-22"}
    assert all(row["forecast"]["joule_per_token"] > 0.0 for row in rows)
    assert main([*COMPARE[:-1], "--prices", file, "--power"]) == 0
    shown = capsys.readouterr().out
    assert "J/token" in shown
    assert "Prices: runpod, 2026-08-22" in shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("h100: 2.5\n", "expected lines 'date: 2026-11-28'"),
        ("provider: a\ngpus:\n  h100: 2.5\n", "date None: expected a day"),
        ("date: soon\nprovider: a\ngpus:\n  h100: 2.5\n", "date 'soon': expected a day"),
        ("date: 2026-08-22\ngpus:\n  h100: 2.5\n", "expected a provider"),
        ("date: 2026-08-22\nprovider: a\ngpus:\n  h100: -1\n", "'-1' is no price of h100"),
        ("date: 2026-08-22\nprovider: a\ngpus:\n  h100: 1\n  h100-sxm: 2\n", "h100-sxm has two prices"),
        ("date: 2026-08-22\nprovider: a\ngpus:\n  b200: 5\n", "no price of a GPU that is compared (h100-sxm)"),
    ],
)
def test_a_file_of_prices_that_is_none_is_one_line(tmp_path, text, says):
    with pytest.raises(RequestError) as error:
        read_prices((), [load_gpu("h100")], prices(tmp_path, text))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


SERVE = ["serve", "plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--num-gpus", "4", "--isl", "2000", "--json"]
SERVE += ["--osl", "200", "--tpot", "30ms", "--execution", "vllm", "--simulate", "0", "--top", "20"]


def test_deployments_draw_between_idle_and_their_limit_and_energy_ranks_them(capsys):
    plans = asked([*SERVE, "--objective", "energy"], capsys)["plans"]
    joules = [plan["joule_per_token"] for plan in plans]
    assert len(plans) > 3
    assert joules == sorted(joules)
    for plan in plans:
        assert plan["joule_per_token"] == pytest.approx(plan["power_w"] / plan["output_tokens_per_s"])
        assert 70.0 * plan["gpus"] < plan["power_w"] <= 700.0 * plan["gpus"]
    assert {plan["kind"] for plan in plans} == {"together", "disaggregated"}


def test_deployments_that_wait_draw_less_and_a_token_costs_more(capsys):
    full, half = (
        asked([*SERVE, "--power", "--disaggregated", "never", *more], capsys)["plans"][0]
        for more in ([], ["--rate", "5"])
    )
    assert half["power_w"] < full["power_w"]
    assert half["joule_per_token"] > full["joule_per_token"]
    rare = asked([*SERVE, "--power", "--price", "h100=3", "--rate", "0.01"], capsys)["plans"]
    waiting_w = rates(load_gpu("h100")).waiting_w
    for plan in rare:
        assert plan["power_w"] == pytest.approx(plan["gpus"] * waiting_w, rel=0.1)
        assert plan["joule_per_token"] == pytest.approx(plan["power_w"] / (0.01 * 200))
        assert plan["cost_usd_per_million_tokens"] == pytest.approx(plan["gpus"] * 3 / 3600 / (0.01 * 200) * 1e6)


def test_deployments_are_listed_by_what_is_asked(tmp_path, capsys):
    file = prices(tmp_path, "date: 2026-08-22\nprovider: runpod\ngpus:\n  h100: 2.5\n")
    answer = asked([*SERVE, "--objective", "cost", "--prices", file], capsys)
    costs = [plan["cost_usd_per_million_tokens"] for plan in answer["plans"]]
    assert costs == sorted(costs)
    assert answer["price_source"] == "runpod, 2026-08-22"
    assert answer["plans"][0]["power_w"] is None
    times = [plan["tpot_ms"] for plan in asked([*SERVE, "--objective", "time"], capsys)["plans"]]
    assert times == sorted(times)
    assert main([*SERVE, "--objective", "cost"]) == 2
    assert "--objective cost: expected --price" in capsys.readouterr().err
