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


# Put the Python environment into a file system image for the node.
#
# usage: node-environment.sh DIRECTORY VENV    makes image

set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin
target=$1
venv=$2
size=$(du -sm --apparent-size "$venv" | cut -f 1)
truncate -s $((size * 3 / 2 + 100))M "$target/image"
mke2fs -q -F -t ext4 -O '^has_journal' -m 0 -N 200000 -d "$venv" \
    "$target/image"
