"""The same ground under every test: no network, a fixed seed, poisoned uninitialised memory."""

import sys
from collections.abc import Iterator

import hypothesis
import pytest
import torch
from torch import Tensor

from tests.environment import SEED, prepare
from tests.poison import poison

prepare()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--banks",
        default="tenth",
        choices=("tenth", "all"),
        help="the entries of the banks that run",
    )


def manual_seed(seed: int) -> None:
    """Seed what draws on the CPU, and on a GPU where one is: `torch.manual_seed` formats the stack once for each
    kind of device that there is not, which takes longer than most tests."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


class TorchRandom:
    """Gives hypothesis PyTorch's generator, so that an example that failed fails again."""

    def seed(self, seed: int) -> None:
        manual_seed(seed)

    def getstate(self) -> Tensor:
        return torch.get_rng_state()

    def setstate(self, state: Tensor) -> None:
        torch.set_rng_state(state)


# hypothesis keeps a weak reference, hence the name.
torch_random = TorchRandom()
hypothesis.register_random(torch_random)
# A machine that is busy elsewhere is slow to draw, and no failure.
hypothesis.settings.register_profile(
    "clearhead",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    max_examples=50,
    database=None,
)
hypothesis.settings.load_profile("clearhead")


@pytest.fixture(autouse=True, scope="session")
def poisoned_memory() -> Iterator[None]:
    with poison():
        yield


@pytest.fixture(autouse=True)
def seed() -> None:
    manual_seed(SEED)


@pytest.fixture(autouse=True)
def figures_are_closed() -> Iterator[None]:
    """pyplot keeps every figure until it is closed, and warns of more than twenty."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")
