"""Memory that the driver offers, which is below the round figure of the box on most boards."""

from __future__ import annotations

from predictor.hardware.gpu import list_gpus, load_gpu

#: MiB that nvidia-smi prints as memory.total, ECC as the board is delivered.
DRIVER_MIB = {
    "a10": 23028, "a30": 24576, "a40": 46068, "a100-pcie-80gb": 81920, "a100-sxm-80gb": 81920, "b200-sxm": 183359,
    "b300-sxm": 275040, "gb200": 189471, "gb300": 284208, "h100-nvl": 95830, "h100-sxm": 81559, "h20-sxm": 97871,
    "h200-sxm": 143771, "h800-sxm": 81559, "l20": 46068, "l4": 23034, "l40": 46068, "l40s": 46068, "rtx-3090": 24576,
    "rtx-4090": 24564, "rtx-5090": 32607, "rtx-6000-ada": 49140, "rtx-a6000": 49140, "rtx-pro-6000-server": 97887,
    "t4": 15360, "v100-sxm-32gb": 32510,
}  # fmt: skip


def test_boards_have_what_the_driver_offers() -> None:
    found = {name: load_gpu(name).memory_capacity / 2**20 for name in DRIVER_MIB}
    assert found == DRIVER_MIB


def test_a_value_of_the_driver_says_so_and_keeps_what_the_data_sheet_says() -> None:
    for name in DRIVER_MIB:
        source = load_gpu(name).sources["memory_capacity"]
        assert "nvidia-smi" in source or "aiconfigurator" in source, f"{name}: {source}"
    unread = {name for name in list_gpus() if "unverified" in load_gpu(name).sources["memory_capacity"]}
    assert unread <= {"h100-pcie", "mi210", "mi250x", "mi300x", "v100-sxm-16gb"}
