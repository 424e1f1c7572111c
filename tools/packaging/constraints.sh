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

# Write the two lists of exact versions with their hashes:
#
# constraints.txt    what ghsched with the extra "osc" needs, for
#                    "pip install --require-hashes -r" and as a constraints file
# release-tools.txt  what tools/release.sh builds and describes a release with
#
# usage: tools/packaging/constraints.sh
#
# It needs uv on the PATH and a package index. The lists hold for Python 3.11
# and newer.

set -eu
cd "$(dirname "$0")/../.."
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

# Lines of one extra of setup.cfg.
extra() {
    sed -n "/^$1 =$/,/^[^ ]/s/^    //p" setup.cfg
}

# compile NAME: the list of $WORK/NAME.in.
compile() {
    {
        echo "# Made by tools/packaging/constraints.sh; do not edit."
        uv pip compile -q --generate-hashes --universal --no-header \
            --no-annotate --python-version 3.11 "$WORK/$1.in"
    } > "$WORK/$1.txt"
    mv "$WORK/$1.txt" "tools/packaging/$1.txt"
}

{
    cat requirements.txt
    extra osc
} > "$WORK/constraints.in"
cat > "$WORK/release-tools.in" << 'TOOLS'
build
cyclonedx-bom
pbr>=6.1.1
reno>=4.0.0
setuptools>=69.0.0,<82
wheel
TOOLS
compile constraints
compile release-tools
