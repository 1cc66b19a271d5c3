#!python
"""The command `reverb_server`: becomes the native executable in the package, without importing the package."""

import importlib.util
import os
import sys

folder = importlib.util.find_spec('reverb_tf').submodule_search_locations[0]
os.execv(os.path.join(folder, 'reverb_server'), ['reverb_server', *sys.argv[1:]])
