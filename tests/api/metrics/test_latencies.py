"""Latencies in Prometheus's text form."""

from ..fakes import make_application


def test_every_distribution_is_told() -> None:
    text = make_application(vllm_metrics=True).metrics.render().decode()
    for name in (
        "time_to_first_token_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
    ):
        assert f'triolet_{name}_bucket{{le="+Inf"}} 0.0' in text
        assert f'vllm:{name}_bucket{{le="+Inf",model_name="toy"}} 0.0' in text
