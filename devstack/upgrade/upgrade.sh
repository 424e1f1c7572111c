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

# Grenade: install the target's ghsched; what it has configured stays.

set -o errexit

. $GRENADE_DIR/grenaderc
. $GRENADE_DIR/functions
. $TARGET_DEVSTACK_DIR/functions
. $TARGET_DEVSTACK_DIR/stackrc
. $TARGET_DEVSTACK_DIR/lib/tls
. $TARGET_DEVSTACK_DIR/lib/apache
. $TARGET_DEVSTACK_DIR/lib/nova
GHSCHED_DIR=$TARGET_RELEASE_DIR/ghsched
. $GHSCHED_DIR/devstack/settings
. $GHSCHED_DIR/devstack/lib/ghsched

set -o xtrace

install_ghsched
sudo install -o root -g root -m 0644 \
    $GHSCHED_DIR/etc/nova/$GHSCHED_ROOTWRAP $NOVA_CONF_DIR/$GHSCHED_ROOTWRAP
# Earlier releases ran in nova-compute.
if is_service_enabled n-cpu; then
    override_ghsched_compute
fi
