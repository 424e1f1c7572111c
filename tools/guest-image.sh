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


# Make a guest that boots in a few seconds without hardware virtualisation
# and prints on its console what it sees of NUMA: Debian's cloud kernel, taken
# from its package without installing it, and a busybox as the only program.
#
# usage: tools/guest-image.sh [DIRECTORY]   makes vmlinuz, initrd.img, disk.raw

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
show_help "$0" "$@"

target=${1:-$GHSCHED_HOME/cache/guest}
init=$GHSCHED_TOP/tools/cloud.d/guest-init
revision=$(cat "$0" "$init" | sha256sum | cut -c 1-16)
[ "$(cat "$target/revision" 2> /dev/null)" != "$revision" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$target"

kernel_package() {
    apt-cache depends "linux-image-cloud-$(dpkg --print-architecture)" |
        awk '$1 == "Depends:" { print $2; exit }'
}

# What a guest loads for the port of ghsched:guest_channel, in this order.
modules=(virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev
    virtio_pci virtio_console)

fetch_kernel() {
    local package name
    package=$(kernel_package)
    [ -n "$package" ] || die "apt knows no Debian cloud kernel;" \
        "is there a Debian archive in its sources?"
    (cd "$work" && apt-get -q -o APT::Sandbox::User=root download "$package")
    dpkg-deb --fsys-tarfile "$work"/linux-image-*.deb |
        tar -xO --wildcards './boot/vmlinuz-*' > "$target/vmlinuz.new"
    mkdir -p "$target/modules"
    for name in "${modules[@]}"; do
        dpkg-deb --fsys-tarfile "$work"/linux-image-*.deb |
            tar -xO --wildcards "*/$name.ko" > "$target/modules/$name.ko"
    done
    mv "$target/vmlinuz.new" "$target/vmlinuz"
}

make_ramdisk() {
    local root=$work/root
    mkdir -p "$root"/{bin,dev,proc,sys}
    cp /bin/busybox "$root/bin/busybox"
    cp -r "$target/modules" "$root/modules"
    install -m 755 "$init" "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -9) \
        > "$target/initrd.img"
}

[ -s "$target/vmlinuz" ] && [ -d "$target/modules" ] || fetch_kernel
make_ramdisk
truncate -s 1M "$target/disk.raw"
echo "$revision" > "$target/revision"
