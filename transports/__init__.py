"""Bytes and sockets: codec, links, the ZeroMQ bridge, the step ring, control channels.

Knows no supervision and no word of language models; could be published alone.
"""
