#!/bin/sh
# Sets up .venv beside this file on first use (and again when the requirements change), then:
#   ./hwbmpq.sh              runs the main job on its default: compress a ResNet-18 for the Jetson Nano
#   ./hwbmpq.sh test [...]   runs the tests on two cores (arguments go to pytest; -n N for other numbers)
#   ./hwbmpq.sh docs         builds the documentation as a site in site/
#   ./hwbmpq.sh ...          runs any hwbmpq command: ./hwbmpq.sh inspect --model hwbmpq:vgg16
# PYTHON names the interpreter to build the environment with (default: python3).
set -eu

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
venv="$here/.venv"
stamp="$venv/requirements.sum"
requirements=$(cat "$here/pyproject.toml" "$here/constraints.txt" | cksum)

if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$requirements" ]; then
    python=${PYTHON:-python3}
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "hwbmpq needs Python 3.11 or newer; set PYTHON to one (now: $("$python" --version 2>&1))" >&2
        exit 2
    }
    echo "setting up $venv (a few minutes the first time)" >&2
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$here/constraints.txt" --editable "$here[dev]" >&2
    printf '%s' "$requirements" > "$stamp"
fi

case ${1:-} in
    "") exec "$venv/bin/hwbmpq" compress --model timm:resnet18 --target jetson_nano.yaml ;;
    test)
        shift
        cd "$here"
        # One thread for each of two workers: torch would start as many as there are cores in both.
        export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
        exec "$venv/bin/python" -m pytest -n 2 --dist worksteal "$@"
        ;;
    docs) exec "$venv/bin/python" "$here/docs/build_site.py" ;;
    *) exec "$venv/bin/hwbmpq" "$@" ;;
esac
