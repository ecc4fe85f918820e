"""Log lines: format, bounded queue, the thread that writes."""
