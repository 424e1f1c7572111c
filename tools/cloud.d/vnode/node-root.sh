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


# Make the virtual compute node's root file system: Debian bookworm with its
# stock kernel, libvirt and QEMU, and an init of our own instead of systemd.
#
# usage: node-root.sh DIRECTORY    makes vmlinuz, initrd.img and root.img

set -euo pipefail
target=$1
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/debian.sh"
. "$here/root.sh"

# No init system, no daemon manager, no guest agent: what the compute node
# runs, and what a person needs who logs in.
packages=(
    busybox-static fuse3 iproute2 kmod libfuse2 libpython3.11
    libvirt-clients libvirt-daemon libvirt-daemon-driver-qemu mbw numactl
    openssh-server pciutils procps python3 qemu-system-x86 qemu-utils
)

# What the kernel must load once it has a root file system.
later=(virtio_net virtio_rng igb vfio_pci fuse tun)
# Large, and of no use to this machine.
unwanted='drivers/(ata|firmware|gpu|infiniband|isdn|media|mtd|nvme)/'
unwanted+='|drivers/(scsi|staging|target|usb)/|/sound/'
unwanted+='|/net/(wireless|bluetooth|mac80211)/'

work=$(mktemp -d -p "$target")
trap 'rm -rf "$work"' EXIT
root=$work/root

prepare_modules() {
    printf '%s\n' "${later[@]}" > "$root/etc/vnode-modules"
    # A VF must stay without a driver until a guest gets it.
    echo 'blacklist igbvf' > "$root/etc/modprobe.d/vnode.conf"
}

# libvirt looks up the user that its Debian package was built for, even if it
# is told to use another one.
add_users() {
    chroot "$root" groupadd --system libvirt
    chroot "$root" useradd --system --user-group libvirt-qemu
}

add_init() {
    install -m 755 "$here/node-init" "$root/sbin/ghsched-init"
    mkdir -p "$root/etc/ssh/sshd_config.d"
    chroot "$root" sh -c 'install -d -m 700 ~root/.ssh'
    printf '%s\n' 'UsePAM no' 'UseDNS no' 'PasswordAuthentication no' \
        'PermitRootLogin prohibit-password' \
        > "$root/etc/ssh/sshd_config.d/vnode.conf"
    echo virtual-1 > "$root/etc/hostname"
    printf '127.0.0.1 localhost\n127.0.1.1 virtual-1\n' > "$root/etc/hosts"
}

debian_root "$root" "${packages[@]}"
debian_kernel "$root" "$work" "$unwanted"
prepare_modules
add_users
add_init
debian_initrd "$root" "$work" "$here/node-initrd-init"
truncate -s 4G "$work/root.img"
mke2fs -q -F -t ext4 -O '^has_journal' -d "$root" "$work/root.img"
mv "$work"/{vmlinuz,initrd.img,root.img} "$target/"
