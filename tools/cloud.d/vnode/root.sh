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


# Root file systems of Debian bookworm for machines with an init of our own; to
# be sourced by bash after debian.sh.

# debian_root ROOT PACKAGE...: a minimal system in a directory
debian_root() {
    debootstrap --variant=minbase --include="$(IFS=,; echo "${*:2}")" \
        bookworm "$1" "$(debian_mirror)" < /dev/null
    rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* \
        "$1"/usr/share/{doc,locale,man}
}

# debian_kernel ROOT WORK UNWANTED: the stock kernel's modules, but for those
# that match, into a root; WORK/vmlinuz, and WORK/version with its name. The
# package is unpacked, not installed: its scripts would make an initrd for any
# machine, and a boot loader's menu.
debian_kernel() {
    local root=$1 work=$2 unwanted=$3
    debian_lists "$work/apt" bookworm
    debian_download "$work" "$(debian_needs linux-image-amd64)"
    dpkg-deb -x "$work"/linux-image-*.deb "$work/kernel"
    (cd "$work/kernel/lib/modules"/* && find kernel -name '*.ko' |
        grep -E "$unwanted" | xargs rm -f)
    mv "$work"/kernel/boot/vmlinuz-* "$work/vmlinuz"
    mv "$work"/kernel/lib/modules "$root/usr/lib/modules"
    ls "$root/usr/lib/modules" > "$work/version"
    chroot "$root" depmod "$(cat "$work/version")"
}

# debian_vmlinux WORK: WORK/vmlinux, the stock kernel as it is in memory, after
# debian_kernel. QEMU boots it by its PVH entry; to unpack vmlinuz takes an
# emulated CPU longer than all the rest of a boot.
debian_vmlinux() {
    python3 - "$1" << 'PYTHON'
import lzma
import pathlib
import sys

work = pathlib.Path(sys.argv[1])
packed = (work / 'vmlinuz').read_bytes()
start = packed.index(b'\xfd7zXZ\0')
(work / 'vmlinux').write_bytes(
    lzma.LZMADecompressor().decompress(packed[start:]))
PYTHON
}

# debian_initrd ROOT WORK INIT: WORK/initrd.img, which finds the root file
# system on the first disk; after debian_kernel, with busybox in the root
debian_initrd() {
    local root=$1 work=$2 ram=$2/ram module
    mkdir -p "$ram"/{bin,dev,proc,sys,sysroot}
    cp "$root/bin/busybox" "$ram/bin/"
    chroot "$root" modprobe -S "$(cat "$work/version")" -a --show-depends \
        virtio_pci virtio_blk ext4 |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }' > "$work/modules"
    while read -r module; do
        cp "$root/$module" "$ram/"
        basename "$module"
    done < "$work/modules" > "$ram/modules"
    install -m 755 "$3" "$ram/init"
    (cd "$ram" && find . | cpio -o -H newc --quiet | gzip) \
        > "$work/initrd.img"
}
