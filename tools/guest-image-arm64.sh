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



# Make the guest of guest-image.sh for arm64, on a machine of any kind: kernel
# and busybox of Debian 12, and the UEFI firmware of Debian 13. Debian 12's
# firmware lists flash as memory of no NUMA node, and an arm64 kernel then
# drops its whole NUMA set-up. The packages are downloaded and unpacked through
# an apt with lists of its own; nothing is installed, and the machine's own apt
# and dpkg stay as they are.
#
# usage: tools/guest-image-arm64.sh [DIRECTORY]
#        makes vmlinuz, initrd.img, AAVMF_CODE.fd and AAVMF_VARS.fd

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$GHSCHED_TOP/tools/cloud.d/vnode/debian.sh"
show_help "$0" "$@"

target=${1:-$GHSCHED_HOME/cache/guest-arm64}
mirror=$(debian_mirror)
init=$GHSCHED_TOP/tools/cloud.d/guest-init
revision=$(cat "$0" "$init" | sha256sum | cut -c 1-16)
[ "$(cat "$target/revision" 2> /dev/null)" != "$revision" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$target"

# private_apt COMMAND [ARGUMENT...]: COMMAND as on an arm64 machine.
private_apt() {
    local command=$1
    shift
    "$command" -q -o Dir::State="$work/state" -o Dir::Cache="$work/cache" \
        -o Dir::State::status="$work/status" \
        -o Dir::Etc::SourceList="$work/sources.list" \
        -o Dir::Etc::SourceParts=/nonexistent \
        -o APT::Architecture=arm64 -o APT::Architectures::=arm64 \
        -o APT::Sandbox::User=root -o Acquire::Languages=none "$@"
}

prepare_apt() {
    mkdir -p "$work"/{state/lists,cache/archives}/partial "$work/deb"
    touch "$work/status"
    printf 'deb %s %s main\n' "$mirror" bookworm "$mirror" trixie \
        > "$work/sources.list"
    private_apt apt-get update
}

# fetch PACKAGE RELEASE: the package, unpacked below $work/unpacked.
fetch() {
    (cd "$work/deb" && private_apt apt-get download "$1/$2")
    dpkg-deb --extract "$work/deb/$1"_*.deb "$work/unpacked"
}

kernel_package() {
    private_apt apt-cache show linux-image-cloud-arm64/bookworm |
        sed -n 's/^Depends: \([^ ,]*\).*/\1/p' | head -n 1
}

make_ramdisk() {
    local root=$work/ramdisk
    mkdir -p "$root"/{bin,dev,proc,sys}
    cp "$work"/unpacked/bin/busybox "$root/bin/busybox"
    install -m 755 "$init" "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -9) \
        > "$target/initrd.img"
}

prepare_apt
fetch "$(kernel_package)" bookworm
fetch busybox-static bookworm
fetch qemu-efi-aarch64 trixie
cp "$work"/unpacked/boot/vmlinuz-* "$target/vmlinuz"
firmware=$work/unpacked/usr/share/AAVMF
cp --dereference "$firmware/AAVMF_CODE.no-secboot.fd" "$target/AAVMF_CODE.fd"
cp --dereference "$firmware/AAVMF_VARS.fd" "$target/AAVMF_VARS.fd"
make_ramdisk
echo "$revision" > "$target/revision"
