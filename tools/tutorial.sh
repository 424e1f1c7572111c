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

# Type the commands of README.rst and of the tutorial into a terminal, and
# compare what they print with the pages. Each guest has to say on its console
# that it is ready. The last line counts.
#
# usage: tools/tutorial.sh [--all]
#   --all  with the commands that bring the cloud up and take it down. Without
#          it the cloud of tools/demo.sh is used, which must be up

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
show_help "$0" "$@"
case $* in
'' | --all) ;;
*) die "unknown argument: $*; see: tools/tutorial.sh --help" ;;
esac
need_root "$@"
[ -x "$VENV/bin/python" ] ||
    die "nothing is set up in $GHSCHED_HOME; start with: tools/demo.sh"
exec "$VENV/bin/python" "$GHSCHED_TOP/tools/cloud.d/tutorial.py" "$@" \
    "$GHSCHED_TOP/doc/source/start/tutorial.rst" "$GHSCHED_TOP/README.rst"
