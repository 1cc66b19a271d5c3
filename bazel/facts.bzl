"""Reads what configure.py found: it passes each fact as --repo_env=REVERB_..., in .configure.bazelrc."""

FACTS = [
    "REVERB_PYTHON",
    "REVERB_PYTHON_INCLUDE",
    "REVERB_PYTHON_VERSION",
    "REVERB_NANOBIND_DIR",
    "REVERB_TF_INCLUDE",
    "REVERB_TF_LIB_DIR",
    "REVERB_TF_FRAMEWORK",
    "REVERB_TF_VERSION",
    "REVERB_COMPILER",
]

def fact(ctx, name):
    value = ctx.os.environ.get(name)
    if not value:
        fail("%s is not known: run `python3 configure.py` first (`python3 configure.py --install` on a new machine)." % name)
    return value
