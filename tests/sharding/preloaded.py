"""Everything that the ranks of a test import, imported once in the process that they are forked from."""

import torch
import torch._dynamo
import torch.distributed
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.fx.experimental.symbolic_shapes

import clearhead as ch
from tests.sharding import calls

torch.set_num_threads(1)
# Some modules are imported by the first call.
query = torch.zeros(2, 3)
ch.attend(query, query, query, mask=ch.causal())
assert ch.check

__all__ = ["calls"]
