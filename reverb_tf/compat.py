"""Programs written for dm-reverb, on this package.

    from reverb_tf import compat
    compat.install_as_reverb()
    import reverb               # this is reverb_tf

Called at the top of a program's main module it also holds in its spawned children.
`python -m reverb_tf.compat script.py ...` runs a script that says just `import reverb`.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys

import reverb_tf
from reverb_tf import arguments

__all__ = ['install_as_reverb', 'uninstall']

_NAME = 'reverb'
_HOST = 'REVERB_TF_HOST'
_SCRIPT = 'REVERB_TF_COMPAT_SCRIPT'  # tells spawned children the script


def _is_reverb(name):
    return name == _NAME or name.startswith(_NAME + '.')


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `reverb.x` and hands out the module `reverb_tf.x` itself."""

    def find_spec(self, fullname, path=None, target=None):
        del path, target
        if not _is_reverb(fullname):
            return None
        real = 'reverb_tf' + fullname[len(_NAME) :]
        try:
            importlib.import_module(real)
        except ModuleNotFoundError as e:
            if e.name != real:
                raise
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec):
        module = sys.modules['reverb_tf' + spec.name[len(_NAME) :]]
        # The import system is about to write the alias's spec into the module.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = module.__spec__.loader_state


_finder = _Finder()
_undo = {}  # what `uninstall` puts back


def install_as_reverb(*, host=None, force=False):
    """Makes `import reverb` give this package, and `reverb.x` its module x.

    Args:
      host: default address that servers bind, such as '0.0.0.0' for all interfaces as
        dm-reverb does; also of child processes. None leaves it as it is.
      force: take the place of another `reverb` that was imported before.

    Raises:
      RuntimeError: another `reverb` was imported before.
    """
    if host is not None:
        arguments.text(host, 'host')
    imported = sys.modules.get(_NAME)
    if imported not in (None, reverb_tf) and not force:
        raise RuntimeError(
            f'another reverb was imported before ({getattr(imported, "__file__", imported)}); '
            'call install_as_reverb() before that import, or with force=True'
        )
    if _finder not in sys.meta_path:
        others = [name for name in sys.modules if _is_reverb(name)]
        _undo.update(modules={name: sys.modules.pop(name) for name in others})
        _undo.update(host=os.environ.get(_HOST))
        sys.meta_path.insert(0, _finder)
    if host is not None:
        os.environ[_HOST] = host
    importlib.import_module(_NAME)


def uninstall():
    """Undoes `install_as_reverb`; nothing if it wasn't called."""
    if _finder not in sys.meta_path:
        return
    sys.meta_path.remove(_finder)
    for name in [name for name in sys.modules if _is_reverb(name)]:
        del sys.modules[name]
    sys.modules.update(_undo['modules'])
    if _undo['host'] is None:
        os.environ.pop(_HOST, None)
    else:
        os.environ[_HOST] = _undo['host']


def _script():
    """The path of the script, as the command line names it; leaves sys.argv as scripts expect."""
    if len(sys.argv) < 2:
        sys.exit('usage: python -m reverb_tf.compat script.py [argument ...]')
    del sys.argv[0]
    path = os.path.abspath(sys.argv[0])
    sys.path[0] = os.path.dirname(path)
    os.environ[_SCRIPT] = path
    return path


def _run(namespace):
    """Runs the script in the namespace of the main module.

    The module keeps its spec: that is how spawned children know to run it again, and so to
    install the names, before they look for what the script defined.
    """
    install_as_reverb()
    path = _script() if namespace['__name__'] == '__main__' else os.environ[_SCRIPT]
    try:
        with open(path, 'rb') as file:
            code = compile(file.read(), path, 'exec')
    except OSError as e:
        sys.exit(f'cannot read the script {path}: {e.strerror}')
    for name in [n for n in namespace if not n.startswith('__')]:
        del namespace[name]
    namespace.update(__file__=path, __doc__=None, __package__=None, __cached__=None)
    namespace['__loader__'] = importlib.machinery.SourceFileLoader('__main__', path)
    exec(code, namespace)


if __name__ in ('__main__', '__mp_main__'):
    importlib.import_module('reverb_tf.compat')._run(globals())
