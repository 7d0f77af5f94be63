"""Every test runs with shapes checked and one torch thread."""

import torch
from jaxtyping import install_import_hook

# Before the first import of the package: shapes in signatures are then checked at every call.
# The numeric tower lets an int stand for a float, as type checkers do.
install_import_hook(
    "orderone", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
)
torch.set_num_threads(1)
