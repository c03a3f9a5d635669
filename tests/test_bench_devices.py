"""Weak scaling: what is measured on each number of devices."""

import pytest

from purejaxrl_scale import bench_devices, cli
from purejaxrl_scale.config import AlgorithmConfig, Config, EnvironmentConfig, MonitorsConfig, NetworkConfig

CONFIG = Config(
    total_steps=10_000,
    environment=EnvironmentConfig(num_envs=16),
    network=NetworkConfig(widths=(8,)),
    algorithm=AlgorithmConfig(rollout_length=4, minibatch_size=32, epochs=1),
    monitors=MonitorsConfig(samples=64),
)


def test_each_device_keeps_its_work_and_only_several_pay_for_collectives():
    one, two = bench_devices.measure(CONFIG, [1, 2], seconds=0.0)
    assert (one.devices, one.num_envs, one.minibatch_size, one.efficiency) == (1, 16, 32, 1.0)
    assert (two.devices, two.num_envs, two.minibatch_size) == (2, 32, 64)
    assert two.efficiency == pytest.approx(two.steps_per_second / (2 * one.steps_per_second))
    assert two.collectives > one.collectives


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ("2,1", "in rising order"),
        ("two", "in rising order"),
        ("0", "in rising order"),
        ("1,3", "3 does not divide 8"),
        ("16", "16 does not divide 8"),
    ],
)
def test_numbers_of_devices_that_make_no_sense_are_refused(counts, expected, capsys, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
    monkeypatch.setenv("NPROC", "16")
    assert cli.main(["bench", "cartpole", "--devices", counts]) == 2
    assert expected in capsys.readouterr().err
