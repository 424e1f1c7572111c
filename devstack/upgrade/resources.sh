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

# Grenade: a guest with bandwidth lives through the upgrade, and Placement
# holds the same for it afterwards.
#
# usage: resources.sh early_create|create|verify_noapi|verify|destroy PHASE

set -o errexit

. $GRENADE_DIR/grenaderc
. $GRENADE_DIR/functions
. $TOP_DIR/openrc admin admin

set -o xtrace

FLAVOR=ghsched-grenade
SERVER=ghsched-grenade

# Without the generations of providers, which any change of a host raises.
held() {
    openstack resource provider allocation show -f json \
        -c resource_provider -c resources "$(resource_get ghsched server)"
}

create() {
    local image
    image=$(openstack image list --status active -f value -c ID | head -n 1)
    openstack flavor create --ram 128 --disk 1 --vcpus 1 \
        --property hw:numa_nodes=1 --property ghsched:mem_bw_min=20 $FLAVOR
    resource_save ghsched server "$(openstack server create --wait \
        --flavor $FLAVOR --image $image --nic none -f value -c id $SERVER)"
    resource_save ghsched held "$(held | base64 -w 0)"
}

verify() {
    [[ $(openstack server show -f value -c status $SERVER) == ACTIVE ]]
    [[ $(held | base64 -w 0) == $(resource_get ghsched held) ]]
}

destroy() {
    openstack server delete --wait $SERVER
    openstack flavor delete $FLAVOR
}

case $1 in
create | verify | destroy) $1 ;;
early_create | verify_noapi) ;;
esac
