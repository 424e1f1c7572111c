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

"""Errors of a host that cannot control memory bandwidth."""


class ReasonedError(Exception):
    """Error with its reason, a text for users."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ResctrlUnavailable(ReasonedError):  # noqa: N818
    """This host cannot control memory bandwidth."""


class PolicyRefused(ReasonedError):  # noqa: N818
    """This host cannot enforce a guest's bandwidth policy.

    The reason names the flavor's extra spec if one is the cause.
    """
