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

# Grenade: install the target's ghsched below the services, and start them with
# it. nova.conf stays as it was.

set -o errexit

. $GRENADE_DIR/grenaderc
. $GRENADE_DIR/functions
. $TARGET_DEVSTACK_DIR/functions
. $TARGET_DEVSTACK_DIR/stackrc
. $TARGET_DEVSTACK_DIR/lib/tls
. $TARGET_DEVSTACK_DIR/lib/apache
. $TARGET_DEVSTACK_DIR/lib/nova
# A job of Zuul has put it there.
git_clone_by_name ghsched
GHSCHED_DIR=$TARGET_RELEASE_DIR/ghsched
. $GHSCHED_DIR/devstack/settings
. $GHSCHED_DIR/devstack/lib/ghsched

set -o xtrace

echo "*********************************************************************"
echo "Begin $0"
echo "*********************************************************************"

install_ghsched
override_ghsched_services
check_ghsched

# Nova's own upgrade has started these with the ghsched of before.
_services=
for _service in n-api n-sch n-cpu; do
    if is_service_enabled $_service; then
        $SYSTEMCTL restart devstack@$_service.service
        _services+=" $_service"
    fi
done
# A service that ends at once is found here.
ensure_services_started $_services

set +o xtrace
echo "*********************************************************************"
echo "SUCCESS: End $0"
echo "*********************************************************************"
