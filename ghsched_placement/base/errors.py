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


"""Exceptions for invalid flavors."""


class PolicyError(ValueError):
    """Raised for an extra spec that is invalid or cannot be enforced.

    :param key: name of the extra spec.
    :param reason: reason why it is refused.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f'{key}: {reason}')
        self.key = key
        self.reason = reason
