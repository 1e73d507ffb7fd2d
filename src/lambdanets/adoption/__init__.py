"""Lambda layers of other packages, replaced in place by layers of this package, and their weights converted back."""

from lambdanets.adoption.adopting import adopt, has_foreign_layers
from lambdanets.adoption.families import FAMILIES
from lambdanets.adoption.weights import foreign_state_dict, is_adopted

__all__ = ["FAMILIES", "adopt", "foreign_state_dict", "has_foreign_layers", "is_adopted"]
