"""The sums of a sketch (docs/large.md), of a gradient that lies in memory: the same numbers but for their order."""
import numpy as np


def signs(bits, seed, path, count):
    """`count` signs; bits(seed, path, i) is random_bits of docs/random-inputs.md."""
    words = [bits(seed, path, i) for i in range((count + 63) // 64)]
    return np.array([-1.0 if words[i // 64] >> (i % 64) & 1 else 1.0 for i in range(count)])


def sketch(bits, seed, path, gradient):
    """The sums over rows, columns, tiles and blocks of gradients/PATH."""
    *lead, R, C = gradient.shape
    g = gradient.astype(np.float64).reshape(-1, R, C)
    B = len(g)
    at = path + "/sketch/"
    s = signs(bits, seed, at + "rows", B * C).reshape(B, 1, C)
    t = signs(bits, seed, at + "columns", B * R).reshape(B, R, 1)
    tiles = np.add.reduceat(np.add.reduceat(s * t * g, np.arange(0, R, 128), axis=1), np.arange(0, C, 128), axis=2)
    parts = {"rows": (s * g).sum(2), "columns": (t * g).sum(1), "tiles": tiles, "blocks": tiles.sum((1, 2))}
    return {at + name: part.reshape(*lead, *part.shape[1:]) for name, part in parts.items()}
