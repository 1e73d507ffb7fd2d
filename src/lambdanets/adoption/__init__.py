"""Lambda layers of other packages: replaced by layers of this package, and converted back."""

from lambdanets.adoption.adopting import adopt, foreign_state_dict, has_foreign_layers, is_adopted

__all__ = ["adopt", "foreign_state_dict", "has_foreign_layers", "is_adopted"]
