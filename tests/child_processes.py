"""Tests of many processes: what the parent holds of a child, and the child of its parent."""

import os
import pathlib
import subprocess
import sys
import threading

# What TensorFlow may say when an iterator goes or an op fails; nothing else may be on stderr.
TENSORFLOW_REMARKS = ('Optimization loop failed: CANCELLED', 'Local rendezvous is aborting')


# ---- In the child ----------------------------------------------------------------


class Parent:
    """The parent's word, which comes on stdin: a line to begin; its end to finish."""

    def __init__(self):
        self.stop = threading.Event()
        self.on_stop = []

    def ready(self, word: str = 'ready') -> None:
        """Tells the parent `word`, then waits for its go."""
        print(word, flush=True)
        sys.stdin.readline()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        sys.stdin.read()
        self.stop.set()
        for callback in self.on_stop:
            callback()


def import_tensorflow() -> None:
    """Without its remarks on the machine."""
    stderr = os.dup(2)
    with open(os.devnull, 'wb') as null:
        os.dup2(null.fileno(), 2)
        import tensorflow as tf

        tf.constant(0)
    os.dup2(stderr, 2)
    os.close(stderr)


# ---- In the parent ---------------------------------------------------------------


class Child:
    """A process that runs `script` with the name of its role, the file of its record, and `arguments`."""

    def __init__(self, script: str, folder: pathlib.Path, name: str, role: str, *arguments):
        self.name = name
        self.record = folder / f'{name}.record'
        self._errors = folder / f'{name}.stderr'
        with self._errors.open('wb') as stderr:
            self.process = subprocess.Popen(
                [sys.executable, script, role, self.record, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def wait_ready(self) -> str:
        word = self.process.stdout.readline().strip()
        assert word, self.describe()
        return word

    def go(self) -> None:
        self.process.stdin.write('go\n')
        self.process.stdin.flush()

    def check_running(self) -> None:
        assert self.process.poll() is None, self.describe()

    def kill(self) -> None:
        self.check_running()
        self.process.kill()
        self.process.wait()
        self.check_silent()

    def end(self) -> None:
        """Tells it to; twice does no harm."""
        if self.process.stdin is not None:
            self.process.stdin.close()
            self.process.stdin = None

    def finish(self) -> str:
        """Its last words, once it has ended as it should."""
        self.end()
        words, _ = self.process.communicate()
        assert self.process.returncode == 0, self.describe()
        self.check_silent()
        return words

    def check_silent(self) -> None:
        for line in self._errors.read_text().splitlines():
            assert any(remark in line for remark in TENSORFLOW_REMARKS), self.describe()

    def describe(self) -> str:
        return f'{self.name}: exit code {self.process.poll()}, stderr:\n{self._errors.read_text()}'

    def rss_kib(self) -> int:
        pages = int(pathlib.Path(f'/proc/{self.process.pid}/statm').read_text().split()[1])
        return pages * os.sysconf('SC_PAGE_SIZE') // 1024

    def lines(self) -> list[str]:
        return self.record.read_text().splitlines()
