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

# build.sh SOURCE DIRECTORY: build a program of the kernel's own driver for Arm
# MPAM (drivers/resctrl/mpam_*.c) and its check of values (fs/resctrl).
#
# SOURCE is linux-source-7.3.tar.xz, as Debian's package linux-source-7.3 puts
# it into /usr/src. The kernel's files are compiled as they are, with the
# kernel's headers for User Mode Linux; the files beside this script stand for
# what an Arm machine and the rest of a kernel have. DIRECTORY/mpam_driver is
# the program. It is a work of Linux (GPL-2.0): it is no part of ghsched and is
# not given away with it. Needs gcc, make, flex, bison and bc.

set -eu
here=$(cd "$(dirname "$0")" && pwd)
source=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")

if [ ! -d "$out/source" ]; then
    mkdir "$out/source"
    tar -C "$out/source" --strip-components=1 -xf "$source"
fi
cd "$out/source/arch/um"
if [ ! -d kernel/mpam ]; then
    sed -i '0,/^\tdefault y$/s//&\n\tselect ARCH_HAS_CPU_RESCTRL/' Kconfig
    echo '#include <linux/arm_mpam.h>' > include/asm/resctrl.h
    mkdir kernel/mpam
    echo 'obj-y := devices.o resctrl.o schemata.o msc.o host.o' \
        > kernel/mpam/Makefile
fi
cd "$out/source"
cp "$here/mpam.h" arch/um/include/asm/
cp "$here/driver.h" "$here/host.h" "$here"/*.c arch/um/kernel/mpam/
make=(make ARCH=um "O=$out" "-j${JOBS:-1}")
[ -f "$out/.config" ] ||
    "${make[@]}" KCONFIG_ALLCONFIG="$here/um.config" allnoconfig
# A directory as the target builds nothing in a fresh tree.
"${make[@]}" arch/um/kernel/mpam/{devices,resctrl,schemata,msc,host}.o \
    lib/find_bit.o
# What is missing is not called: a call would end the program.
gcc -no-pie -Wl,--unresolved-symbols=ignore-all -z noexecstack \
    -o "$out/mpam_driver" "$out"/arch/um/kernel/mpam/{devices,resctrl}.o \
    "$out"/arch/um/kernel/mpam/{schemata,msc,host}.o "$out/lib/find_bit.o"
