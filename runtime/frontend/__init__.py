"""The frontend's half of a request: admission, ledger, load balancer, collected outputs."""
