"""Jobs, how they end, and what runs them: processes of this machine, or a Ray cluster."""

from .jobs import Engine, Job, Outcome, Outcomes, Tell

__all__ = ["Engine", "Job", "Outcome", "Outcomes", "Tell"]
