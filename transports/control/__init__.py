"""Control channels between a parent and its child: handshake, messages, descriptors."""
