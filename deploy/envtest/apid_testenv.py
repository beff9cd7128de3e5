"""A private API server for Python tests: one file, standard library only.

    with apid_testenv.Server() as server:
        kubernetes.config.load_kube_config(server.kubeconfig)

The program apid is $APID, or bin/apid beside this file, or apid on PATH. The server ends with the block, and with this process.
"""
import json
import os
import subprocess
import tempfile


def _program():
    packaged = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "apid")
    return os.environ.get("APID") or (packaged if os.path.exists(packaged) else "apid")


class Server:
    """A running control plane with the names preset kubernetes; arguments are further flags of apid."""

    def __init__(self, *flags, program=None):
        command = [program or _program(), "test-server", *flags]
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        line = self._process.stdout.readline()
        if not line:
            self.stop()
            raise RuntimeError("apid test-server did not start:\n" + self.log())
        ready = json.loads(line)
        self.kubeconfig = ready["kubeconfig"]
        self.url = ready["server"]
        self.token = ready["token"]
        self.certificate_authority = ready["certificateAuthority"]
        self.directory = ready["directory"]

    def log(self):
        """Return the log of the server."""
        # pread does not move the file position, which the server shares and writes at.
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def stop(self):
        """Stop the server and remove its files."""
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
