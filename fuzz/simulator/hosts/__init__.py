"""Several machines, simulated: hosts beside the root's, and what befalls them."""
