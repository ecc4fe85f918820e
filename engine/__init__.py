"""The engine: messages, scheduler, KV blocks, executor, workers, models.

Its public face, the only part that `runtime` and `api` import, is the modules of this folder,
`model_config` and `grammar.text`; beside them, what a check of the machine and the bundled model
need. Torch is imported in `worker.torch` and `model` alone.
"""
