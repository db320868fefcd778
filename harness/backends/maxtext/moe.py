"""The MoE block, its router and its parts."""
from request import Request, Unsupported


def run(request: Request, dtype: str) -> dict:
    raise Unsupported("not yet")
