"""The engine: messages, scheduler, KV blocks, executor, workers, models.

Its public face, the only part that `runtime` and `api` may import, is `config`, `messages`,
`sampling_params`, `model_config`, `generation_config`, `model_folder` and `errors`. Torch is
imported in `worker` and `model` alone.
"""
