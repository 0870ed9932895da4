# %% [markdown]
# # Connections
#
# > What became of the Transformer?

# %%
from lessons.kit.lesson import show
from lessons.kit.simulation import Simulation
from lessons.lesson_12 import sizes


@show
def what_it_is_made_of() -> Simulation:
    """The first simulation: parameters and operations of any Transformer."""
    return sizes.ledger


# %% [markdown]
# ## To take with you
