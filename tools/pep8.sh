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

# The static checks: tools/pep8.sh [CHECK]...
# CHECK: flake8 ruff mypy bashate english house sizes tests
# words.
# All of them when none is named. They run in the environment of $PYTHON
# (default: python3 of the PATH).

set -u
cd "$(dirname "$0")/.." || exit
PYTHON=${PYTHON:-python3}

# Every file of the tree that git would know of; all of them where the tree is
# not a git work tree.
files() {
    git ls-files --cached --others --exclude-standard 2> /dev/null ||
        find . -type f -not -path '*/.*' -printf '%P\n'
}

# Shell scripts by suffix or by their first line.
scripts() {
    local file line
    while read -r file; do
        [ -f "$file" ] || continue
        case $file in
        *.sh | devstack/settings | devstack/lib/* | devstack/*/settings)
            echo "$file"
            ;;
        *.*) ;;
        *)
            read -r line < "$file" 2> /dev/null || continue
            case $line in '#!'*sh) echo "$file" ;; esac
            ;;
        esac
    done < <(files)
}

check() {
    case $1 in
    flake8) "$PYTHON" -m flake8 ;;
    ruff) "$PYTHON" -m ruff check --no-cache . ;;
    mypy) "$PYTHON" -m mypy ;;
    bashate)
        # E010 and E011 take a loop or a condition that spans lines for one
        # whose "do" or "then" stands alone.
        # shellcheck disable=SC2046
        "$PYTHON" -m bashate.bashate -e E041 -i E010,E011 $(scripts)
        ;;
    english)
        ! files | grep -v -e '/testdata/' -e '^tools/banned-phrases$' \
            -e '^tools/words.py$' -e '\.patch$' |
            xargs -d '\n' grep -nsIiE -f tools/banned-phrases
        ;;
    house)
        "$PYTHON" tools/house.py
        ;;
    sizes)
        # shellcheck disable=SC2046
        "$PYTHON" tools/sizes.py $(files | grep '\.py$')
        ;;
    tests)
        # shellcheck disable=SC2046
        "$PYTHON" tools/test_names.py \
            $(files | grep '^ghsched_.*/tests/.*\.py$')
        ;;
    words)
        # shellcheck disable=SC2046
        "$PYTHON" tools/words.py \
            $(files | grep '^\(ghsched_\|tempest_plugin/\|tools/\).*\.py$')
        ;;
    *)
        echo "$0: no such check: $1" >&2
        return 2
        ;;
    esac
}

failed=0
[ $# -gt 0 ] || set -- flake8 ruff mypy bashate english house sizes tests \
    words
for name in "$@"; do
    check "$name" || failed=1
done
exit $failed
