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


# Make the nested guest's ramdisk, which holds one program, and its disk,
# which holds nothing.
#
# usage: guest-ramdisk.sh DIRECTORY    makes image and disk

set -euo pipefail
target=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
gcc -Wall -Wextra -Werror -Os -static -nostdlib -ffreestanding \
    -mgeneral-regs-only -fno-stack-protector -fno-pie -no-pie \
    -fno-asynchronous-unwind-tables -Wl,--build-id=none,-z,noseparate-code \
    -s -o "$work/init" "$here/guest_init.c"
(cd "$work" && echo init | cpio -o -H newc --quiet) > "$target/image"
truncate -s 1M "$target/disk"
