"""The same counts under vLLM's names, only when asked for."""

from ..fakes import make_application


def test_names_and_labels_are_vllms() -> None:
    text = make_application(vllm_metrics=True).metrics.render().decode()
    assert 'vllm:generation_tokens_total{engine="0",model_name="toy"} 42.0' in text
    assert 'vllm:num_requests_running{engine="0",model_name="toy"} 0.0' in text
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="toy"} 0.0' in text
    for reason in ("stop", "length", "abort", "error"):
        assert (
            f'vllm:request_success_total{{finished_reason="{reason}",model_name="toy"}} 0.0' in text
        )
    for name in ("admission_rejections_total", "websocket_connections_total"):
        assert f'vllm:{name}{{model_name="toy"}} 0.0' in text
    assert 'vllm:websocket_connections_active{model_name="toy"} 0.0' in text
    assert "vllm:" not in make_application().metrics.render().decode()
