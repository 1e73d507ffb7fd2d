"""Lambda layers of other packages: replaced by layers of this package, and converted back."""

from lambdanets.adoption.adopting import adopt, adopted_layers, foreign_layers, foreign_state_dict

__all__ = ["adopt", "adopted_layers", "foreign_layers", "foreign_state_dict"]
