"""Signed statements: who built, who tested and who released a wheel set.

`policy` reads who may sign what, `signers` signs, `envelope` reads and checks what was signed,
`statements` writes what is stated, `evidence` keeps statements in a store and judges them,
`chain` follows them from a downloaded wheel.
"""

from rocwheel.base.errors import PromotionError


class TrustError(PromotionError):
    """A statement that is not signed as the trust file asks, or proves something else."""
