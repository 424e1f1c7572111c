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


# Show a flavor's memory-bandwidth guarantee on its way to the host: brings up
# a whole OpenStack (tools/cloud) with one simulated compute host, boots
# guests, and looks at Placement, the guests and the host. Nothing is needed
# but Debian 12, root (or sudo) and the package archives. Ends with an error
# if anything is not as it says.
#
# usage: tools/demo.sh [--vfs]
#   --vfs  show instead that a guest's VFs are of its NUMA nodes, on a compute
#          node with real VFs (tools/vnode), which takes a few minutes more to
#          make for the first time

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
show_help "$0" "$@"
case $* in
'' | --vfs) ;;
*) die "unknown argument: $*; see: tools/demo.sh --help" ;;
esac
need_root "$@"

begin=$EPOCHREALTIME
heading 'The cloud'
case ${1:-} in
--vfs)
    "$GHSCHED_TOP/tools/vnode" up
    demo=demo_vfs.py
    ;;
'')
    # A second host would take guests that are shown on the first.
    [ ! -e "$GHSCHED_HOME/run/vnode.pid" ] ||
        "$GHSCHED_TOP/tools/vnode" down
    "$GHSCHED_TOP/tools/cloud" up
    demo=demo.py
    ;;
esac
"$VENV/bin/python" "$GHSCHED_TOP/tools/cloud.d/$demo"
printf '\nFrom start to end: %.0f s.\n' "$(seconds_since "$begin")"
