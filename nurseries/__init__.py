"""Tasks and processes: supervision, pools, death monitors, the live task tree.

Knows no socket protocol and no word of language models; could be published alone.
"""
