"""The step of the walk at a guarded door: TLS, a token, a client's certificate."""

import os
from pathlib import Path

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from procyard.v1.lifecycle_pb2 import StartRequest
from procyard.v1.records_pb2 import GetRequest, ListRequest
from procyard.v1.service_pb2_grpc import ProcessServiceStub
from procyard.v1.spec_pb2 import Spec
from procyard.v1.wait_pb2 import WaitFor

DOOR = Path(os.environ["PROCYARD_DOOR"])


def the_door_knows_who_calls(walk):
    def owner(channel, name):
        wait = WaitFor(exit=WaitFor.Exit())
        request = StartRequest(id=walk.id(name), spec=Spec(shell="exit 0"), wait=wait)
        return ProcessServiceStub(channel).Start(request).process.spec.owner

    token = (DOOR / "token").read_text().strip()
    with knock(token=token) as channel:
        assert owner(channel, "door") == "token-walker"
    with knock(certificate="client") as channel:
        assert owner(channel, "hall") == "walker"
        request = GetRequest(id=walk.id("door"))
        refused(walk, channel, "Get", request, grpc.StatusCode.NOT_FOUND, "PROCESS_NOT_FOUND")
    for shown, reason in ((None, "NO_CREDENTIALS"), ("wrong", "BAD_CREDENTIALS")):
        with knock(token=shown) as channel:
            refused(walk, channel, "List", ListRequest(), grpc.StatusCode.UNAUTHENTICATED, reason)
    with knock(certificate="stranger") as channel:
        try:
            ProcessServiceStub(channel).List(ListRequest())
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error
        else:
            raise AssertionError("a stranger's certificate was taken")


def knock(token=None, certificate=None):
    """A channel to the guarded door, for who has a token or a certificate."""

    def file(name):
        return (DOOR / name).read_bytes()

    pair = (file(f"{certificate}.key"), file(f"{certificate}.pem")) if certificate else (None, None)
    credentials = grpc.ssl_channel_credentials(file("ca.pem"), *pair)
    if token:
        shown = grpc.access_token_call_credentials(token)
        credentials = grpc.composite_channel_credentials(credentials, shown)
    return grpc.secure_channel((DOOR / "address").read_text().strip(), credentials)


def refused(walk, channel, method, request, code, reason):
    failed, details = walk.failure(lambda: getattr(ProcessServiceStub(channel), method)(request))
    assert (failed, details[ErrorInfo].reason) == (code, reason), (failed, details)
