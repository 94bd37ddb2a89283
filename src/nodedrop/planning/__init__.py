"""Certificates in, a Plan of cuts out."""

from .account import Account, Unit, account, needed
from .agree import disagreement
from .plan import Cut, Folding, Plan, plan
from .reach import reach
from .shrink import shrink
from .walk import Structure, structure

__all__ = [
    "Account",
    "Cut",
    "Folding",
    "Plan",
    "Structure",
    "Unit",
    "account",
    "disagreement",
    "needed",
    "plan",
    "reach",
    "shrink",
    "structure",
]
