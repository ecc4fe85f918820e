"""The process that holds a device: model runner, sampler, executors. Torch where it is needed."""
