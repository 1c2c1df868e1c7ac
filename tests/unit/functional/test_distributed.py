"""Sums over processes: two of them against the numbers of both, and one, which they leave alone."""

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from two_processes import in_two_processes

from rl4dialog.core.errors import ProcessError
from rl4dialog.functional import distributed
from rl4dialog.functional.masks import whiten

VALUES = [torch.tensor([1.0, 2.5, -4.0]), torch.tensor([0.5])]
"""What each process has of some numbers."""


def test_one_process_is_left_alone():
    value, gradient = torch.tensor([1.0, 2.0]), torch.ones(2, requires_grad=True)
    gradient.grad = torch.tensor([3.0, 4.0])
    assert distributed.all_reduce(value) is value
    assert (distributed.n_processes(), distributed.process_index(), distributed.is_main_process()) == (1, 0, True)
    assert distributed.all_reduce_numbers(1, 2.5, 2**24 + 1) == [1.0, 2.5, 2**24 + 1], "float32 has no such number"
    assert (distributed.all_reduce_min(-3), distributed.all_reduce_max(-3)) == (-3, -3)
    assert distributed.all_gather_object("x") == ["x"]
    assert distributed.full_tensor(value) is value
    distributed.barrier()
    distributed.all_reduce_gradients([gradient])
    distributed.broadcast([value])
    assert gradient.grad.tolist() == [3.0, 4.0] and value.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("unbiased", [False, True])
def test_mean_and_deviation_are_those_of_numpy(unbiased):
    numbers = np.array([[1.0, 2.5], [-4.0, 0.5]], dtype=np.float32)
    mean, std = distributed.mean_and_std(numbers, unbiased)
    assert (mean, std) == pytest.approx((numbers.mean(), numbers.std(ddof=int(unbiased))))


def numbers_of_both(number):
    value = torch.tensor([1.0 + number, 10.0])
    found = {
        "who": (distributed.n_processes(), distributed.process_index(), distributed.is_main_process()),
        "total": distributed.all_reduce(value).tolist(),
        "own": value.tolist(),
        "numbers": distributed.all_reduce_numbers(number, 0.1),
        "smallest": distributed.all_reduce_min(5 - number),
        "largest": distributed.all_reduce_max(5 - number),
        "gathered": distributed.all_gather_object({"of": number}),
        "mean and deviation": distributed.mean_and_std(VALUES[number]),
        "unbiased": distributed.mean_and_std(VALUES[number], unbiased=True),
        "whitened": whiten(VALUES[number]).tolist(),
    }
    distributed.broadcast([value])
    mesh = init_device_mesh("cpu", (2,))
    part = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
    return {
        **found,
        "copied": value.tolist(),
        "part": part.to_local().tolist(),
        "whole": distributed.full_tensor(part).tolist(),
    }


def test_numbers_of_two_processes_are_put_together(tmp_path):
    first, second = in_two_processes(numbers_of_both, tmp_path)
    assert [first.pop("who"), second.pop("who")] == [(2, 0, True), (2, 1, False)]
    assert [first.pop("own"), second.pop("own")] == [[1.0, 10.0], [2.0, 10.0]], "what is added up is left as it was"
    assert [first.pop("part"), second.pop("part")] == [[0.0, 1.0], [2.0, 3.0]]
    every = torch.cat(VALUES).double().numpy()
    whitened = (every - every.mean()) / every.std(ddof=1)
    assert [*first.pop("whitened"), *second.pop("whitened")] == pytest.approx(whitened.tolist(), rel=1e-5)
    assert first == second
    assert first.pop("mean and deviation") == pytest.approx((every.mean(), every.std()))
    assert first.pop("unbiased") == pytest.approx((every.mean(), every.std(ddof=1)))
    assert first.pop("numbers") == pytest.approx([1.0, 0.2])
    assert first == {
        "total": [3.0, 20.0],
        "smallest": 4,
        "largest": 5,
        "gathered": [{"of": 0}, {"of": 1}],
        "copied": [1.0, 10.0],
        "whole": [0.0, 1.0, 2.0, 3.0],
    }


def gradients_of_both(number):
    gradients = [
        torch.tensor([[1.0, 2.0]]) * (number + 1),
        None,
        torch.tensor([0.5], dtype=torch.bfloat16),
        torch.tensor([7.0]) if number else torch.tensor([0.0]),
    ]
    parameters = [torch.zeros(1) if gradient is None else torch.zeros_like(gradient) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    distributed.all_reduce_gradients(iter(parameters))
    return [None if p.grad is None else (p.grad.tolist(), str(p.grad.dtype)) for p in parameters]


def test_gradients_are_added_up_by_type_and_keep_their_shapes(tmp_path):
    first, second = in_two_processes(gradients_of_both, tmp_path)
    expected = [([[3.0, 6.0]], "torch.float32"), None, ([1.0], "torch.bfloat16"), ([7.0], "torch.float32")]
    assert first == second == expected


def test_all_wait_until_the_last_has_come(tmp_path):
    came = tmp_path / "came"

    def work(number):
        if number == 1:
            came.touch()
        distributed.barrier()
        return came.exists()

    assert in_two_processes(work, tmp_path) == (True, True)


def test_process_that_is_lost_is_named(tmp_path):
    def work(number):
        distributed.barrier()  # both are connected
        if number == 1:
            return ""  # and leaves
        with pytest.raises(ProcessError, match="process 0 lost another process of this run") as caught:
            distributed.all_reduce(torch.ones(1))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert in_two_processes(work, tmp_path)[0]


def test_messages_of_nccl_are_sent_from_the_gpu_of_the_process(monkeypatch):
    monkeypatch.setattr(distributed, "_is_parallel", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    for backend, device in (("nccl", torch.device("cuda", 3)), ("gloo", torch.device("cpu"))):
        monkeypatch.setattr(torch.distributed, "get_backend", lambda backend=backend: backend)
        assert distributed._device() == device
