"""What a model folder says of its model: sizes, rope, experts, generation defaults."""
