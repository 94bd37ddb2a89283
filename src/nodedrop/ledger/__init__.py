"""The ledger of a model's cuts: JSON Lines, one per removed unit, chained by hashes, and what a checker needs later.

`nodedrop.verify` reads it without any code of ours. The format is described in docs/certificates.md and, for programs,
in `verify/schema-1.json`.
"""

from .file import LedgerFile
from .lines import fingerprint, line_hash

__all__ = ["LedgerFile", "fingerprint", "line_hash"]
