#!/usr/bin/env python3
"""A store that speaks S3, for tests: moto, which checks signatures and policies as AWS does.

    s3_server.py FOLDER [--tls CERT KEY] [--open] [--at KEY NUMBER kill|change]

Serves the files in FOLDER as bucket `data`, and an empty bucket `closed` that no client may read. The roles
`reader` and `second` may be assumed with the external id `the-id`, or with a token of a web identity. Prints one
line of JSON (endpoint, key, secret), then serves until its standard input ends. GET /-/gets lists the objects
that were asked for. --open asks for no credentials; --at kills the server (SIGKILL), or puts other bytes of
the same length in the object's place, when KEY is asked for the NUMBERth time.
"""

import argparse
import io
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import boto3
from moto.core.responses import ActionAuthenticatorMixin
from moto import settings
from moto.sts.responses import TokenResponse
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.exceptions import HTTPException
from werkzeug.serving import make_server

POLICY = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": "s3:*", "Resource": "*"},
        {"Effect": "Deny", "Action": "s3:*", "Resource": ["arn:aws:s3:::closed", "arn:aws:s3:::closed/*"]},
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": "*"},
    ],
}
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"AWS": "*"},
            "Condition": {"StringEquals": {"sts:ExternalId": "the-id"}},
        },
    ],
}


class OneAtATime:
    """Makes conditional writes atomic, as Amazon's are: moto looks at the condition, then reads the body, then writes,
    and of two threads that do so at once both may win."""

    def __init__(self, application):
        self.application = application
        self.lock = threading.Lock()

    def __call__(self, environ, start_response):
        if "HTTP_IF_MATCH" not in environ and "HTTP_IF_NONE_MATCH" not in environ:
            return self.application(environ, start_response)
        # Before the lock is taken, so that a client that sends slowly holds up no other.
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        with self.lock:
            return self.application(environ, start_response)


class Watched:
    """Notes the requested objects, and carries out the fault set for one of them."""

    def __init__(self, application, at):
        self.application = application
        self.at = at
        self.gets = []
        self.lock = threading.Lock()

    def __call__(self, environ, start_response):
        path = environ["PATH_INFO"]
        if path == "/-/gets":
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self.gets).encode()]
        if environ["REQUEST_METHOD"] == "GET" and path.startswith("/data/"):
            key = path.removeprefix("/data/")
            with self.lock:
                self.gets.append(key)
                number = self.gets.count(key)
            if self.at and (key, str(number)) == tuple(self.at[:2]):
                self.interfere(key)
        return self.application(environ, start_response)

    def interfere(self, key):
        if self.at[2] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        before = self.store.get_object(Bucket="data", Key=key)["Body"].read()
        self.store.put_object(Bucket="data", Key=key, Body=bytes(byte ^ 1 for byte in before))


class Unsigned:
    """Lets moto find the action of a request that bears no signature in its query, too, and not in its body alone."""

    def __init__(self, application):
        self.application = application

    def __call__(self, environ, start_response):
        query = environ.get("QUERY_STRING", "")
        if "Action=AssumeRoleWithWebIdentity" in query:
            environ["wsgi.input"] = io.BytesIO(query.encode())
            environ["CONTENT_LENGTH"] = str(len(query))
            environ["CONTENT_TYPE"] = "application/x-www-form-urlencoded"
            environ["QUERY_STRING"] = ""
        return self.application(environ, start_response)


def behave_as_sts():
    """A holder of a token of a web identity has no key to sign with; moto asks for a signature all the same. And moto
    refuses in a form that is not the one of STS."""
    check = TokenResponse._authenticate_and_authorize_normal_action

    def authenticate(self, resource="*"):
        if self._get_action() == "AssumeRoleWithWebIdentity":
            return
        try:
            check(self, resource)
        except HTTPException as error:
            said = f"<Type>Sender</Type><Code>{error.error_type}</Code><Message>{error.message}</Message>"
            error.description = f"<ErrorResponse><Error>{said}</Error></ErrorResponse>"
            raise

    TokenResponse._authenticate_and_authorize_normal_action = authenticate


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tls", nargs=2)
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--at", nargs=3)
    arguments = parser.parse_args()

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    watched = Watched(OneAtATime(Unsigned(DomainDispatcherApplication(create_backend_app))), arguments.at)
    tls = tuple(arguments.tls) if arguments.tls else None
    server = make_server("127.0.0.1", 0, watched, threaded=True, ssl_context=tls)
    endpoint = f"http{'s' if tls else ''}://localhost:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def client(service, key="any", secret="any"):
        return boto3.client(
            service,
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            verify=tls[0] if tls else None,
        )

    people = client("iam")
    people.create_user(UserName="tester")
    people.put_user_policy(UserName="tester", PolicyName="all", PolicyDocument=json.dumps(POLICY))
    for role in ("reader", "second"):
        people.create_role(RoleName=role, AssumeRolePolicyDocument=json.dumps(TRUST))
        people.put_role_policy(RoleName=role, PolicyName="all", PolicyDocument=json.dumps(POLICY))
    behave_as_sts()
    made = people.create_access_key(UserName="tester")["AccessKey"]
    key, secret = made["AccessKeyId"], made["SecretAccessKey"]
    watched.store = client("s3", key, secret)
    access = {"ACL": "public-read"} if arguments.open else {}
    watched.store.create_bucket(Bucket="data", **access)
    watched.store.create_bucket(Bucket="closed")
    for path in sorted(path for path in arguments.folder.rglob("*") if path.is_file()):
        name = path.relative_to(arguments.folder).as_posix()
        watched.store.upload_file(str(path), "data", name, ExtraArgs=access)
    if not arguments.open:
        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
        ActionAuthenticatorMixin.request_count = 0
    watched.gets.clear()
    print(json.dumps({"endpoint": endpoint, "key": key, "secret": secret}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
