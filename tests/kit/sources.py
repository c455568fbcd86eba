"""Sources of a package that is made up."""

from pathlib import Path


def package(folder: Path, **sources: str) -> Path:
    """Write modules, `a__b` as `b` in the folder `a`; returns the package."""
    for name, text in sources.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
