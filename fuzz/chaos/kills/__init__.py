"""Kills at random, thousands of them, one or several at once, while streams are under way."""
