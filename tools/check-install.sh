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

# Build the sdist and the wheel, install the project in every way that an
# admin may choose, and check each time that ghsched-nova-compute loads our
# driver as Nova loads one, that no other Python process is changed, and that
# removing the project leaves nothing behind. On an admin's laptop and in
# tempest's environment it works without a Nova.
#
# usage: check-install.sh [PYTHON]
#
# PYTHON (default: python3 of the PATH) is the interpreter of an environment
# that has Nova, pbr, build and setuptools. Nothing is downloaded: throw-away
# environments see its packages through links.

set -eu
TOP=$(cd "$(dirname "$0")/.." && pwd)
BASE=$(command -v "${1:-python3}")
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INDEX=1 PIP_NO_CACHE_DIR=1
unset PYTHONPATH

say() {
    printf '%s\n' "$*"
}

# A clean clone, as far as the builds can tell: what git would know of, in a
# repository of its own without a tag.
copy_tree() {
    mkdir "$WORK/tree"
    (cd "$TOP" && { git ls-files -z -co --exclude-standard 2> /dev/null ||
        find . -type f -not -path '*/.*' -printf '%P\0'; } |
        while IFS= read -r -d '' file; do
            [ ! -e "$file" ] || printf '%s\0' "$file"
        done | tar --null --files-from=- -cf -) | tar -xf - -C "$WORK/tree"
    git -C "$WORK/tree" init -q
    git -C "$WORK/tree" add -A
    git -C "$WORK/tree" -c user.name=check -c user.email=check@localhost \
        commit -q -m 'The tree under test'
}

# The packages of BASE without this project's own.
link_base() {
    local site entry
    site=$("$BASE" -c \
        'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    mkdir "$WORK/base"
    for entry in "$site"/*; do
        case $(basename "$entry") in
        ghsched* | tempest_plugin | __editable__* | *.pth | __pycache__) ;;
        *) ln -s "$entry" "$WORK/base/" ;;
        esac
    done
}

# The same without Nova.
link_without_nova() {
    mkdir "$WORK/no-nova"
    cp -P "$WORK"/base/* "$WORK/no-nova/"
    rm "$WORK"/no-nova/nova "$WORK"/no-nova/nova-*
}

# make_venv NAME [PACKAGES]: an environment of its own that sees BASE's
# packages, or those of another directory, whose .pth files are not run.
make_venv() {
    "$BASE" -m venv --without-pip "$WORK/$1"
    site_of "$1" > /dev/null
    echo "$WORK/${2:-base}" > "$(site_of "$1")/_base.pth"
    state_of "$1" > "$WORK/$1.state"
}

site_of() {
    "$WORK/$1/bin/python" -I -c \
        'import sysconfig; print(sysconfig.get_paths()["purelib"])'
}

pip_in() {
    local name=$1
    shift
    "$WORK/$name/bin/python" -m pip -q "$@" > "$WORK/pip.log" 2>&1 ||
        { cat "$WORK/pip.log"; return 1; }
}

# check NAME WHERE: in NAME's interpreter ghsched-nova-compute has a driver from
# below WHERE when Nova loads it. The service itself is not started.
check() {
    printf '[DEFAULT]\ncompute_driver = ghsched.GhschedLibvirtDriver\n%s\n' \
        'transport_url = fake:/' > "$WORK/nova.conf"
    (cd / && "$WORK/$1/bin/python" -W ignore - "$2" "$WORK/nova.conf" << 'EOF'
import functools
import os
import sys

from nova.cmd import compute as novas
from oslo_utils import importutils

from ghsched_nova.cmd import compute

Service = novas.service.Service


@functools.wraps(Service.create)  # ghsched checks the arguments that it has
def create(**_kwargs):
    # nova.virt.driver.load_compute_driver() does just this.
    driver = importutils.import_class(f'nova.virt.{novas.CONF.compute_driver}')
    where = os.path.realpath(sys.modules[driver.__module__].__file__)
    sys.exit(None if where.startswith(top)
             else f'the driver came from {where}, not from {top}')


top = os.path.realpath(sys.argv[1]) + os.sep
Service.create = create
sys.argv[1:] = ['--config-file', sys.argv[2], '--log-file', os.devnull]
compute.main()
EOF
    )
}

# What the interpreter of an environment has when it has started.
state_of() {
    (cd / && "$WORK/$1/bin/python" - << 'EOF' | sed 's/ at 0x[0-9a-f]*//g'
import sys
print(sorted(sys.modules), sys.meta_path, sys.path_hooks, sys.path, sep='\n')
import importlib.util
print(importlib.util.find_spec('nova')
      and importlib.util.find_spec('nova.virt.ghsched'))
EOF
    )
}

# Files of the package that are not in its own directories, and tests.
files_outside() {
    "$WORK/$1/bin/python" - << 'EOF'
from importlib import metadata

for path in map(str, metadata.distribution('ghsched').files):
    if (not path.startswith((
            'ghsched_nova/', 'ghsched_placement/', 'tempest_plugin/',
            'ghsched-', '../../../bin/ghsched', '../../../share/ghsched/',
            '../../../etc/nova/rootwrap.d/ghsched.filters'))
            or path.startswith('ghsched_') and '/tests/' in path):
        print(path)
EOF
}

# An installed wheel changes no Python process that does not import it.
check_changes_nothing() {
    local outside
    diff "$WORK/$1.state" <(state_of "$1") ||
        { say "the wheel changes each Python of $1"; return 1; }
    outside=$(files_outside "$1")
    [ -z "$outside" ] ||
        { say "files that do not belong into the wheel: $outside"; return 1; }
}

check_entry_points() {
    (cd / && "$WORK/$1/bin/python" -W ignore - << 'EOF'
from importlib import metadata
import os
import sys

# Each in a process of its own, as it is started: Nova does not start with
# what another one has imported. Those of Watcher are loaded by Watcher, which
# this does not need.
for entry in metadata.distribution('ghsched').entry_points:
    if entry.group.startswith('watcher_'):
        continue
    child = os.fork()
    if not child:
        entry.load()
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit(f'{entry.name} cannot be loaded')
EOF
    )
    (cd / && "$WORK/$1/bin/ghsched" --help > /dev/null)
}

# check_gone NAME: after the removal the interpreter is as it was before.
check_gone() {
    diff "$WORK/$1.state" <(state_of "$1" 2>&1) ||
        { say "the removal from $1 has left something"; return 1; }
}

build() {
    (cd "$WORK/tree" &&
        "$BASE" -m build --no-isolation --sdist --wheel \
            --outdir "$WORK/dist" . > "$WORK/build.log" 2>&1) ||
        { cat "$WORK/build.log"; return 1; }
    WHEEL=$(echo "$WORK"/dist/*.whl)
    say "built $(basename "$WHEEL") and $(cd "$WORK/dist" && echo *.tar.gz)"
}

# The sdist must hold all that a wheel is built from.
build_from_sdist() {
    mkdir "$WORK/sdist"
    tar -xf "$WORK"/dist/*.tar.gz -C "$WORK/sdist" --strip-components 1
    (cd "$WORK/sdist" && "$BASE" -m build --no-isolation --wheel \
        --outdir "$WORK/dist2" . > "$WORK/build.log" 2>&1) ||
        { cat "$WORK/build.log"; return 1; }
    local list='import sys, zipfile
names = zipfile.ZipFile(sys.argv[1]).namelist()
print(*sorted(n for n in names if ".dist-info/" not in n), sep="\n")'
    diff <("$BASE" -c "$list" "$WHEEL") \
        <("$BASE" -c "$list" "$WORK"/dist2/*.whl)
    say 'ok: the sdist gives the same wheel'
}

wheel() {
    make_venv wheel
    pip_in wheel install --no-deps "$WHEEL"
    check wheel "$WORK/wheel"
    check_changes_nothing wheel
    check_entry_points wheel
    pip_in wheel uninstall -y ghsched
    check_gone wheel
    say 'ok: wheel'
}

# pip asks no index here, so that an install with requirements succeeds only
# when all of them are there already: it brings no Nova.
beside_nova() {
    make_venv beside
    pip_in beside install "$WHEEL"
    check beside "$WORK/beside"
    say 'ok: beside a Nova, which stays'
}

no_nova() {
    ! (cd / && "$WORK/$1/bin/python" -c 'import nova' 2> /dev/null) ||
        { say "$1 has a Nova"; return 1; }
}

# Every command of openstack can be loaded, and the pure tools too.
laptop() {
    make_venv laptop no-nova
    pip_in laptop install "$WHEEL[osc]"
    no_nova laptop
    (cd / && "$WORK/laptop/bin/python" -W ignore - << 'EOF'
from importlib import metadata

for entry in metadata.entry_points(group='openstack.ghsched.v1'):
    entry.load()
EOF
    )
    local program
    for program in ghsched ghsched-top ghsched-host ghsched-exporter; do
        (cd / && "$WORK/laptop/bin/$program" --help > /dev/null) ||
            { say "$program needs a Nova"; return 1; }
    done
    say 'ok: a laptop without Nova'
}

tempest() {
    make_venv tempest no-nova
    pip_in tempest install "$WHEEL[tempest]"
    no_nova tempest
    (cd / && "$WORK/tempest/bin/python" -W ignore - << 'EOF'
import pathlib
import unittest

from tempest.test_discover import plugins

tests, top = plugins.TempestTestPluginManager().get_plugin_load_tests_tuple()[
    'ghsched_tests']
found = unittest.TestLoader().discover(tests, top_level_dir=top)
if not found.countTestCases() or 'FailedTest' in str(found):
    raise SystemExit(f'tempest cannot load {found}')
EOF
    )
    say 'ok: tempest without Nova'
}

# editable NAME [PIP-OPTION...]
editable() {
    local name=$1
    shift
    make_venv "$name"
    pip_in "$name" install --no-deps --no-build-isolation "$@" \
        -e "$WORK/tree"
    check "$name" "$WORK/tree"
    pip_in "$name" uninstall -y ghsched
    check_gone "$name"
    say "ok: $name install"
}

# Nova in one site directory, ghsched in another: a distribution's packages
# below /usr/lib and pip's below /usr/local.
split() {
    make_venv split
    pip_in split install --no-deps --target "$WORK/other" "$WHEEL"
    echo "import site; site.addsitedir('$WORK/other')" \
        > "$(site_of split)/other.pth"
    check split "$WORK/other"
    say 'ok: split site directories'
}

copy_tree
link_base
link_without_nova
build
build_from_sdist
wheel
beside_nova
laptop
tempest
editable editable
editable editable-strict --config-settings editable_mode=strict
split
