"""What the pods need besides procyard: an image for the app, a token, certificates."""

import shutil
import subprocess

import manifest

IMAGE = manifest.ROOT / "target/image"


def make_busybox(place, known_as):
    """A directory of usual programs, and where it will be found."""
    place.mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), place / "busybox")
    for applet in output_of(place / "busybox", "--list").split():
        if applet != "busybox":
            (place / applet).symlink_to(f"{known_as}/busybox")


def make_app(place):
    """The root of an app's image: a shell, the usual programs, and a client with its libraries."""
    make_busybox(place / "bin", "/bin")
    grpcurl = shutil.which("grpcurl")
    # One that is static needs none, and ldd says so.
    needs = subprocess.run(["ldd", grpcurl], capture_output=True, text=True).stdout.split()
    for file in [word for word in needs if word.startswith("/")]:
        (place / file[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place / file[1:])
    shutil.copy(grpcurl, place / "bin/grpcurl")
    return place


def make_secrets(place):
    """A token, and the Secrets that the manifests name: made as their README says."""
    place.mkdir()
    tokens = place / "tokens"
    token = output_of(IMAGE / "procyard", "token", "new", "platform", "--role", "operator", "--token-file", tokens)
    output_of(manifest.ROOT / "tests/clients/certificates", place)
    tls = {"tls.crt": "server.pem", "tls.key": "server.key", "ca.crt": "ca.pem"}
    secrets = {
        "procyard-tokens": {"tokens": tokens.read_text()},
        "procyard-tls": {name: (place / file).read_text() for name, file in tls.items()},
    }
    return token.strip(), secrets


def output_of(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
