#!/bin/bash
# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

# Check the patches below this directory against a source tree of Nova: the tests
# of a patch must fail without the patch and pass with it. Nothing of ghsched
# is installed or imported. Prints one line for each patch. The exit status is
# 0 if every patch that is meant for the tree applies and behaves so.
#
# usage: tools/upstream/check.sh [--modules] [TREE] [PATCH]...
#   TREE       a Nova source tree, unpacked or a git repository (its HEAD is
#              used and nothing of it is changed), or a version of the package
#              index, whose sdist is downloaded; default: the version that
#              tools/releases/34.txt pins
#   PATCH      a part of the name of the patches to check; default: all
#   --modules  with the patch, run all tests of the unit test modules that it
#              changes, not only the tests that it adds or changes (slow)

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

show_help "$0" "$@"

HERE=$GHSCHED_TOP/tools/upstream
WORK=$GHSCHED_HOME/upstream
NEWEST=$(sed -n 's/^nova===//p' "$GHSCHED_TOP/tools/releases/34.txt")

options=()
if [ "${1:-}" = --modules ]; then
    options=(--modules)
    shift
fi
tree=${1:-$NEWEST}
[ $# = 0 ] || shift

mkdir -p "$WORK" "$GHSCHED_HOME/log"

download() {
    "$PYTHON" -m pip download -q --no-binary :all: --no-deps -d "$1" "$2" &&
        tar -xf "$1"/*.tar.gz -C "$1" --strip-components=1
}

# The tests need what Nova and its tests require, and a Placement. The tools
# for style pin versions that conflict, and are not needed. A tree that is
# newer than its last release may not fit the constraints of that.
make_environment() {
    "$PYTHON" -m venv "$1" || return
    "$1/bin/pip" install -q --upgrade pip wheel pbr 'setuptools<82' || return
    grep -v -E '^(hacking|bandit|mypy)' "$2/test-requirements.txt" \
        > "$1/test-requirements.txt"
    install_requirements "$1" "$2" "$CONSTRAINTS" ||
        install_requirements "$1" "$2" /dev/null
}

install_requirements() {
    "$1/bin/pip" install -q -c "$3" -r "$2/requirements.txt" \
        -r "$1/test-requirements.txt" openstack-placement 'SQLAlchemy<2.1'
}

# copy_tree TREE TARGET: a git repository of one commit that can be changed.
copy_tree() {
    mkdir -p "$2"
    source_of "$1" | tar -xf - -C "$2" || return
    # Nova finds parts of itself through the metadata of its package.
    if [ ! -e "$2/nova.egg-info/entry_points.txt" ]; then
        (cd "$2" && PBR_VERSION=$VERSION "$VENV/bin/python" setup.py -q \
            egg_info) || return
    fi
    git -C "$2" init -q
    printf '__pycache__\n.stestr\n' > "$2/.git/info/exclude"
    git -C "$2" add -A -f
    git -C "$2" -c user.name=ghsched -c user.email=ghsched@localhost \
        commit -q -m "Nova $VERSION"
}

# version_of TREE: as its metadata has it, or the last release before it.
version_of() {
    sed -n 's/^Version: //p' "$1/PKG-INFO" 2> /dev/null |
        grep . || git -C "$1" describe --tags --abbrev=0 2> /dev/null ||
        echo 0.0.0
}

heading 'Nova'
if [[ $tree =~ ^[0-9]+(\.[0-9a-z]+)+$ ]]; then
    cached "$WORK/nova-$tree" "sdist of Nova $tree" "$tree" \
        download "nova==$tree"
    tree=$WORK/nova-$tree
fi
tree=$(realpath "$tree")
[ -d "$tree" ] || die "no such directory: $tree"
VERSION=$(version_of "$tree")
CONSTRAINTS=$GHSCHED_TOP/tools/releases/${VERSION%%.*}.txt
[ -e "$CONSTRAINTS" ] || CONSTRAINTS=/dev/null
COPY=$WORK/tree
rm -rf "$COPY"
VENV=$WORK/venv-$VERSION
files=(requirements.txt test-requirements.txt)
mkdir -p "$WORK/requirements"
for file in "${files[@]}"; do
    if [ -e "$tree/$file" ]; then
        cp "$tree/$file" "$WORK/requirements/"
    else
        git -C "$tree" show "HEAD:$file" > "$WORK/requirements/$file"
    fi
done
cached "$VENV" "Python packages, in $VENV" \
    "$(key_of "$WORK/requirements/"* "$CONSTRAINTS")" \
    make_environment "$WORK/requirements"
step "copy of $tree" copy_tree "$tree" "$COPY"

heading "Patches on Nova $VERSION"
exec "$VENV/bin/python" "$HERE/red_green.py" "${options[@]}" \
    "$COPY" "$HERE" "$@"
