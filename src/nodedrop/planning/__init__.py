"""Certificates in, a Plan of cuts out."""

from .account import Account, Unit, account
from .plan import Cut, Folding, Plan, plan
from .walk import Structure, structure

__all__ = ["Account", "Cut", "Folding", "Plan", "Structure", "Unit", "account", "plan", "structure"]
