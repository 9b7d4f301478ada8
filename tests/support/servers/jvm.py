"""How the tests start Java: on the classes that `make interop` compiled, with BookKeeper's own on the class path."""

import shutil
from pathlib import Path
from typing import Final

_TARGET: Final = Path(__file__).parents[2] / "interop" / "java" / "target"


def java_command(main_class: str, *arguments: str, heap_mb: int = 192) -> list[str]:
    """The command line for a small JVM. Raises if there is no Java, or nothing to run on it: never a reason to skip."""
    java = shutil.which("java")
    if java is None:
        raise RuntimeError("the interop tests need a Java runtime (17 or later): there is no `java` on the PATH")
    classes, class_path = _TARGET / "classes", _TARGET / "classpath.txt"
    if not class_path.exists() or not (classes / "quire" / "interop" / "Peer.class").exists():
        raise RuntimeError("the Java half of the interop tests is not built: `make interop` builds it and runs them")
    return [
        java,
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",  # These processes live for seconds: starting fast is what counts.
        "-cp",
        f"{classes}:{class_path.read_text().strip()}",
        main_class,
        *arguments,
    ]
