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

# tools/openeuler-libvirt.sh DIRECTORY PATCH...
#
# Build a libvirtd that knows openEuler's <memorytune>, from Debian's source
# package of libvirt and patches that put openEuler's part in. No patch is in
# this tree: libvirt is under the LGPL. openEuler's own are in its source
# package of libvirt; they are applied in the order given, with -p1.
#
# Nothing of the build is installed. The last line that is printed says how
# the tests and tools/cloud are given it.

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$GHSCHED_TOP/tools/cloud.d/vnode/debian.sh"

# Whatever a driver of QEMU does not need is left out.
OPTIONS=(
    --auto-features=disabled --prefix=/usr --sysconfdir=/etc
    --localstatedir=/var -Drunstatedir=/run -Dwerror=false
    -Doptimization=0 -Ddebug=false -Dsystem=true
    -Ddriver_qemu=enabled -Ddriver_remote=enabled -Ddriver_libvirtd=enabled
    -Dnumactl=enabled -Dyajl=enabled -Dudev=enabled -Dpciaccess=enabled
    -Dqemu_user=libvirt-qemu -Dqemu_group=libvirt-qemu
    -Dhost_validate=disabled -Dlibpcap=disabled -Dtests=disabled
    -Ddocs=disabled -Dnls=disabled
)

# source_package: as "apt-get source" fetches it, without its lists in /etc.
source_package() {
    local codename mirror keys=/usr/share/keyrings/debian-archive-keyring.gpg
    mirror=$(debian_mirror) || return
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mkdir -p "$TOP/apt/lists/partial" "$TOP/apt/cache/archives/partial" ||
        return
    echo "deb-src [signed-by=$keys] $mirror $codename main" \
        > "$TOP/apt/sources.list" || return
    local -a private=(
        -o "Dir::Etc::sourcelist=$TOP/apt/sources.list"
        -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$TOP/apt/lists"
        -o "Dir::Cache=$TOP/apt/cache" -o APT::Sandbox::User=root
    )
    apt-get "${private[@]}" update || return
    (cd "$TOP" && apt-get "${private[@]}" source libvirt)
}

patched() {
    local patch
    mv "$TOP"/libvirt-*/ "$TOP/source" || return
    for patch in "$@"; do
        patch -d "$TOP/source" -p1 < "$patch" || return
    done
}

show_help "$0" "$@"
[ $# -gt 1 ] || die 'a directory and patches are needed; see --help'
need_root "$@"
TOP=$(realpath "$1")
[ ! -e "$TOP/source" ] || die "$TOP has a build already"
PATCHES=()
for name in "${@:2}"; do
    [ -r "$name" ] || die "$name cannot be read"
    PATCHES+=("$(realpath "$name")")
done
mkdir -p "$TOP" "$(dirname "$SETUP_LOG")"
install_packages "$GHSCHED_TOP/bindep.txt" libvirt
step 'source of libvirt' source_package
step 'patches' patched "${PATCHES[@]}"
step 'configuration' meson setup "$TOP/build" "$TOP/source" "${OPTIONS[@]}"
step 'build' ninja -C "$TOP/build"
echo "export GHSCHED_OPENEULER_LIBVIRT=$TOP/build/src"
