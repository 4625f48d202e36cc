"""The differences between larder and the registry it replaces that are meant. Data only, used by compare.py.

Each entry names a reason, the answers it is about, and what may differ in them. Whatever is not named must be equal.
Patterns are regular expressions for the whole text; a field that is not there has the text "absent".
"""

import re
from dataclasses import dataclass, field as default


def matches(pattern, value):
    return re.fullmatch(pattern, "absent" if value is None else str(value), re.DOTALL) is not None


@dataclass(frozen=True)
class Field:
    """One header or another single fact of otherwise equal answers."""

    why: str
    of: str  # "3.1.1", "2.8" or "both"
    requests: str
    field: str
    theirs: str
    ours: str

    def covers(self, request, field, theirs, ours):
        named = matches(self.requests, request) and matches(self.field, field)
        return named and matches(self.theirs, theirs.get(field)) and matches(self.ours, ours.get(field))


@dataclass(frozen=True)
class Answer:
    """Another answer altogether: `status` says from what to what, `ours` what there is to know of the new one."""

    why: str
    of: str
    requests: str
    status: tuple
    ours: dict = default(default_factory=dict, hash=False)

    def covers(self, request, field, theirs, ours):
        changed = (theirs.get("status"), ours.get("status")) == self.status
        return (
            changed
            and matches(self.requests, request)
            and all(matches(pattern, ours.get(name)) for name, pattern in self.ours.items())
        )


JSON = "application/json(; charset=utf-8)?"
INDEX = "application/vnd.oci.image.index.v1\\+json"


def error(code, **headers):
    """An OCI error with an honest sentence."""
    wanted = {f"header {name.replace('_', '-')}": value for name, value in headers.items()}
    return {"header content-type": JSON, "error code": f'"({code})"', "error message": '".+"', **wanted}


def head_error(**headers):
    return {"header content-type": JSON, "body": "", **{f"header {n.replace('_', '-')}": v for n, v in headers.items()}}


MEANT = [
    # How an answer came about is told with it; distribution says nothing.
    Field("RFC 9211: hit or miss can be seen", "both", ".*", "header cache-status", "absent", "larder;.*"),
    Field("RFC 9111: the age of what came from the cache", "both", ".*", "header age", "absent", r"\d+"),
    Field("RFC 9111: a stale answer says so", "both", "(gone|401|403|429|503): tags?( warm.*)?", "header warning", "absent", "299 .*"),
    Field("the upstream that ns chose is told, distribution-spec \"Registry Proxying\"", "both", "online: tag warm ns", "header oci-namespace",
          "absent", r"docker\.io"),
    Field("a 304 names what is not modified, RFC 9110 15.4.5", "both", "online: tag warm same etag", "header (etag|docker-content-digest)",
          "absent", '"?sha256:[0-9a-f]{64}"?'),
    # Headers that the configuration asks for are on every answer under /v2, not on those of some endpoints.
    Field("a configured header is on errors and redirects too", "both", "online: (path unknown|tag too long|base without slash)",
          "header x-configured", "absent", r"one \+ two"),
    Field("nosniff is on redirects too", "both", "online: base without slash", "header x-content-type-options", "absent", "nosniff"),
    Field("a redirect needs no page", "both", "online: base without slash", "body|header content-(type|length)", ".*", "|0|absent"),
    # The text for people is our own. The code is what programs read.
    Field("error details are free text", "both", ".*", "error detail", ".*", ".*"),
    Field("error messages are free text", "both", ".*", "error message", '".*"', '".*"'),
    Field("a HEAD has the length of that text", "both", ".* HEAD", "header content-length", r"\d+", r"\d+|absent"),
    Field("2.8 names the only charset JSON has", "2.8", ".*", "header content-type", "application/json; charset=utf-8", "application/json"),
    # Cold blobs look like warm ones.
    Field("an ETag is quoted, RFC 9110 8.8.3", "both", "online: blob .*cold.*", "header etag", "sha256:.*", '"sha256:.*"'),
    Field("ranges work on cold blobs too", "both", "online: blob .*cold.*", "header accept-ranges", "absent", "bytes"),
    Field("a cold blob is as immutable as a warm one", "both", "online: blob .*cold.*", "header cache-control", "absent", "max-age=31536000"),
    Answer("a range of a cold blob is a range", "both", "online: blob cold range", (200, 206),
           {"header content-range": "bytes 100-199/8397468", "header content-length": "100"}),
    Answer("a range of a cold blob is a range", "both", "online: blob cold range suffix", (200, 206),
           {"header content-range": "bytes 1054821-1054827/1054828", "header content-length": "7"}),
    Answer("a range beyond a cold blob is refused", "both", "online: blob cold range beyond", (200, 416),
           {"header content-range": r"bytes \*/10263"}),
    Answer("If-None-Match holds for a cold blob too", "both", "online: blob cold same etag", (200, 304), {"body": ""}),
    # Ranges by the book.
    Field("a refusal is JSON like every error", "both", "online: blob warm range (beyond|reversed)",
          "header (content-type|content-length|cache-control|etag|accept-ranges|docker-content-digest|content-range)|body|error .*", ".*", ".*"),
    Answer("a unit that is not known is ignored, RFC 9110 14.2", "both", "online: blob warm range other unit", (416, 200),
           {"body": "1054828 bytes, .*"}),
    Field("a range is defined for GET alone, RFC 9110 14.2", "both", "online: blob warm range HEAD",
          "status|header content-(length|range)", ".*", "200|1054828|absent"),
    # What upstream doesn't have is not an error of ours.
    Answer("an unknown manifest is unknown, not a failure", "both", "online: digest unknown", (500, 404), error("MANIFEST_UNKNOWN")),
    Answer("an unknown manifest is unknown, not a failure", "both", "online: digest unknown HEAD", (500, 404), head_error()),
    Answer("If-None-Match is no proof that a manifest exists", "both", "online: digest unknown same etag", (304, 404), error("MANIFEST_UNKNOWN")),
    Answer("a malformed digest is the client's mistake", "both", "online: digest malformed", (500, 400), error("DIGEST_INVALID")),
    Answer("a malformed name is told as such", "both", "online: name in capitals", (404, 400), error("NAME_INVALID")),
    Field("every error is JSON", "both", "online: (path unknown|base of v1|tag too long)",
          "header (content-type|content-length)|body|error .*", ".*", ".*"),
    # `Accept` is no reason to refuse: today's clients list what they know, and people use curl.
    Answer("an image is served whatever Accept says", "both", "online: tag zstd warm (wrong|any) type", (404, 200),
           {"header content-type": "application/vnd.oci.image.manifest.v1\\+json"}),
    Answer("an index is served whatever Accept says", "2.8", "online: tag warm (any type|no accept)", (404, 200),
           {"header content-type": INDEX}),
    Answer("Docker schema 2 is served whatever Accept says", "2.8", "online: tag schema2 warm any type", (400, 200)),
    # Lists.
    Answer("referrers are relayed, or made from the fallback tag", "both", "online: referrers", (404, 200),
           {"header content-type": INDEX}),
    Answer("a page size that is none is refused, as by 3.1", "2.8", "online: (tags negative|(tags|catalog) no number)", (200, 400),
           error("PAGINATION_NUMBER_INVALID")),
    Field("a page of zero tags is empty, as in 3.1", "2.8", "online: tags zero", "body|header content-length", ".*",
          r'35|\{"name":"library/multi","tags":\[\]\}\n'),
    # The upstream here is docker-registry 2.8, which knows no pages.
    Field("a page has no more tags than were asked for", "both", "online: tags first", "body|header (content-length|link)",
          r'\{"name":"library/multi","tags":\["sbom","sha256-[0-9a-f]{64}","1\.0"\]\}\n|121|absent',
          r'\{"name":"library/multi","tags":\["1\.0"\]\}\n|40|</v2/library/multi/tags/list\?last=1\.0&n=1>; rel="next"'),
    Field("a page begins after the last one", "both", "online: tags next", "body|header (content-length|link)",
          r'\{"name":"library/multi","tags":\["sbom","sha256-[0-9a-f]{64}","1\.0"\]\}\n|121|absent',
          r'\{"name":"library/multi","tags":\["sbom"\]\}\n|41|</v2/library/multi/tags/list\?last=sbom&n=1>; rel="next"'),
    Field("the tag that referrers were made from is known from then on", "both", "(gone|401|403|503|429): tags", "body",
          r'\{"name":"library/multi","tags":\["1\.0"\]\}\n', r'\{"name":"library/multi","tags":\["1\.0","sha256-[0-9a-f]{64}"\]\}\n'),
    Field("the tag that referrers were made from is known from then on", "both", "(gone|401|403|503|429): tags", "header content-length", "40", "114"),
    # Writes: one answer for all of them.
    Field("405 says what is allowed, RFC 9110 15.5.6", "both", "online: write .*", "header allow", ".*", "GET, HEAD"),
    Answer("an upload can't go on here", "both", "online: write upload (part|end|cancelled)", (404, 405), error("UNSUPPORTED")),
    Answer("there is no upload to ask for, and asking is reading", "3.1.1", "online: write upload status", (500, 404), error("BLOB_UPLOAD_UNKNOWN")),
    Field("there is no upload to ask for", "2.8", "online: write upload status", "error code", '"BLOB_UPLOAD_INVALID"', '"BLOB_UPLOAD_UNKNOWN"'),
    Answer("a manifest is refused before it is read", "both", "online: write manifest", (400, 405), error("UNSUPPORTED")),
    Field("405 is JSON", "both", "online: write blob", "header (content-type|content-length)|body|error .*", ".*", ".*"),
    # Upstream is unwell and nothing is held: the kind of trouble is told, in a way that makes nodes go on at once.
    Answer("no upstream: bad gateway", "both", "(gone|503): (digest|blob) cold", (500, 502), error("UNKNOWN")),
    Answer("no upstream: bad gateway", "both", "(gone|503): blob cold HEAD", (500, 502), head_error()),
    Answer("no upstream is not an unknown tag", "both", "(gone|503): tags? cold", (404, 502), error("UNKNOWN")),
    Answer("upstream refuses: denied", "both", "40[13]: (digest|blob) cold", (500, 403), error("DENIED")),
    Answer("upstream refuses: denied", "both", "40[13]: blob cold HEAD", (500, 403), head_error()),
    Answer("upstream refuses: not an unknown tag", "both", "40[13]: tags? cold", (404, 403), error("DENIED")),
    Answer("upstream says unknown", "both", "404: digest cold", (500, 404), error("MANIFEST_UNKNOWN")),
    Answer("a tag deleted upstream is gone, its content stays", "both", "404: tag warm", (200, 404), error("MANIFEST_UNKNOWN")),
    Answer("a tag deleted upstream is gone, its content stays", "both", "404: tag warm HEAD", (200, 404), head_error()),
    Answer("a repository deleted upstream has no tags", "both", "404: tags", (200, 404), error("NAME_UNKNOWN")),
    Answer("a rate limit is told with its time; 429 would be repeated at once", "both", "429: (digest|blob) cold", (500, 503),
           error("TOOMANYREQUESTS", retry_after=r"\d+")),
    Answer("a rate limit is told with its time", "both", "429: blob cold HEAD", (500, 503), head_error(retry_after=r"\d+")),
    Answer("a rate limit is not an unknown tag", "both", "429: tags? cold", (404, 503), error("TOOMANYREQUESTS", retry_after=r"\d+")),
    # The admin listener.
    Field("what is true now is not to be kept", "both", "online: admin (health|metrics)", "header cache-control", "absent", "no-store"),
    Answer("a page for people", "both", "online: admin root", (404, 200), {"header content-type": "text/html; charset=utf-8"}),
    Field("the metrics' content type names no escaping", "3.1.1", "online: admin metrics", "header content-type", ".*", "text/plain; version=0.0.4(; charset=utf-8)?"),
    Field("the metrics are sent whole", "both", "online: admin metrics", "header (content-length|transfer-encoding)", ".*", ".*"),
    Field("2.8 has no such metrics", "2.8", "online: admin metrics", "body", "", ".*"),
]
