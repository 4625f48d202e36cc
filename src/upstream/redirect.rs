//! Where a redirect leads, and whether to go there.

use http::HeaderMap;
use http::header::LOCATION;
use url::Url;

use super::error::Error;
use super::trust;

/// The most redirects that are followed for one request.
pub(super) const MAX_REDIRECTS: usize = 10;

/// Whether a status sends the request elsewhere; 304 and 300 do not.
pub(super) fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// The target of a redirect from `current`, asked for on behalf of the registry at `base`.
///
/// Its path and query are what the registry wrote, byte for byte, because they may be signed. What no URL may contain
/// is encoded (spaces, `"`, `<`, `>`, letters outside ASCII), and so is `'` in a query, which the signers in use encode
/// themselves; `.` and `..` are resolved (RFC 3986 5.2.4).
///
/// # Errors
/// [`Error::Invalid`] when there is no usable target, or one that a registry has no business to send us to.
pub(super) fn target(base: &Url, current: &Url, headers: &HeaderMap) -> Result<Url, Error> {
    let location = headers
        .get(LOCATION)
        .ok_or_else(|| Error::invalid("a redirect without a Location"))?;
    let location = std::str::from_utf8(location.as_bytes())
        .map_err(|_| Error::invalid("a redirect whose Location is not text"))?;
    let mut next = current
        .join(location)
        .map_err(|_| Error::invalid(format!("a redirect to `{}`", without_query(location))))?;
    let place = || format!("{}://{}", next.scheme(), next.host_str().unwrap_or_default());
    if !matches!(next.scheme(), "http" | "https") {
        return Err(Error::invalid(format!(
            "a redirect to `{}`, which is no web address",
            place()
        )));
    }
    if current.scheme() == "https" && next.scheme() == "http" {
        return Err(Error::invalid(format!("a redirect from https to `{}`", place())));
    }
    if !trust::may_send_to(base, &next) {
        return Err(Error::invalid(format!(
            "a redirect of a public registry into an inner network: `{}`",
            place()
        )));
    }
    // What stands before the `@` would become a header of ours.
    let is_clean = next.set_username("").is_ok() && next.set_password(None).is_ok();
    is_clean
        .then_some(next)
        .ok_or_else(|| Error::invalid("a redirect to an address without a host"))
}

/// A location without what may be a signature.
fn without_query(location: &str) -> &str {
    location.split('?').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn follow(base: &str, location: &str) -> Result<String, Error> {
        let base = Url::parse(base).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, HeaderValue::from_bytes(location.as_bytes()).unwrap());
        target(&base, &base, &headers).map(|url| url.to_string())
    }

    #[test]
    fn every_form_of_location_is_resolved() {
        let base = "https://r.example.com/v2/a/blobs/sha256:1?ns=x";
        let cases = [
            (
                "https://cdn.example.net/x?sig=1",
                "https://cdn.example.net/x?sig=1",
            ),
            ("//cdn.example.net/x", "https://cdn.example.net/x"),
            (
                "/artifacts-downloads/x",
                "https://r.example.com/artifacts-downloads/x",
            ),
            ("?again=1", "https://r.example.com/v2/a/blobs/sha256:1?again=1"),
            ("sha256:2x/y", "https://r.example.com/v2/a/blobs/sha256:2x/y"),
            ("https://user:pw@cdn.example.net/x", "https://cdn.example.net/x"),
        ];
        for (location, expected) in cases {
            let got = follow(base, location);
            // `sha256:...` alone reads as a scheme (RFC 3986, 4.2), which is refused rather than guessed at.
            if location.starts_with("sha256:") {
                assert!(got.is_err(), "{got:?}");
            } else {
                assert_eq!(got.unwrap(), expected);
            }
        }
    }

    #[test]
    fn what_no_registry_may_ask_is_refused() {
        for bad in [
            "http://cdn.example.net/x",
            "ftp://x/",
            "javascript:1",
            "https://",
            "https://127.0.0.1/",
            "file:///etc/passwd",
        ] {
            assert!(
                matches!(
                    follow("https://r.example.com/v2/", bad),
                    Err(Error::Invalid { .. })
                ),
                "{bad}"
            );
        }
        let base = Url::parse("https://r.example.com").unwrap();
        assert!(matches!(
            target(&base, &base, &HeaderMap::new()),
            Err(Error::Invalid { .. })
        ));
    }

    #[test]
    fn the_query_of_a_signed_url_is_kept_byte_for_byte() {
        let all = "A-Z.a~z_0-9!$&()*+,;=:@/?%20%2F%2f%3D%3d%27%C3%A9+b=c==&&x&=%7E|^`{}[]\\";
        let signed = format!("https://cdn.example.net/b%2Fc/~d%20(1)/e;f=g,h@i:j?{all}");
        assert_eq!(follow("https://r.example.com/v2/", &signed).unwrap(), signed);
    }

    #[test]
    fn what_may_not_stand_in_a_url_is_encoded_and_nothing_else() {
        let cases = [
            ("/a b?c d", "/a%20b?c%20d"),
            ("/x?q='\"<>", "/x?q=%27%22%3C%3E"),
            ("/a'(b)?x", "/a'(b)?x"),
            ("/\u{e9}?\u{e9}", "/%C3%A9?%C3%A9"),
            ("/a/./b/../c?./..", "/a/c?./.."),
        ];
        for (location, expected) in cases {
            let got = follow("https://r.example.com/v2/", location).unwrap();
            assert_eq!(got, format!("https://r.example.com{expected}"));
        }
    }
}
