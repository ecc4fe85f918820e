"""OpenAI's protocols, sans-IO: bodies to typed requests, outputs to events and answers."""
