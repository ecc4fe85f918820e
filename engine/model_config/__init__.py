"""Model configuration as its folder has it: sizes, rope, experts, generation defaults."""
