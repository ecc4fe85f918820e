"""An executor without a model, for measurements of all the rest."""
