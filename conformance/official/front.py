#!/usr/bin/env python3
"""Two registries behind one address: pulls go to a cache, pushes to the registry that the cache pulls from.

    front.py LISTEN CACHE UPSTREAM        each host:port

The official suite knows one registry only. GET and HEAD go to CACHE, but for the state of an upload; everything else goes
to UPSTREAM. Bodies are streamed both ways, and headers pass as they are, because the suite looks at them. A body that the
cache ends short ends short here too.
"""

import http.client
import http.server
import sys
import urllib.parse

PIECE = 64 * 1024
# What concerns one connection only (RFC 9110 7.6.1), and what http.client writes itself.
OF_THE_CONNECTION = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host"}


class Front(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Status line and headers in one segment with the body, and no waiting for the client's acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True
    cache = upstream = ""

    def target(self):
        reads = self.command in ("GET", "HEAD") and "/blobs/uploads/" not in self.path
        return self.cache if reads else self.upstream

    def relay(self):
        connection = http.client.HTTPConnection(self.target(), timeout=60)
        try:
            chunked = "chunked" in self.headers.get("Transfer-Encoding", "").lower()
            # Pairs, not a mapping: a header may come twice.
            connection.putrequest(self.command, self.path, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in OF_THE_CONNECTION:
                    connection.putheader(name, value)
            if chunked:
                connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders(self.body(chunked), encode_chunked=chunked)
            self.answer(connection.getresponse())
        finally:
            connection.close()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = relay

    def body(self, chunked):
        """The request's body, piece by piece."""
        if chunked:
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return
        left = int(self.headers.get("Content-Length", 0))
        while left:
            piece = self.rfile.read(min(left, PIECE))
            if not piece:
                raise ConnectionError("the client ended its body short")
            left -= len(piece)
            yield piece

    def answer(self, response):
        self.log_request(response.status)
        self.send_response_only(response.status, response.reason)
        for name, value in response.headers.items():
            if name.lower() == "location":
                value = urllib.parse.urlsplit(value)._replace(scheme="", netloc="").geturl()
            if name.lower() not in OF_THE_CONNECTION:
                self.send_header(name, value)
        if response.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        left = response.length
        while piece := response.read(PIECE):
            left = left and left - len(piece)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if response.chunked else piece)
        if response.chunked:
            self.wfile.write(b"0\r\n\r\n")
        # Short, or of no stated length: only the end of the connection tells.
        self.close_connection = self.close_connection or (left != 0 and not response.chunked and self.command != "HEAD")
        self.wfile.flush()


if __name__ == "__main__":
    listen, Front.cache, Front.upstream = sys.argv[1:4]
    host, port = listen.split(":")
    server = http.server.ThreadingHTTPServer((host, int(port)), Front)
    server.daemon_threads = True
    server.serve_forever()
