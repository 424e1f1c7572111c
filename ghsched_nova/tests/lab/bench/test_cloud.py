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

"""The edge to a cloud, against the interface of openstacksdk."""

import base64
import types

from openstack.compute import compute_service
from openstack.compute.v2 import server
from openstack import exceptions
from openstack.image import image_service
from openstack.network import network_service
from openstack.test import fakes
import requests

from ghsched_nova.lab.bench import cloud
from ghsched_nova.lab.bench import density
from ghsched_nova.lab.bench import errors
from ghsched_placement.tests import base

ADDRESSES = {'private': [
    {'addr': '2001:db8::5', 'version': 6, 'OS-EXT-IPS:type': 'fixed'},
    {'addr': '192.0.2.5', 'version': 4, 'OS-EXT-IPS:type': 'fixed'}]}


class CloudTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.compute = fakes.generate_fake_proxy(
            compute_service.ComputeService)
        self.connection = types.SimpleNamespace(
            compute=self.compute,
            image=fakes.generate_fake_proxy(image_service.ImageService, '2'),
            network=fakes.generate_fake_proxy(
                network_service.NetworkService))
        self.server = fakes.generate_fake_resource(
            server.Server, addresses=ADDRESSES, host_id='h1')
        self.compute.create_server.side_effect = None
        self.compute.create_server.return_value = self.server
        self.compute.wait_for_server.side_effect = None
        self.compute.wait_for_server.return_value = self.server
        self.compute.find_server.side_effect = None
        self.compute.find_server.return_value = self.server

    def cloud(self, **order):
        return cloud.Cloud(self.connection, cloud.Order(
            image='i', network='n', **order))

    def test_a_guest_is_booted_as_it_is_ordered(self):
        found = self.cloud(key='k', security_group='open',
                           availability_zone='nova:one').boot('small', '#!x')
        self.assertEqual(cloud.BootedServer(self.server.id, '192.0.2.5', 'h1'),
                         found)
        self.compute.find_flavor.assert_called_once_with(
            'small', ignore_missing=False)
        body = self.compute.create_server.call_args.kwargs
        self.assertEqual(b'#!x', base64.b64decode(body['user_data']))
        self.assertEqual(('k', 'nova:one', [{'name': 'open'}]), (
            body['key_name'], body['availability_zone'],
            body['security_groups']))

    def test_unrequested_fields_are_not_sent(self):
        self.cloud().boot('small')
        self.assertEqual(
            {'name', 'flavor_id', 'image_id', 'networks'},
            set(self.compute.create_server.call_args.kwargs))

    def test_a_body_is_one_that_the_server_takes(self):
        self.cloud(key='k', security_group='open').boot('small', '#!x')
        made = server.Server(**self.compute.create_server.call_args.kwargs)
        self.assertLessEqual(
            {'name', 'flavorRef', 'imageRef', 'networks', 'key_name',
             'user_data', 'security_groups'},
            set(made._prepare_request(requires_id=False).body['server']))

    def test_no_valid_host_is_no_room_and_leaves_nothing(self):
        self.compute.wait_for_server.side_effect = exceptions.ResourceFailure(
            'went to ERROR')
        self.compute.get_server.side_effect = None
        self.compute.get_server.return_value = fakes.generate_fake_resource(
            server.Server, fault={'message': 'No valid host was found.'})
        error = self.assertRaises(density.FullError, self.cloud().boot,
                                  'small')
        self.assertEqual('No valid host was found.', str(error))
        self.compute.delete_server.assert_called_once_with(
            self.server, ignore_missing=True)
        self.compute.wait_for_delete.assert_called_once()

    def refusal(self, status):
        response = requests.Response()
        response.status_code = status
        try:
            exceptions.raise_from_response(response, 'said no')
        except exceptions.HttpException as error:
            return error

    def test_a_quota_is_no_room(self):
        self.compute.create_server.side_effect = self.refusal(403)
        self.assertRaises(density.FullError, self.cloud().boot, 'small')
        self.compute.delete_server.assert_not_called()

    def test_any_other_refusal_ends_the_run(self):
        self.compute.create_server.side_effect = self.refusal(400)
        error = self.assertRaises(errors.BenchError, self.cloud().boot,
                                  'small')
        self.assertIn('the cloud: ', str(error))

    def test_a_flavor_that_is_not_there(self):
        self.compute.find_flavor.side_effect = exceptions.NotFoundException(
            'No Flavor found for small')
        error = self.assertRaises(errors.BenchError, self.cloud().boot,
                                  'small')
        self.assertIn('No Flavor found', str(error))

    def test_a_guest_that_is_too_slow_is_deleted(self):
        self.compute.wait_for_server.side_effect = exceptions.ResourceTimeout(
            'Timeout')
        self.assertRaises(errors.BenchError, self.cloud().boot, 'small')
        self.compute.delete_server.assert_called_once()

    def test_deleting_what_is_gone(self):
        self.compute.find_server.return_value = None
        self.cloud().delete(cloud.BootedServer('u', '', ''))
        self.compute.delete_server.assert_not_called()

    def test_console(self):
        self.compute.get_server_console_output.return_value = {
            'output': 'a\nb'}
        self.assertEqual('a\nb', self.cloud().console(
            cloud.BootedServer('u', '', '')))
        self.compute.get_server_console_output.assert_called_once_with(
            'u', length=5000)

    def test_load_that_no_host_tells(self):
        for answer in (self.refusal(403), exceptions.SDKException('away')):
            self.compute.get.side_effect = answer
            self.assertIsNone(self.cloud().load(cloud.BootedServer('u', '',
                                                                   '')))

    def test_no_cloud_is_configured(self):
        error = self.assertRaises(errors.BenchError, cloud.connect,
                                  'no such cloud', cloud.Order('i', 'n'))
        self.assertIn('no such cloud', str(error))

    def test_address(self):
        self.assertEqual('192.0.2.5', cloud.address(ADDRESSES))
        self.assertEqual('198.51.100.1', cloud.address({**ADDRESSES, 'b': [
            {'addr': '198.51.100.1', 'version': 4,
             'OS-EXT-IPS:type': 'floating'}]}))
        self.assertRaises(errors.BenchError, cloud.address, {})
