"""How the bundled model is made: its corpus, training and evaluation."""
