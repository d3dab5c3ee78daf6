"""The modules of clearhead, and the public names among theirs."""

import importlib
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "clearhead"


def module_name(path: Path) -> str:
    """`src/clearhead/masks/__init__.py` is `clearhead.masks`."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# Every module of the package with its file; nothing is imported for it.
MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def public_places() -> dict[str, ModuleType]:
    """The packages that say what is public in them: clearhead itself and its public subpackages."""
    packages = [name for name, path in MODULES.items() if path.name == "__init__.py"]
    modules = {name: importlib.import_module(name) for name in packages}
    return {name: module for name, module in modules.items() if hasattr(module, "__all__")}


def public_objects() -> dict[str, object]:
    """Every public name with its object, as `clearhead.attend`."""
    return {
        f"{place}.{name}": getattr(module, name)
        for place, module in public_places().items()
        for name in module.__all__
    }
