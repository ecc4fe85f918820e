"""Models of the Hugging Face hub: names, and their download into its cache by a process."""
