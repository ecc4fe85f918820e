"""Hosts in one machine: network namespaces, a switch between them whose links can be spoilt."""
