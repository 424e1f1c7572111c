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

# A guest with a device on a host node without CPUs, in QEMU and libvirt of
# Debian sid: ghsched's XML, the command line that libvirt makes of it, and the
# NUMA nodes that an unmodified kernel shows in sysfs, on q35 and on aarch64
# virt, with an ACPI generic initiator and without, and with two devices whose
# memory windows of 128 GiB need addresses. Packages are unpacked, not
# installed; the guests are emulated, some minutes each.
#
# usage: tools/judge/device_cells/judge.sh [DIRECTORY]
#   DIRECTORY  where the packages are unpacked, kept for the next time

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../lib.sh"
. "$GHSCHED_TOP/tools/cloud.d/vnode/debian.sh"
show_help "$0" "$@"
need_root "$@"

root=${1:-$GHSCHED_HOME/cache/debian-sid}
here=$GHSCHED_TOP/tools/judge/device_cells
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

unpack_sid() {
    local package link
    debian_lists "$work/apt" sid
    : > "$work/status"
    apt-get "${DEBIAN_APT[@]}" -o Dir::State::status="$work/status" \
        --yes --no-install-recommends --download-only install \
        qemu-system-x86 qemu-system-arm qemu-efi-aarch64 seabios \
        libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients bash \
        coreutils
    mkdir -p "$root"/usr/{bin,sbin,lib,lib64} "$root/var"
    for link in bin sbin lib lib64; do
        ln -sfn "usr/$link" "$root/$link"
    done
    ln -sfn /run "$root/var/run"
    for package in "$work"/apt/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" |
            tar -x --keep-directory-symlink -C "$root"
    done
    mkdir -p "$root"/{dev,proc,sys,run,tmp,judge,etc/libvirt}
    printf '%s\n' 'root:x:0:0::/root:/bin/bash' \
        'libvirt-qemu:x:64055:64055::/:/bin/false' > "$root/etc/passwd"
    printf '%s\n' 'root:x:0:' 'libvirt-qemu:x:64055:' > "$root/etc/group"
    printf '%s\n' 'user="root"' 'group="root"' 'security_driver="none"' \
        'namespaces=[]' > "$root/etc/libvirt/qemu.conf"
    touch "$root/judge/unpacked"
}

# in_root COMMAND...: in a mount namespace of its own. libvirt refuses
# passthrough devices on a host without IOMMU groups.
in_root() {
    unshare --mount bash -ec '
        root=$1; shift
        mount -t tmpfs none "$root/dev"
        mkdir "$root/dev/vfio" "$root/dev/shm"
        touch "$root/dev/vfio/vfio"
        for one in null zero random urandom; do
            touch "$root/dev/$one"
            mount --bind "/dev/$one" "$root/dev/$one"
        done
        mount -t proc none "$root/proc"
        mount --rbind /sys "$root/sys"
        mount -t tmpfs none "$root/sys/kernel"
        mkdir -p "$root/sys/kernel/iommu_groups/0"
        mount -t tmpfs none "$root/run"
        mkdir "$root/run/libvirt"
        exec "$@"' bash "$root" "$@"
}

# translate NAME: the command line that libvirt makes of an XML.
translate() {
    in_root chroot "$root" bash -c '
        libvirtd --timeout 60 2> /judge/libvirtd.log &
        for _try in {1..60}; do
            [ -S /run/libvirt/libvirt-sock ] && break
            sleep 1
        done
        virsh -q version
        virsh -q domxml-to-native qemu-argv --xml "/judge/$1.xml" \
            > "/judge/$1.argv"
        kill %1' bash "$1"
}

[ -e "$root/judge/unpacked" ] || unpack_sid
bash "$GHSCHED_TOP/tools/guest-image.sh" "$work/x86_64"
bash "$GHSCHED_TOP/tools/guest-image-arm64.sh" "$work/aarch64"
cp "$root/usr/share/AAVMF/AAVMF_VARS.fd" "$root/judge/vars.fd"
failed=0
for architecture in x86_64 aarch64; do
    cp "$work/$architecture/vmlinuz" "$root/judge/$architecture.vmlinuz"
    cp "$work/$architecture/initrd.img" "$root/judge/$architecture.img"
    for how in with without large; do
        name=$architecture-$how
        PYTHONPATH=$GHSCHED_TOP "$VENV/bin/python" -W ignore \
            "$here/render.py" "$architecture" "$how" > "$root/judge/$name.xml"
        translate "$name"
        in_root "$VENV/bin/python" "$here/boot.py" "$root" "$architecture" \
            "$name" || failed=1
    done
done
exit "$failed"
