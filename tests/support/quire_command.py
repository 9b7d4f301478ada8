"""`quire` run to its end in a process of its own, without the half second that a Python takes to load all of it.

A process that has loaded `quire` and done nothing else is forked for each command. The command has its own standard
input, output, folder, environment and exit code, and ends as any Python program does. How the program starts from
nothing is tested by the documents: their commands run in a shell.
"""

import atexit
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

# Loaded by the commands that need them: they are large, or are not to be forked (gRPC).
_NOT_LOADED: Final = (
    *("quire.__main__", "quire.spark", "quire.testing", "quire.codec.pb"),
    *("quire.metadata.drivers.etcd", "quire.metadata.drivers._etcd"),
)
_MESSAGE_BYTES_MAX: Final = 1 << 20

_lock = threading.Lock()


def run_quire(
    *words: str,
    data: bytes = b"",
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    within_s: float = 60.0,
) -> "subprocess.CompletedProcess[bytes]":
    """As `subprocess.run` does it, which is used where the environment says what Python loads first."""
    environment = dict(os.environ if environment is None else environment)
    if "PYTHONPATH" in environment:
        command = [sys.executable, "-m", "quire", *words]
        return subprocess.run(
            command, input=data, capture_output=True, timeout=within_s, check=False, cwd=folder, env=environment
        )
    with _lock:
        address = _server()
    stdin, feed = os.pipe()
    stdout, output = _pipe_out()
    stderr, errors = _pipe_out()
    with socket.socket(socket.AF_UNIX) as connection, ThreadPoolExecutor(3) as threads:
        connection.connect(address)
        request = {"words": words, "folder": str(folder or Path.cwd()), "environment": environment}
        socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [stdin, stdout, stderr])
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
        threads.submit(_write, feed, data)
        out, err = threads.submit(_read, output), threads.submit(_read, errors)
        answers = connection.makefile("r")
        pid = int(answers.readline())
        connection.settimeout(within_s)
        try:
            code = int(answers.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["quire", *words], within_s, out.result(), err.result()) from None
        return subprocess.CompletedProcess(["quire", *words], code, out.result(), err.result())


def quire_output(*words: str, code: int = 0, **options: Any) -> str:
    """All that a command prints, which has to end with this exit code."""
    done = run_quire(*words, **options)
    printed = (done.stdout + done.stderr).decode()
    assert done.returncode == code, printed
    assert b"Traceback" not in done.stderr, printed
    return printed


def _pipe_out() -> tuple[int, int]:
    reads, writes = os.pipe()
    return writes, reads


def _write(descriptor: int, data: bytes) -> None:
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
    except BrokenPipeError:
        pass  # The command did not want all of it.


def _read(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


@cache
def _server() -> str:
    """Its address. It ends when this process does, which closes its standard input."""
    folder = tempfile.TemporaryDirectory(prefix="quire-command-")
    address = str(Path(folder.name) / "socket")
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,
        env={"PATH": os.environ["PATH"], "HOME": folder.name},
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def stop(stdin: Any = process.stdin, stdout: Any = process.stdout) -> None:
        stdin.close()
        stdout.close()
        process.wait(10)
        folder.cleanup()

    atexit.register(stop)
    assert process.stdout.readline() == b"ready\n"
    return address


# --- In the other process


def _serve(address: str) -> None:
    _load("quire")
    assert "grpc" not in sys.modules
    assert threading.active_count() == 1
    gc.freeze()  # The end of each command would look at all of it, which takes longer than most commands.
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel clears away the processes that wait for commands.
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run_command(connection)
        connection.close()


def _load(package: str) -> None:
    for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        if module.name.startswith(_NOT_LOADED):
            continue
        if module.ispkg:
            _load(module.name)
        else:
            import_module(module.name)


def _run_command(connection: socket.socket) -> NoReturn:
    message, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES_MAX, 3)
    while not message.endswith(b"\n"):
        message += connection.recv(_MESSAGE_BYTES_MAX)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become_quire(descriptors, **json.loads(message))
        sys.exit()
    for descriptor in descriptors:
        os.close(descriptor)
    connection.sendall(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become_quire(descriptors: Sequence[int], words: list[str], folder: str, environment: dict[str, str]) -> None:
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = words
    runpy.run_module("quire", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
