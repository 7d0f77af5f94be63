"""Every test runs with shapes checked and one torch thread."""

import torch
from jaxtyping import install_import_hook

# Before the first import of the package: shapes in signatures are then checked at every call.
install_import_hook("orderone", "beartype.beartype")
torch.set_num_threads(1)
