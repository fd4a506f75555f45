"""The name and version of what the parent puts into a kernel's metadata; apart, since workers import little."""

META_KEY = "tileguard"
"""The key in a kernel's `inductor_meta`."""

PAYLOAD_VERSION = 1
