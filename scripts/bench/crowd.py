"""Thousands of sessions on one thread: sockets that log in to a proxy and run statements."""

import socket, ssl, struct, time

SSL_REQUEST = struct.pack("!ii", 8, 80877103)


def message(tag, body):
    return tag + struct.pack("!i", len(body) + 4) + body


def simple(text):
    return message(b"Q", text.encode() + b"\0")


def extended(text):
    """Parse, Bind, Describe, Execute, Sync, as drivers send a text once."""
    return (message(b"P", b"\0" + text.encode() + b"\0\0\0") + message(b"B", bytes(8)) + message(b"D", b"P\0")
            + message(b"E", bytes(5)) + message(b"S", b""))


class Member:
    """A session over the Unix socket of a proxy, or with TLS over TCP."""

    def __init__(self, folder, port, tls=None, waits=True, options=""):
        self.socket = socket.socket(socket.AF_INET if tls else socket.AF_UNIX)
        # With a timeout, a full backlog would be an error.
        self.socket.connect(("127.0.0.1", port) if tls else f"{folder}/.s.PGSQL.{port}")
        self.socket.settimeout(60)
        if tls:
            self.start_tls(tls)
        self.input = self.socket.makefile("rb")
        parameters = f"user\0postgres\0database\0app\0options\0{options}\0\0".encode()
        self.socket.sendall(struct.pack("!ii", len(parameters) + 8, 196608) + parameters)
        if waits:
            self.wait()

    def start_tls(self, tls):
        """With `direct`, begins TLS at once, because HAProxy does not know PostgreSQL's protocol."""
        if tls != "direct":
            self.socket.sendall(SSL_REQUEST)
            if self.socket.recv(1) != b"S":
                raise SystemExit("no TLS")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = context.wrap_socket(self.socket)

    def run(self, statement):
        """Returns False if the session was terminated before."""
        self.socket.sendall(simple(statement))
        return self.wait()

    def wait(self):
        """Waits until the server is ready for the next statement. Returns False if the session was terminated."""
        while True:
            tag, length = struct.unpack("!ci", self.input.read(5))
            body = self.input.read(length - 4)
            if tag == b"E" and b"CLF001" in body:
                return False
            if tag == b"E":
                raise SystemExit(body)
            if tag == b"Z":
                return True

    def close(self):
        self.socket.sendall(b"X" + struct.pack("!i", 4))
        self.input.close()
        self.socket.close()


def storm(folder, port, count):
    """Logins a second of so many clients that come at once and stay."""
    begun = time.monotonic()
    members = [Member(folder, port, waits=False) for _ in range(count)]
    for member in members:
        member.wait()
    elapsed = time.monotonic() - begun
    for member in members:
        member.close()
    return count / elapsed
