"""Hosts: other machines whose engines serve under this server's root."""
