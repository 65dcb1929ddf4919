"""Signed statements: who built, who tested and who released a wheel set.

`policy` reads the trust file, `signers` sign, `envelope` reads and checks signed statements,
`statements` makes them, `verifier` decides what they prove.
"""

from rocwheel.base.errors import PromotionError


class TrustError(PromotionError):
    """A statement that is not signed as the trust file asks, or proves something else."""
