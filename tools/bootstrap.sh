#!/bin/sh
# Builds .venv with uv. Needs python3, pip and git only.
# Usage: tools/bootstrap.sh EXTRA [EXTRA ...]
set -eu
cd "$(dirname "$0")/.."

# A Python >= 3.12: one on PATH, else one of pyenv's, else uv fetches it.
is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; }
find_python() {
  for name in python3.12 python3.13 python3.14 python3; do
    path=$(command -v "$name" 2>/dev/null) && is_new_enough "$path" && { echo "$path"; return; }
  done
  for path in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3; do
    [ -x "$path" ] && is_new_enough "$path" && { echo "$path"; return; }
  done
  echo 3.12
}

echo "building the environment in .venv (a minute or two the first time)" >&2
UV=$(command -v uv 2>/dev/null || true)
if [ -z "$UV" ]; then
  UV=$PWD/.tools/bin/uv
  [ -x "$UV" ] || python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target .tools 'uv>=0.9,<1'
fi

extras=""
for extra in "$@"; do extras="$extras --extra $extra"; done
# shellcheck disable=SC2086
"$UV" sync --quiet --python "$(find_python)" $extras
