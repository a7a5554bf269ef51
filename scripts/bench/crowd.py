"""Thousands of sessions on one thread: sockets that log in through the Unix socket of a proxy and run statements."""

import socket, struct


class Member:
    """One session."""

    def __init__(self, folder, port):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(f"{folder}/.s.PGSQL.{port}")
        self.input = self.socket.makefile("rb")
        packet = struct.pack("!i", 196608) + b"user\0postgres\0database\0app\0\0"
        self.socket.sendall(struct.pack("!i", len(packet) + 4) + packet)
        self.wait()

    def run(self, statement):
        """Returns False if the session was terminated before."""
        text = statement.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)
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
