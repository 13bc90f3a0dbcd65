"""What sources that read a page of each engine ask of their parameters alike."""


def check(path: str, *, example: str, certificates: tuple[str, ...]) -> None:
    """Raises ValueError unless `path` is a page's, and no certificate is named."""
    if not path.startswith("/") or path.startswith("//"):
        raise ValueError(f"path must be the path of a page, such as {example}")
    if any(certificates):
        raise ValueError("caCertPath and client certificates: pages are read without TLS")
