"""tileguard: a learned autotune model with a guarded fallback, for compilers.

Importing this package patches nothing and imports nothing beyond the standard library; take what you need from
`tileguard.features`, `tileguard.runtime` (inside a compiler: numpy and onnxruntime only) and `tileguard.learner`.
"""

__version__ = "0.1.0"
