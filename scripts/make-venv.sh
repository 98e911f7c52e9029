#!/bin/sh
# make-venv.sh PYTHON DIRECTORY: a virtual environment with pip, also where Debian has split the means to
# make one (python3-venv) and the headers of CPython (python3-dev) off from python3.
set -eu
python=$1
venv=$2

say() { printf '%s\n' "make: $*" >&2; }

if ! command -v "$python" >/dev/null 2>&1; then
    say "there is no $python here; install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3"
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    say "$python is $("$python" --version 2>&1); Python 3.10 or newer is needed: make PYTHON=/path/to/python3"
    exit 1
fi

has_venv() { "$python" -c 'import venv, ensurepip' 2>/dev/null; }
has_headers() {
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
missing=
has_venv || missing="python$version-venv"
has_headers || missing="$missing python$version-dev"

if [ -n "$missing" ]; then
    # Only the system's own interpreter is served by the system's packages.
    real=$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')
    if command -v apt-get >/dev/null 2>&1 && [ "${real#/usr/bin/}" != "$real" ] && [ "$(id -u)" = 0 ]; then
        # shellcheck disable=SC2086  # each word is a package
        say "installing what $real lacks:" $missing
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends $missing >&2 ||
            { apt-get update --quiet >&2 &&
              DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends $missing >&2; } ||
            say "apt-get could not install" $missing
    fi
fi
if ! has_venv; then
    say "$python cannot make virtual environments. On Debian or Ubuntu: sudo apt-get install python$version-venv"
    exit 1
fi
has_headers || say "no Python.h for $python (on Debian or Ubuntu: sudo apt-get install python$version-dev):" \
    "the profiler is built without its native walker and uses the portable one; the test set cannot be installed"

"$python" -m venv --clear "$venv"
# A pip as old as the interpreter chooses among hundreds of releases in three times the time.
"$venv/bin/python" -m pip --disable-pip-version-check install --quiet --upgrade pip
